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

// Anybody may open connections to the API, and each holds memory for as long as it is open. At
// MaxConns a new connection closes another one, so that a client that opens many keeps no other
// client out. The connection of the lowest rank goes first, and among equals the oldest.
// Connections without a verified token go before callers' connections, and a caller's request is
// never cut off.

// rank orders connections by how much is lost when they are closed.
type rank uint8

const (
	idleStranger rank = iota // no token, no request: new, in a handshake, or kept alive
	busyStranger             // no token, a request under way
	idleCaller               // a token was verified on it; no request
	busyCaller               // a caller's request is under way: never closed
	ranks
)

// slowStrangerAfter is how long a request without a token may be under way. After that it is
// closed before a caller's idle connection.
const slowStrangerAfter = 5 * time.Second

// maxEvictSearch bounds the search for a connection from the new connection's own address.
const maxEvictSearch = 256

// addConn adds c to the open connections. At the limit it first removes another one and returns
// it in closes; the caller closes it after unlocking. ok is false if none may be closed; c is not
// added then. It needs the lock.
func (l *connListener) addConn(c *listenerConn) (closes *listenerConn, ok bool) {
	if l.open >= l.maxOpen {
		if closes = l.connToClose(c.source); closes == nil {
			return nil, false
		}
		l.removeConn(closes)
	}
	l.open++
	l.bySource[c.source]++
	l.setRank(c, idleStranger)
	return closes, true
}

// setRank moves c to the end of a rank. It needs the lock.
func (l *connListener) setRank(c *listenerConn, to rank) {
	c.rank, c.since = to, time.Now()
	c.place = l.byRank[to].PushBack(c)
}

// oldestInRank returns the connection that is in a rank for longest, or nil. It needs the lock.
func (l *connListener) oldestInRank(of rank) *listenerConn {
	if e := l.byRank[of].Front(); e != nil {
		return e.Value.(*listenerConn) //nolint:forcetypeassert // it holds nothing else
	}
	return nil
}

// connToClose returns the connection to close for a new one from source, or nil if none may be
// closed. It needs the lock.
func (l *connListener) connToClose(source netip.Prefix) *listenerConn {
	if l.bySource[source] > l.maxOpen/2 { // this source holds over half: it gives up one of its own
		for e, n := l.byRank[idleStranger].Front(), 0; e != nil && n < maxEvictSearch; e, n = e.Next(), n+1 {
			if c := e.Value.(*listenerConn); c.source == source { //nolint:forcetypeassert // as in longest
				return c
			}
		}
	}
	busy := l.oldestInRank(busyStranger)
	if c := l.oldestInRank(idleStranger); c != nil {
		return c
	}
	if c := l.oldestInRank(idleCaller); c != nil && (busy == nil || time.Since(busy.since) < slowStrangerAfter) {
		return c
	}
	return busy
}

// removeConn removes c from the open connections. It needs the lock.
func (l *connListener) removeConn(c *listenerConn) {
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

// updateRank moves c into the rank for its state. It takes the lock.
func (l *connListener) updateRank(c *listenerConn, busy, caller bool) {
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
	l.setRank(c, to)
	if to != busyCaller {
		l.room.Signal()
	}
}

type connKey struct{}

// withConn is the server's ConnContext. It lets a request find its connection.
func withConn(ctx context.Context, c net.Conn) context.Context {
	w, _ := c.(*listenerConn)
	return context.WithValue(ctx, connKey{}, w)
}

// markCallerConn marks the connection of a request whose token was verified.
func markCallerConn(r *http.Request) {
	c, _ := r.Context().Value(connKey{}).(*listenerConn)
	if c == nil || c.caller.Swap(true) {
		return
	}
	c.wire.updateRank(c, true, true)
}

// sourceOf returns the network of a client: the address for IPv4, and for IPv6 the /64 that one
// host is usually given.
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
	p, _ := addr.Prefix(bits) // an invalid address has no prefix
	return p
}

// connListener is the API's listener. It bounds the number of open connections.
type connListener struct {
	net.Listener
	newID            func() string // makes request ids
	maxOpen          int
	onEvict          func()        // called when a connection was closed for another one
	firstByteTimeout time.Duration // how long a connection may wait for the first byte of its first request
	headerTimeout    time.Duration // time for the header, after the first byte
	requestTimeout   time.Duration // time for the whole request, after the first byte

	mu       sync.Mutex
	room     *sync.Cond // uses mu; signals that a waiting Accept may try again
	closed   bool
	open     int // connections
	bySource map[netip.Prefix]int
	byRank   [ranks]list.List // of *listenerConn, the oldest first
}

func newConnListener(cfg Config, newID func() string, crowded func()) *connListener {
	l := &connListener{
		Listener: cfg.Listener, newID: newID, maxOpen: cfg.MaxConns, onEvict: crowded, bySource: map[netip.Prefix]int{},
		firstByteTimeout: cfg.IdleTimeout, headerTimeout: cfg.ReadHeaderTimeout, requestTimeout: cfg.ReadTimeout,
	}
	l.room = sync.NewCond(&l.mu)
	return l
}

// Accept returns the next connection. At the limit it closes another one, or waits while none may
// be closed.
func (l *connListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	w := &listenerConn{Conn: c, wire: l, source: sourceOf(c.RemoteAddr())}
	l.mu.Lock()
	closes, ok := l.addConn(w)
	for !ok && !l.closed {
		l.room.Wait()
		closes, ok = l.addConn(w)
	}
	l.mu.Unlock()
	if closes != nil {
		l.onEvict()
		_ = closes.Conn.Close()
	}
	if !ok {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	return w, nil
}

// Close ends Accept. Open connections stay open.
func (l *connListener) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.room.Broadcast()
	return l.Listener.Close()
}

// onConnState is the server's ConnState.
func (l *connListener) onConnState(c net.Conn, s http.ConnState) {
	w, ok := c.(*listenerConn)
	if !ok {
		return
	}
	if s == http.StateActive || s == http.StateIdle {
		l.updateRank(w, s == http.StateActive, w.caller.Load())
	}
	if s == http.StateActive && !w.headerRead {
		w.headerRead = true
		_ = w.Conn.SetReadDeadline(w.firstByteAt.Add(l.requestTimeout)) // net/http counts from when it accepted the connection
	}
	w.mu.Lock()
	w.requestUnderWay, w.answered = s == http.StateActive, false
	w.mu.Unlock()
}

// closeAll answers each request that has no answer yet, and closes every connection.
func (l *connListener) closeAll() {
	var all sync.WaitGroup
	l.mu.Lock()
	for i := range l.byRank {
		for e := l.byRank[i].Front(); e != nil; e = e.Next() {
			all.Go(e.Value.(*listenerConn).answerAndClose) //nolint:forcetypeassert // as in longest
		}
	}
	l.mu.Unlock()
	all.Wait()
}

// listenerConn is a connection of a connListener.
type listenerConn struct {
	net.Conn
	wire *connListener

	mu              sync.Mutex
	requestUnderWay bool // a request is under way
	answered        bool // its answer has begun
	closedByDrain   bool // closed by answerAndClose

	// Used only by the connection's goroutine in net/http, so no lock is needed.
	firstByteAt time.Time // when the first byte came
	headerRead  bool      // the header of the first request was read

	source netip.Prefix
	caller atomic.Bool // a token was verified on it

	// Guarded by connListener.mu: the rank, since when, and the element in that rank. place is
	// nil if the connection is not among the open ones.
	rank  rank
	since time.Time
	place *list.Element
}

// Read gives a new connection as much time for its first byte as a connection has between two
// requests. In net/http the time for the header starts when a connection is accepted. But clients
// (Go's own, too) open connections in advance: a request sent on such a connection just when the
// time is over would find it closed.
func (c *listenerConn) Read(p []byte) (int, error) {
	if !c.firstByteAt.IsZero() {
		return c.Conn.Read(p)
	}
	if err := c.Conn.SetReadDeadline(time.Now().Add(c.wire.firstByteTimeout)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(p)
	c.firstByteAt = time.Now()
	if err != nil {
		return n, err
	}
	return n, c.Conn.SetReadDeadline(c.firstByteAt.Add(c.wire.headerTimeout))
}

// Write records that the answer has begun, so that answerAndClose does not write into it.
func (c *listenerConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	if c.closedByDrain {
		c.mu.Unlock()
		return 0, net.ErrClosed
	}
	c.answered = c.answered || !bytes.HasPrefix(p, []byte("HTTP/1.1 100 "))
	c.mu.Unlock()
	return c.Conn.Write(p)
}

func (c *listenerConn) Close() error {
	c.wire.mu.Lock()
	c.wire.removeConn(c)
	c.wire.mu.Unlock()
	return c.Conn.Close()
}

// drainAnswerTime is how long a client has to read the answer of a request that a drain cuts off.
const drainAnswerTime = time.Second

// answerAndClose closes the connection. If a request on it has no answer yet, it first answers
// 503: the handler may hang, so only the connection can answer.
func (c *listenerConn) answerAndClose() {
	c.mu.Lock()
	c.closedByDrain = true
	waits := c.requestUnderWay && !c.answered
	c.mu.Unlock()
	_ = c.Conn.SetWriteDeadline(time.Now().Add(drainAnswerTime))
	if waits {
		id := c.wire.newID()
		p := problemOf(&notify.Error{Code: "draining", Msg: "this server is stopping and the request did not end in time: it may or may not have been carried out"}, http.StatusServiceUnavailable)
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
