package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/quic-go/quic-go"
	"golang.org/x/sys/unix"
)

// send connects to the receiver, and writes the messages at their times. It returns the times of the writes.
func (e *end) send(address string) ([]int64, error) {
	receiver, err := net.ResolveUDPAddr("udp4", address)
	if err != nil {
		return nil, err
	}
	local, err := transport(nil)
	if err != nil {
		return nil, err
	}
	security := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocolName}}
	connection, err := local.Dial(context.Background(), receiver, security, e.configuration())
	if err != nil {
		return nil, err
	}
	report("ready")
	input := bufio.NewReader(os.Stdin)
	line, err := input.ReadString('\n')
	if err != nil {
		return nil, err
	}
	start, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if err != nil {
		return nil, err
	}
	written, failure := make([]int64, 0, len(e.messages)), make(chan error, 1)
	var lock sync.Mutex
	go func() {
		failure <- e.write(connection, start, func(moment int64) {
			lock.Lock()
			written = append(written, moment)
			lock.Unlock()
		})
	}()
	stopped := make(chan struct{})
	go func() {
		waitForStop(input)
		close(stopped)
	}()
	select {
	case <-stopped:
	case err = <-failure:
		if err != nil {
			return nil, err
		}
		<-stopped
	}
	e.hangUp(connection)
	lock.Lock()
	defer lock.Unlock()
	return written, nil
}

// write hands each message to its queue at its time. The queues never block: a message that the library does not take
// yet must not delay the times of later messages.
func (e *end) write(connection *quic.Conn, start int64, onWrite func(int64)) error {
	timer, err := newTimer()
	if err != nil {
		return err
	}
	var queue *queue
	for number, message := range e.messages {
		if err := timer.wait(start + message.time); err != nil {
			return err
		}
		onWrite(now())
		if e.beginsStream(number) {
			if queue != nil {
				queue.close()
			}
			if queue, err = e.open(connection); err != nil {
				return err
			}
		}
		queue.add(number)
		if e.delivery == "stream_per_message" {
			// The end of the stream then travels with the message, and not in a packet of its own later.
			queue.close()
			queue = nil
		}
	}
	if queue != nil && e.delivery != "stream" {
		queue.close()
	}
	return nil
}

// open returns the queue of a new stream, or of the datagrams.
func (e *end) open(connection *quic.Conn) (*queue, error) {
	queue := newQueue()
	if e.delivery == "datagram" {
		go queue.run(func(number int) error { return e.sendDatagrams(connection, number) }, func() error { return nil })
		return queue, nil
	}
	stream, err := connection.OpenUniStream()
	if err != nil {
		return nil, err
	}
	go queue.run(func(number int) error {
		_, err := stream.Write(make([]byte, e.messages[number].size))
		return err
	}, stream.Close)
	return queue, nil
}

func (e *end) sendDatagrams(connection *quic.Conn, number int) error {
	size := max(e.messages[number].size, headerSize)
	parts := (size + largestPayload - 1) / largestPayload
	for _, size := range partSizes(size, parts) {
		payload := make([]byte, size)
		binary.BigEndian.PutUint32(payload, uint32(number))
		binary.BigEndian.PutUint32(payload[4:], uint32(parts))
		if err := connection.SendDatagram(payload); err != nil {
			return err
		}
	}
	return nil
}

// queue holds the numbers of messages that the library has not taken yet, without a limit.
type queue struct {
	lock    sync.Mutex
	changed *sync.Cond
	numbers []int
	closed  bool
}

func newQueue() *queue {
	q := &queue{}
	q.changed = sync.NewCond(&q.lock)
	return q
}

func (q *queue) add(number int) {
	q.lock.Lock()
	q.numbers = append(q.numbers, number)
	q.lock.Unlock()
	q.changed.Signal()
}

func (q *queue) close() {
	q.lock.Lock()
	q.closed = true
	q.lock.Unlock()
	q.changed.Signal()
}

// run hands each message to the library, and then finishes the stream.
func (q *queue) run(send func(int) error, finish func() error) {
	for {
		q.lock.Lock()
		for len(q.numbers) == 0 && !q.closed {
			q.changed.Wait()
		}
		if len(q.numbers) == 0 {
			q.lock.Unlock()
			_ = finish()
			return
		}
		number := q.numbers[0]
		q.numbers = q.numbers[1:]
		q.lock.Unlock()
		if err := send(number); err != nil {
			// At the end of the measurement, the connection is closed while messages wait.
			return
		}
	}
}

// timer waits until exact times. A timer of Go is up to a millisecond late, because its netpoller waits in whole
// milliseconds.
type timer struct {
	file *os.File
}

func newTimer() (*timer, error) {
	descriptor, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("timerfd: %w", err)
	}
	return &timer{os.NewFile(uintptr(descriptor), "timer")}, nil
}

// wait returns at a time on the monotonic clock [ns].
func (t *timer) wait(moment int64) error {
	setting := unix.ItimerSpec{Value: unix.NsecToTimespec(moment)}
	connection, err := t.file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := connection.Control(func(descriptor uintptr) {
		failed = unix.TimerfdSettime(int(descriptor), unix.TFD_TIMER_ABSTIME, &setting, nil)
	}); err != nil || failed != nil {
		return errors.Join(err, failed)
	}
	var expirations [8]byte
	_, err = t.file.Read(expirations[:])
	return err
}
