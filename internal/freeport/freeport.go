// Package freeport finds loopback ports for servers that tests stop and start again on the same
// port.
//
// Such a server cannot use a port that the kernel chose for ":0", because the kernel also gives
// these ports to outgoing connections. While the server is down, another connection may get its
// port. A client that dials the server may even get the port itself and connect to itself. The
// server then cannot listen on the port again.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// A lot is a range of ports. A process owns a lot while it listens on the first port of the lot,
// and it listens there until it ends. Find returns only ports of lots that this process owns. So
// two processes never get the same port.
//
// Outgoing connections use the ports 32768 to 60999 by default (Linux,
// net.ipv4.ip_local_port_range). All ports of the lots are below this range. The numbers that are
// 10,000 higher are also below it, because a node of a Redis cluster uses such a number as its
// second port.
const (
	lowest = 10_000
	lots   = 49 // the last port is 22,543
	lot    = 256
)

// held contains the ports that this process owns. Its mutex guards all fields.
var held struct {
	sync.Mutex
	guards    []net.Listener // listeners on the first port of each lot; these references keep the garbage collector from closing them
	next, end int            // ports of the newest lot that Find has not returned yet: next to end-1
}

// Find returns the first of n consecutive ports (1 to 255) on which a server can listen at 127.0.0.1
// now. Until this process ends, no other call of Find returns any of these ports, in this process or in
// another process. A program that does not use this package may still listen on them. Find returns an
// error if n is out of range or if other processes own all lots.
func Find(n int) (int, error) {
	held.Lock()
	defer held.Unlock()
	if n < 1 || n >= lot {
		return 0, fmt.Errorf("freeport: %d ports requested; ask for 1 to %d", n, lot-1)
	}
	for {
		for ; held.next+n <= held.end; held.next++ {
			if p := held.next; allFree(p, n) {
				held.next += n
				return p, nil
			}
		}
		if err := claimLot(); err != nil {
			return 0, err
		}
	}
}

// firstLot returns the lot at which the search begins. Tests replace it.
var firstLot = func() int { return rand.IntN(lots) }

// claimLot claims a lot that no process owns. The caller holds the mutex of held.
func claimLot() error {
	start := firstLot()
	for i := range lots {
		first := lowest + (start+i)%lots*lot
		if l, err := listen(first); err == nil {
			held.guards = append(held.guards, l)
			held.next, held.end = first+1, first+lot
			return nil
		}
	}
	return fmt.Errorf("freeport: other processes own all ports from %d to %d", lowest, lowest+lots*lot-1)
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
	return net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port)) //nolint:noctx // listening does not wait
}
