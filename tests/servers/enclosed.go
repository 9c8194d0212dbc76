package main

import (
	"context"
	"net"
	"os/exec"
	"strings"
	"sync"
)

// enclosure is the network of one process: a network namespace in which only wires listen, at
// the addresses of the servers. Brokers tell their clients to connect to advertised addresses,
// so a client would bypass a proxy at any other address. In its own namespace the process finds
// a proxy (wire) at the advertised address.
type enclosure struct {
	servers   gate // of Cassandra, Redis and PostgreSQL
	log       gate // of Kafka
	providers gate

	wires     map[string]*wire // by address
	listeners []net.Listener
	serving   sync.WaitGroup
}

// newEnclosure returns the network for one process. end must be called.
func newEnclosure(servers, log, providers []string) *enclosure {
	e := &enclosure{wires: map[string]*wire{}}
	for g, addresses := range map[*gate][]string{&e.servers: servers, &e.log: log, &e.providers: providers} {
		for _, a := range addresses {
			e.wires[a] = &wire{gate: g, dial: func(ctx context.Context) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "tcp", a)
			}}
		}
	}
	return e
}

// addresses of the wires.
func (e *enclosure) addresses() (out []string) {
	for a := range e.wires {
		out = append(out, a)
	}
	return out
}

// start starts cmd in the namespace, and the wires. cmd.Process is the program that cmd names,
// so signals reach it.
func (e *enclosure) start(ctx context.Context, cmd *exec.Cmd) error {
	addresses := e.addresses()
	listeners, err := startEnclosed(cmd, addresses)
	if err != nil {
		return err
	}
	e.listeners = listeners
	for i, l := range listeners {
		e.serving.Go(func() { e.wires[addresses[i]].serve(ctx, l) })
	}
	return nil
}

// called returns how many bytes the process has sent to providers.
func (e *enclosure) called() (n int64) {
	for _, w := range e.wires {
		if w.gate == &e.providers {
			n += w.bytes.Load()
		}
	}
	return n
}

// end opens every gate and closes the remaining connections.
func (e *enclosure) end() {
	for _, g := range []*gate{&e.servers, &e.log, &e.providers} {
		g.open()
	}
	for _, l := range e.listeners {
		l.Close()
	}
	for _, w := range e.wires {
		w.end()
	}
	e.serving.Wait()
}

// enclosed as the first argument makes this program prepare a namespace from inside; see
// runEnclosed.
const enclosed = "enclosed"

func joined(addresses []string) string { return strings.Join(addresses, ",") }
