package server

import (
	"bytes"
	"context"
	"crypto/tls"
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

// connList is a doubly linked list of connections, the one first that is in its rank
// for longest.
type connList struct{ first, last *wireConn }

func (l *connList) push(c *wireConn) {
	c.prev, c.next = l.last, nil
	if l.last != nil {
		l.last.next = c
	} else {
		l.first = c
	}
	l.last = c
}

func (l *connList) remove(c *wireConn) {
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		l.first = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	} else {
		l.last = c.prev
	}
	c.prev, c.next = nil, nil
}

// add puts c among the open connections. At the limit it returns the connection to
// close for it, which is no longer among them; if there is none either, c was not
// added and ok is false.
func (l *wire) add(c *wireConn) (closes *wireConn, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) >= l.most {
		if closes = l.toClose(c.source); closes == nil {
			l.waits = true
			return nil, false
		}
		l.drop(closes)
	}
	l.open[c] = struct{}{}
	l.bySource[c.source]++
	c.since = time.Now()
	l.byRank[c.rank].push(c)
	return closes, true
}

// toClose returns the connection that makes room for one of source; nil: none may be
// closed. It needs the lock.
func (l *wire) toClose(source netip.Prefix) *wireConn {
	strangers := &l.byRank[idleStranger]
	if l.bySource[source] > l.most/2 { // it makes room for itself
		for c, n := strangers.first, 0; c != nil && n < maxLooked; c, n = c.next, n+1 {
			if c.source == source {
				return c
			}
		}
	}
	busy := l.byRank[busyStranger].first
	switch {
	case strangers.first != nil:
		return strangers.first
	case busy != nil && time.Since(busy.since) >= slowStranger:
		return busy
	case l.byRank[idleCaller].first != nil:
		return l.byRank[idleCaller].first
	}
	return busy
}

// drop takes c out of the open connections. It needs the lock.
func (l *wire) drop(c *wireConn) {
	if _, ok := l.open[c]; !ok {
		return
	}
	delete(l.open, c)
	l.byRank[c.rank].remove(c)
	if l.bySource[c.source]--; l.bySource[c.source] == 0 {
		delete(l.bySource, c.source)
	}
	l.wake()
}

// wake lets a waiting Accept look again. It needs the lock.
func (l *wire) wake() {
	if l.waits {
		l.waits = false
		l.room <- struct{}{} // it holds one, and Accept waits for one at a time
	}
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
	if _, ok := l.open[c]; !ok {
		return
	}
	l.byRank[c.rank].remove(c)
	c.rank, c.since = to, time.Now()
	l.byRank[to].push(c)
	if to != busyCaller {
		l.wake()
	}
}

// wireOf returns the connection below c, which TLS may lie over; nil: c is none of a
// wire.
func wireOf(c net.Conn) *wireConn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	w, _ := c.(*wireConn)
	return w
}

type connKey struct{}

// withConn is the server's ConnContext: it lets a request find its connection.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, wireOf(c))
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
	crowded func() // a connection was closed for another one

	room   chan struct{} // of one: Accept may look again
	closed chan struct{}
	once   sync.Once

	mu       sync.Mutex
	open     map[*wireConn]struct{}
	bySource map[netip.Prefix]int
	byRank   [ranks]connList
	waits    bool // Accept waits for room
}

func newWire(ln net.Listener, most int, newID func() string, crowded func()) *wire {
	return &wire{
		Listener: ln, newID: newID, most: most, crowded: crowded,
		room: make(chan struct{}, 1), closed: make(chan struct{}),
		open: map[*wireConn]struct{}{}, bySource: map[netip.Prefix]int{},
	}
}

// Accept returns the next connection. At the limit it closes another one for it, or
// waits while none may be closed.
func (l *wire) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	w := &wireConn{Conn: c, wire: l, source: sourceOf(c.RemoteAddr())}
	for {
		closes, ok := l.add(w)
		if closes != nil {
			l.crowded()
			_ = closes.Conn.Close()
		}
		if ok {
			return w, nil
		}
		select {
		case <-l.room:
		case <-l.closed:
			_ = c.Close()
			return nil, net.ErrClosed
		}
	}
}

// Close ends Accept, and leaves open connections alone.
func (l *wire) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// state is the server's ConnState.
func (l *wire) state(c net.Conn, s http.ConnState) {
	w := wireOf(c)
	if w == nil {
		return
	}
	if s == http.StateActive || s == http.StateIdle {
		l.move(w, s == http.StateActive, w.caller.Load())
	}
	if w != c {
		return // TLS lies over it: what it carries is not ours to answer
	}
	w.mu.Lock()
	w.asked, w.answered = s == http.StateActive, false
	w.mu.Unlock()
}

// cut answers each request that has no answer yet and closes every connection.
func (l *wire) cut() {
	l.mu.Lock()
	open := make([]*wireConn, 0, len(l.open))
	for c := range l.open {
		open = append(open, c)
	}
	l.mu.Unlock()
	var all sync.WaitGroup
	for _, c := range open {
		all.Go(c.cut)
	}
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

	source netip.Prefix
	caller atomic.Bool // a token was verified on it

	// Guarded by the wire's lock: its place in byRank, and since when.
	rank       rank
	since      time.Time
	prev, next *wireConn
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
