package main

import (
	"encoding/binary"
	"os"
)

const (
	// rowSize is the size of a message in the file: time [ns] and size [bytes] of 8 bytes each, and kind.
	rowSize = 17
	// headerSize is the size of the head of a datagram: the message's number, and in how many datagrams it is sent.
	headerSize = 8
	// packetSize is the size of a full packet: the default of quic-go, which stays without path MTU discovery.
	packetSize = 1280
	// largestPayload of a datagram fits into a packet: a short header with a connection ID of 4 bytes and a packet number
	// of up to 4 (9), the tag of the encryption (16), and the head of the frame (3). The limit that SendDatagram checks is
	// larger, and quic-go discards a datagram that does not fit (packet_packer.go, composeNextPacket).
	largestPayload = packetSize - 28
)

// message is a message of the source.
type message struct {
	// time since the start of writing [ns].
	time int64
	// size in bytes.
	size int
	// beginsGroup says whether the message begins a group.
	beginsGroup bool
}

// readMessages returns the messages in a file. A group begins with each message of the key kind, or every `group`
// messages if there is none.
func readMessages(file string, group, keyKind int) ([]message, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	messages := make([]message, 0, len(content)/rowSize)
	for ; len(content) >= rowSize; content = content[rowSize:] {
		number := len(messages)
		begins := number%group == 0
		if keyKind >= 0 {
			begins = number == 0 || int(content[16]) == keyKind
		}
		messages = append(messages, message{
			int64(binary.LittleEndian.Uint64(content)), int(binary.LittleEndian.Uint64(content[8:])), begins,
		})
	}
	return messages, nil
}

// beginsStream says whether the message with this number is the first one on a new stream.
func (e *end) beginsStream(number int) bool {
	switch e.delivery {
	case "stream_per_message":
		return true
	case "stream_per_group":
		return e.messages[number].beginsGroup
	default:
		return number == 0
	}
}

// partSizes splits a message into the given number of parts that differ by at most one byte; each has room for its head.
func partSizes(size, parts int) []int {
	sizes := make([]int, parts)
	for part := range sizes {
		sizes[part] = max(size/parts, headerSize)
		if part < size%parts {
			sizes[part]++
		}
	}
	return sizes
}
