// One end of a QUIC connection of the testbed, with the library quic-go.
//
// The sender is the client and writes the messages of a file at their times. The receiver is the server. Both ends read
// the same file, so the data carries no lengths. Each end reports its state in lines on standard output, takes the start
// and the stop of the measurement in lines on standard input, and leaves the times of its messages in a file.
package main

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"

	"github.com/quic-go/quic-go"
	qlogevents "github.com/quic-go/quic-go/qlog"
	"github.com/quic-go/quic-go/qlogwriter"
	"golang.org/x/sys/unix"
)

const (
	protocolName = "tcpdelay"
	// notRead is the time of a message that has not been read.
	notRead = -1
	// unlimited stands for flow-control windows and numbers of streams that never limit the sender.
	unlimited = 1 << 40
	// neverIdle is longer than any measurement.
	neverIdle = 48 * time.Hour
	// longestOpening is the time for the handshake, also at high loss.
	longestOpening = 2 * time.Minute
)

// end is what both ends share.
type end struct {
	messages []message
	delivery string
	qlog     string
	traced   chan struct{}
}

func main() {
	isSender := flag.Bool("sender", false, "be the sender; else the receiver")
	address := flag.String("address", "", "address and port of the receiver")
	file := flag.String("messages", "", "file with the messages")
	times := flag.String("times", "", "file for the times of the messages")
	delivery := flag.String("delivery", "stream", "stream, stream_per_message, stream_per_group or datagram")
	group := flag.Int("group", 1, "messages in a group")
	keyKind := flag.Int("key-kind", -1, "number of the kind of message that begins a group; -1: every -group messages")
	qlog := flag.String("qlog", "", "file for the qlog")
	flag.Parse()
	messages, err := readMessages(*file, *group, *keyKind)
	if err == nil {
		e := &end{messages, *delivery, *qlog, make(chan struct{})}
		var moments []int64
		if *isSender {
			moments, err = e.send(*address)
		} else {
			moments, err = e.receive(*address)
		}
		if err == nil {
			err = writeTimes(*times, moments)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// now returns the time on the monotonic clock, which all processes of a machine share [ns].
func now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}

// report tells the session the state of this end.
func report(state string) {
	fmt.Println(state)
}

// waitForStop returns when the session says so, or has ended.
func waitForStop(input *bufio.Reader) {
	_, _ = input.ReadString('\n')
}

func (e *end) configuration() *quic.Config {
	return &quic.Config{
		HandshakeIdleTimeout:           longestOpening,
		MaxIdleTimeout:                 neverIdle,
		InitialPacketSize:              packetSize,
		InitialStreamReceiveWindow:     unlimited,
		MaxStreamReceiveWindow:         unlimited,
		InitialConnectionReceiveWindow: unlimited,
		MaxConnectionReceiveWindow:     unlimited,
		MaxIncomingUniStreams:          unlimited,
		// The probes for a larger packet size would be lost like data, and the size of the packets would change.
		DisablePathMTUDiscovery: true,
		EnableDatagrams:         true,
		Tracer:                  e.tracer(),
	}
}

// flushingFile is a buffered file.
type flushingFile struct {
	*bufio.Writer
	file *os.File
}

func (f flushingFile) Close() error {
	return errors.Join(f.Flush(), f.file.Close())
}

// tracer returns the function that begins the qlog of a connection; nil without a qlog.
func (e *end) tracer() func(context.Context, bool, quic.ConnectionID) qlogwriter.Trace {
	if e.qlog == "" {
		close(e.traced)
		return nil
	}
	return func(_ context.Context, isClient bool, id quic.ConnectionID) qlogwriter.Trace {
		file, err := os.Create(e.qlog)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		trace := qlogwriter.NewConnectionFileSeq(flushingFile{bufio.NewWriter(file), file}, isClient, id, []string{qlogevents.EventSchema})
		go func() {
			trace.Run()
			close(e.traced)
		}()
		return trace
	}
}

// hangUp closes a connection, and waits for the end of its qlog.
func (e *end) hangUp(connection *quic.Conn) {
	_ = connection.CloseWithError(0, "")
	<-e.traced
}

// selfSigned returns a certificate that is made now. No certificate is checked: the path has no attacker.
func selfSigned() (tls.Certificate, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{signed}, PrivateKey: private}, nil
}

// transport returns a transport on an IPv4 socket.
func transport(address *net.UDPAddr) (*quic.Transport, error) {
	socket, err := net.ListenUDP("udp4", address)
	if err != nil {
		return nil, err
	}
	return &quic.Transport{Conn: socket}, nil
}

func writeTimes(file string, times []int64) error {
	written, err := binary.Append(nil, binary.LittleEndian, times)
	if err != nil {
		return err
	}
	return os.WriteFile(file, written, 0o644)
}
