package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"net"
	"os"
	"sync"

	"github.com/quic-go/quic-go"
)

// readLog holds the times at which the messages were read.
type readLog struct {
	lock  sync.Mutex
	times []int64
	left  int
}

func newReadLog(messages int) *readLog {
	log := &readLog{times: make([]int64, messages), left: messages}
	for number := range log.times {
		log.times[number] = notRead
	}
	return log
}

// read logs that a message is complete now.
func (l *readLog) read(number int) {
	moment := now()
	l.lock.Lock()
	defer l.lock.Unlock()
	l.times[number] = moment
	if l.left--; l.left == 0 {
		report("complete")
	}
}

// receive accepts one connection, and reads its messages until the session says stop. It returns the times of the reads.
func (e *end) receive(address string) ([]int64, error) {
	local, err := net.ResolveUDPAddr("udp4", address)
	if err != nil {
		return nil, err
	}
	socket, err := transport(local)
	if err != nil {
		return nil, err
	}
	certificate, err := selfSigned()
	if err != nil {
		return nil, err
	}
	security := &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{protocolName}}
	listener, err := socket.Listen(security, e.configuration())
	if err != nil {
		return nil, err
	}
	report("listening")
	connection, err := listener.Accept(context.Background())
	if err != nil {
		return nil, err
	}
	report("ready")
	log := newReadLog(len(e.messages))
	if e.delivery == "datagram" {
		go receiveDatagrams(connection, log)
	} else {
		go e.receiveStreams(connection, log)
	}
	waitForStop(bufio.NewReader(os.Stdin))
	e.hangUp(connection)
	log.lock.Lock()
	defer log.lock.Unlock()
	return log.times, nil
}

// receiveStreams reads all streams. The sender opens them in order, and the library hands them over in that order.
func (e *end) receiveStreams(connection *quic.Conn, log *readLog) {
	for first := 0; first < len(e.messages); {
		stream, err := connection.AcceptUniStream(context.Background())
		if err != nil {
			return
		}
		after := first + 1
		for after < len(e.messages) && !e.beginsStream(after) {
			after++
		}
		go e.readStream(stream, first, after, log)
		first = after
	}
}

// readStream reads the messages from number `first` to before `after` on one stream.
func (e *end) readStream(stream *quic.ReceiveStream, first, after int, log *readLog) {
	buffer := make([]byte, 1<<16)
	received, needed := 0, e.messages[first].size
	for first < after {
		count, err := stream.Read(buffer)
		for received += count; first < after && received >= needed; {
			log.read(first)
			if first++; first < after {
				needed += e.messages[first].size
			}
		}
		if err != nil {
			return
		}
	}
	// The end of the stream is read as well, so that the library can forget the stream.
	_, _ = stream.Read(buffer)
}

// receiveDatagrams counts the parts of each message; a message is complete when all its parts have arrived.
func receiveDatagrams(connection *quic.Conn, log *readLog) {
	arrived := map[uint32]uint32{}
	for {
		payload, err := connection.ReceiveDatagram(context.Background())
		if err != nil {
			return
		}
		number, parts := binary.BigEndian.Uint32(payload), binary.BigEndian.Uint32(payload[4:])
		arrived[number]++
		if arrived[number] == parts {
			delete(arrived, number)
			log.read(int(number))
		}
	}
}
