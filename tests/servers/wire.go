package main

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
)

// gate can cut the connections of wires. While the gate is shut, its wires forward no bytes, but
// their connections stay open. Several wires can share a gate; then they are cut at the same
// moment.
type gate struct {
	mu     sync.Mutex
	opened chan struct{} // closed when the gate opens; nil: the gate is open
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened == nil {
		g.opened = make(chan struct{})
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened != nil {
		close(g.opened)
		g.opened = nil
	}
}

// pass waits until the gate is open.
func (g *gate) pass() {
	g.mu.Lock()
	opened := g.opened
	g.mu.Unlock()
	if opened != nil {
		<-opened
	}
}

// wire is a TCP proxy for one address. When its gate opens, it forwards the bytes that clients sent
// while the gate was shut, even if the client has closed its connection. A real network does the
// same after a cut, because TCP sends undelivered bytes again.
type wire struct {
	gate  *gate
	dial  func(context.Context) (net.Conn, error)
	bytes atomic.Int64 // number of bytes forwarded from clients to the server

	mu    sync.Mutex
	conns map[net.Conn]bool
	ended bool
}

// serve forwards the connections of l until l is closed. It returns when all these connections have
// ended.
func (w *wire) serve(ctx context.Context, l net.Listener) {
	var forwards sync.WaitGroup
	defer forwards.Wait()
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		forwards.Go(func() { w.forward(ctx, client) })
	}
}

func (w *wire) forward(ctx context.Context, client net.Conn) {
	defer client.Close()
	w.gate.pass()
	server, err := w.dial(ctx)
	if err != nil {
		return
	}
	defer server.Close()
	if !w.keep(client, server) {
		return
	}
	defer w.drop(client, server)
	var both sync.WaitGroup
	both.Go(func() { w.copyBytes(server, client, &w.bytes) })
	both.Go(func() { w.copyBytes(client, server, new(atomic.Int64)) })
	both.Wait()
}

// copyBytes forwards bytes from source to target until the source ends. Then it closes the target
// for writing. It adds the number of forwarded bytes to the counter total.
func (w *wire) copyBytes(target, source net.Conn, total *atomic.Int64) {
	buf := make([]byte, 64<<10)
	for {
		n, err := source.Read(buf)
		w.gate.pass()
		if n > 0 {
			if _, failed := target.Write(buf[:n]); failed != nil {
				err = failed
			}
			total.Add(int64(n))
		}
		if err != nil {
			if half, ok := target.(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite() // the other direction stays open
			} else {
				target.Close()
			}
			return
		}
	}
}

// keep records connections, so that the method end can close them. If end was called before, keep
// returns false, and the caller must close the connections.
func (w *wire) keep(conns ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conns == nil {
		w.conns = map[net.Conn]bool{}
	}
	for _, c := range conns {
		w.conns[c] = true
	}
	return !w.ended
}

func (w *wire) drop(conns ...net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range conns {
		delete(w.conns, c)
	}
}

// end closes every connection. After that, the method forward closes new connections at once.
func (w *wire) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	for c := range w.conns {
		c.Close()
	}
}
