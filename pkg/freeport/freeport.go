// Package freeport finds ports of loopback for servers that are stopped and started
// again on the port they had.
//
// A port that listening on ":0" gives will not do for those: it is one of the ports
// that the kernel gives to outgoing connections, and while the server is away another
// connection is given it, or a client that dials the server is, and so connects to
// itself. The server cannot listen then.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// The ports offered. Outgoing connections have 32768 to 60999 where nothing else is
// set (Linux, net.ipv4.ip_local_port_range), and a node of a Redis cluster takes the
// port 10,000 above its own, too.
const lowest, highest = 10_000, 21_999

// Find returns the first of n ports (1 to 700) in a row, all of which can be listened
// on at 127.0.0.1 now. Nothing keeps them from being taken a moment later.
func Find(n int) (int, error) {
	for range 1000 {
		if p := lowest + rand.IntN(highest-lowest+1); allFree(p, n) {
			return p, nil
		}
	}
	return 0, fmt.Errorf("no %d free ports in a row on 127.0.0.1", n)
}

func allFree(first, n int) bool {
	for p := first; p < first+n; p++ {
		if !free(p) {
			return false
		}
	}
	return true
}

func free(port int) bool {
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port)) //nolint:noctx // it does not wait
	if err != nil {
		return false
	}
	return l.Close() == nil
}
