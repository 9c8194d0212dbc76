package main

import (
	"context"
	"net"
	"os/exec"
	"strings"
	"sync"
)

// enclosure is the network of one process: a network namespace in which proxies (wires) listen at
// the addresses of the servers. Kafka needs this: a broker tells clients its address, and the
// clients connect to that address. Without a namespace, they would bypass a proxy at another
// address.
type enclosure struct {
	servers   gate // cuts Cassandra, Redis and PostgreSQL
	log       gate // cuts Kafka
	providers gate // cuts the simulated providers

	wires     map[string]*wire // by the address of the server
	listeners []net.Listener
	serving   sync.WaitGroup
}

// newEnclosure returns the network for one process. The parameters servers, log and providers are
// lists of addresses (host:port); log has the addresses of the Kafka brokers. The caller must call
// the method end.
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

// addresses returns the addresses of all wires.
func (e *enclosure) addresses() (out []string) {
	for a := range e.wires {
		out = append(out, a)
	}
	return out
}

// start starts cmd in a new namespace, and starts the wires. When it returns, cmd.Process is the
// program in cmd, not a helper, so a signal reaches that program.
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

// sentBytes returns the number of bytes that the process has sent to providers.
func (e *enclosure) sentBytes() (n int64) {
	for _, w := range e.wires {
		if w.gate == &e.providers {
			n += w.bytes.Load()
		}
	}
	return n
}

// end opens every gate, closes all listeners and connections, and waits until the wires have
// ended.
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

// enclosed is the first argument of this program when it must prepare a new network namespace; see
// runEnclosed.
const enclosed = "enclosed"

func joined(addresses []string) string { return strings.Join(addresses, ",") }
