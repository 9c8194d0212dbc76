package server

import (
	"bytes"
	"container/list"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Anybody may open connections to the API, and each holds memory for as long as it is
// open. At MaxConns a new connection closes another one, so that a client that opens many
// keeps no other client out. The rank decides which one, and among equals the oldest goes
// first. Connections on which no token was ever verified go before callers' connections,
// and a request of a caller is never cut off.

// rank orders connections by how much is lost when they are closed.
type rank uint8

const (
	idleStranger rank = iota // no token, no request: new, in a handshake, or kept alive
	busyStranger             // no token, a request under way
	idleCaller               // a token was verified on it; no request
	busyCaller               // a caller's request is under way: it is not closed
	ranks
)

// slowStranger is how long a request without a token may be under way before it is
// closed rather than a caller's idle connection.
const slowStranger = 5 * time.Second

// maxLooked bounds the search for a connection of the newcomer's own address.
const maxLooked = 256

// add puts c among the open connections, and closes another one for it at the limit. ok
// is false if none may be closed; c was not added then.
func (l *wire) add(c *wireConn) (closes *wireConn, ok bool) {
	if l.open >= l.most {
		if closes = l.toClose(c.source); closes == nil {
			return nil, false
		}
		l.drop(closes)
	}
	l.open++
	l.bySource[c.source]++
	l.rank(c, idleStranger)
	return closes, true
}

// rank puts c last into a rank. It needs the lock.
func (l *wire) rank(c *wireConn, to rank) {
	c.rank, c.since = to, time.Now()
	c.place = l.byRank[to].PushBack(c)
}

// longest returns the connection that is in a rank for longest; nil: it is empty. It
// needs the lock.
func (l *wire) longest(of rank) *wireConn {
	if e := l.byRank[of].Front(); e != nil {
		return e.Value.(*wireConn) //nolint:forcetypeassert // it holds nothing else
	}
	return nil
}

// toClose returns the connection that makes room for one of source; nil: none may be
// closed. It needs the lock.
func (l *wire) toClose(source netip.Prefix) *wireConn {
	if l.bySource[source] > l.most/2 { // it makes room for itself
		for e, n := l.byRank[idleStranger].Front(), 0; e != nil && n < maxLooked; e, n = e.Next(), n+1 {
			if c := e.Value.(*wireConn); c.source == source { //nolint:forcetypeassert // as in longest
				return c
			}
		}
	}
	busy := l.longest(busyStranger)
	if c := l.longest(idleStranger); c != nil {
		return c
	}
	if c := l.longest(idleCaller); c != nil && (busy == nil || time.Since(busy.since) < slowStranger) {
		return c
	}
	return busy
}

// drop takes c out of the open connections. It needs the lock.
func (l *wire) drop(c *wireConn) {
	if c.place == nil {
		return
	}
	l.byRank[c.rank].Remove(c.place)
	c.place = nil
	l.open--
	if l.bySource[c.source]--; l.bySource[c.source] == 0 {
		delete(l.bySource, c.source)
	}
	l.room.Signal()
}

// move puts c into another rank.
func (l *wire) move(c *wireConn, busy, caller bool) {
	to := idleStranger
	switch {
	case busy && caller:
		to = busyCaller
	case caller:
		to = idleCaller
	case busy:
		to = busyStranger
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.place == nil {
		return
	}
	l.byRank[c.rank].Remove(c.place)
	l.rank(c, to)
	if to != busyCaller {
		l.room.Signal()
	}
}

type connKey struct{}

// withConn is the server's ConnContext: it lets a request find its connection.
func withConn(ctx context.Context, c net.Conn) context.Context {
	w, _ := c.(*wireConn)
	return context.WithValue(ctx, connKey{}, w)
}

// ofCaller marks the connection of a request whose token was verified.
func ofCaller(r *http.Request) {
	c, _ := r.Context().Value(connKey{}).(*wireConn)
	if c == nil || c.caller.Swap(true) {
		return
	}
	c.wire.move(c, true, true)
}

// sourceOf is the address of a client: all of IPv4, and of IPv6 the network of 64 bits
// that one host is given.
func sourceOf(a net.Addr) netip.Prefix {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	addr := tcp.AddrPort().Addr().Unmap()
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	p, _ := addr.Prefix(bits) // an address that is not valid has none
	return p
}

// wire is the API's listener. At most so many of its connections are open at a time.
type wire struct {
	net.Listener
	newID   func() string // of a request
	most    int
	crowded func()        // a connection was closed for another one
	idle    time.Duration // how long a connection may wait for the first byte of its first request
	header  time.Duration // from there: until its header is there
	request time.Duration // from there: until all of it is there

	mu       sync.Mutex
	room     *sync.Cond // of mu: a waiting Accept may look again
	closed   bool
	open     int // connections
	bySource map[netip.Prefix]int
	byRank   [ranks]list.List // of *wireConn, the one first that is in its rank for longest
}

func newWire(cfg Config, newID func() string, crowded func()) *wire {
	l := &wire{
		Listener: cfg.Listener, newID: newID, most: cfg.MaxConns, crowded: crowded, bySource: map[netip.Prefix]int{},
		idle: cfg.IdleTimeout, header: cfg.ReadHeaderTimeout, request: cfg.ReadTimeout,
	}
	l.room = sync.NewCond(&l.mu)
	return l
}

// Accept returns the next connection. At the limit it closes another one for it, or
// waits while none may be closed.
func (l *wire) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	w := &wireConn{Conn: c, wire: l, source: sourceOf(c.RemoteAddr())}
	l.mu.Lock()
	closes, ok := l.add(w)
	for !ok && !l.closed {
		l.room.Wait()
		closes, ok = l.add(w)
	}
	l.mu.Unlock()
	if closes != nil {
		l.crowded()
		_ = closes.Conn.Close()
	}
	if !ok {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	return w, nil
}

// Close ends Accept, and leaves open connections alone.
func (l *wire) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.room.Broadcast()
	return l.Listener.Close()
}

// state is the server's ConnState.
func (l *wire) state(c net.Conn, s http.ConnState) {
	w, ok := c.(*wireConn)
	if !ok {
		return
	}
	if s == http.StateActive || s == http.StateIdle {
		l.move(w, s == http.StateActive, w.caller.Load())
	}
	if s == http.StateActive && !w.begun {
		w.begun = true
		_ = w.Conn.SetReadDeadline(w.first.Add(l.request)) // net/http set it from when it accepted the connection
	}
	w.mu.Lock()
	w.asked, w.answered = s == http.StateActive, false
	w.mu.Unlock()
}

// cut answers each request that has no answer yet and closes every connection.
func (l *wire) cut() {
	var all sync.WaitGroup
	l.mu.Lock()
	for i := range l.byRank {
		for e := l.byRank[i].Front(); e != nil; e = e.Next() {
			all.Go(e.Value.(*wireConn).cut) //nolint:forcetypeassert // as in longest
		}
	}
	l.mu.Unlock()
	all.Wait()
}

// wireConn is a connection of a wire.
type wireConn struct {
	net.Conn
	wire *wire

	mu       sync.Mutex
	asked    bool // a request is under way
	answered bool // and its answer begun
	over     bool // by cut

	// Used by net/http's goroutine of the connection alone.
	first time.Time // when its first byte came
	begun bool      // its first request has a header

	source netip.Prefix
	caller atomic.Bool // a token was verified on it

	// Guarded by the wire's lock: its rank, since when, and its place there; nil: it is
	// not among the open ones.
	rank  rank
	since time.Time
	place *list.Element
}

// Read lets a new connection wait for its first byte as long as one waits between two
// requests. For net/http the time for the header begins when a connection is accepted, but
// clients open connections ahead and keep them (Go's own does): a request that was sent on
// one just when that time was over would find it closed.
func (c *wireConn) Read(p []byte) (int, error) {
	if !c.first.IsZero() {
		return c.Conn.Read(p)
	}
	if err := c.Conn.SetReadDeadline(time.Now().Add(c.wire.idle)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(p)
	c.first = time.Now()
	if err != nil {
		return n, err
	}
	return n, c.Conn.SetReadDeadline(c.first.Add(c.wire.header))
}

// Write notes that the answer has begun: cut sends none into it.
func (c *wireConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	if c.over {
		c.mu.Unlock()
		return 0, net.ErrClosed
	}
	c.answered = c.answered || !bytes.HasPrefix(p, []byte("HTTP/1.1 100 "))
	c.mu.Unlock()
	return c.Conn.Write(p)
}

func (c *wireConn) Close() error {
	c.wire.mu.Lock()
	c.wire.drop(c)
	c.wire.mu.Unlock()
	return c.Conn.Close()
}

// cutTime is how long a client has to take the answer of a cut request.
const cutTime = time.Second

// cut closes the connection. If a request on it has no answer yet, cut answers 503 first:
// its handler may hang, so only the connection can answer.
func (c *wireConn) cut() {
	c.mu.Lock()
	c.over = true
	waits := c.asked && !c.answered
	c.mu.Unlock()
	_ = c.Conn.SetWriteDeadline(time.Now().Add(cutTime))
	if waits {
		id := c.wire.newID()
		p := problemOf(&notify.Error{Code: "draining", Msg: "this server stops: the request was not done in time, and what it asked for may or may not have been"}, http.StatusServiceUnavailable)
		p.RequestID = id
		body, _ := json.Marshal(p) // strings and a number always marshal
		answer := http.Response{
			StatusCode: http.StatusServiceUnavailable, ProtoMajor: 1, ProtoMinor: 1, Close: true,
			Header: http.Header{"Content-Type": typeProblem, "Cache-Control": noStore, "Retry-After": {"1"}, api.HeaderRequestID: {id}},
			Body:   io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
		}
		var b bytes.Buffer
		_ = answer.Write(&b)
		_, _ = c.Conn.Write(b.Bytes())
	}
	_ = c.Close()
}
