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
	"sync"
)

// The ports are dealt out in lots, a lot to one process at a time: it listens on the
// first port of its lots to its end, so two processes never offer the same port, also
// long before their servers listen. Outgoing connections have 32768 to 60999 where
// nothing else is set (Linux, net.ipv4.ip_local_port_range), and a node of a Redis
// cluster takes the port 10,000 above its own, too.
const (
	lowest = 10_000
	lots   = 49 // to 22,543
	lot    = 256
)

var held struct {
	sync.Mutex
	guards    []net.Listener // kept open, and from the collector
	next, end int            // of the last lot: not offered yet
}

// Find returns the first of n ports (1 to 255) in a row, all of which can be listened
// on at 127.0.0.1 now. No other call returns one of them, in this process or another
// one, before this process ends; other programs may take them.
func Find(n int) (int, error) {
	held.Lock()
	defer held.Unlock()
	if n < 1 || n >= lot {
		return 0, fmt.Errorf("freeport: %d ports, 1 to %d can be had", n, lot-1)
	}
	for {
		for ; held.next+n <= held.end; held.next++ {
			if p := held.next; allFree(p, n) {
				held.next += n
				return p, nil
			}
		}
		if err := takeLot(); err != nil {
			return 0, err
		}
	}
}

// firstLot is where the search for a lot begins.
var firstLot = func() int { return rand.IntN(lots) }

// takeLot takes a lot that no process has; held is locked.
func takeLot() error {
	start := firstLot()
	for i := range lots {
		first := lowest + (start+i)%lots*lot
		if l, err := listen(first); err == nil {
			held.guards = append(held.guards, l)
			held.next, held.end = first+1, first+lot
			return nil
		}
	}
	return fmt.Errorf("freeport: other processes have all ports from %d to %d", lowest, lowest+lots*lot-1)
}

func allFree(first, n int) bool {
	for p := first; p < first+n; p++ {
		l, err := listen(p)
		if err != nil || l.Close() != nil {
			return false
		}
	}
	return true
}

func listen(port int) (net.Listener, error) {
	return net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port)) //nolint:noctx // it does not wait
}
