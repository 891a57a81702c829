// A TCP server that sends everything back, and its client: echo server | echo client.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

const messages = 200

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve() {
	listener, err := net.Listen("tcp", ":7000")
	check(err)
	for {
		connection, err := listener.Accept()
		check(err)
		go func() {
			defer connection.Close()
			io.Copy(connection, connection)
		}()
	}
}

// Four goroutines with a connection each send 160 bytes every 20 ms.
func ask() {
	var group sync.WaitGroup
	for number := 0; number < 4; number++ {
		group.Add(1)
		go func() {
			defer group.Done()
			connection, err := net.Dial("tcp", os.Getenv("SERVER_ADDRESS")+":7000")
			check(err)
			defer connection.Close()
			data := make([]byte, 160)
			for message := 0; message < messages; message++ {
				_, err = connection.Write(data)
				check(err)
				_, err = io.ReadFull(connection, data)
				check(err)
				time.Sleep(20 * time.Millisecond)
			}
		}()
	}
	group.Wait()
	fmt.Printf("%d messages came back on each of 4 connections\n", messages)
}

func main() {
	if os.Args[1] == "server" {
		serve()
	} else {
		ask()
	}
}
