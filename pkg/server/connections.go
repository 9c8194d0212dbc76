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

// Anybody may open connections to the API, and each connection needs memory while it is open. If
// MaxConns connections are open, the server closes one of them for each new connection. So a client
// that opens many connections cannot keep other clients out. The server closes the connection with
// the lowest rank, and within a rank the oldest. Connections without a verified token have lower
// ranks than connections of callers. A connection with a caller's request in progress is never
// closed.

// rank orders connections by how much harm it does to close them. The lowest rank is closed first.
type rank uint8

const (
	idleStranger rank = iota // no token and no request: new, in a handshake, or kept alive
	busyStranger             // no token, a request in progress
	idleCaller               // a token was verified on this connection; no request in progress
	busyCaller               // a caller's request in progress: never closed
	ranks
)

// slowStrangerAfter is how long a request without a token may be in progress. After that its
// connection is closed before an idle connection of a caller.
const slowStrangerAfter = 5 * time.Second

// maxEvictSearch is how many connections are looked at, at most, in the search for a connection with
// the same source as the new connection.
const maxEvictSearch = 256

// addConn adds c to the open connections. If maxOpen connections are already open, it first removes
// another connection and returns it (evicted). The caller must close that connection after it has
// unlocked mu. If no connection may be closed, c is not added, and the result ok is false. The
// caller holds mu.
func (l *connListener) addConn(c *listenerConn) (evicted *listenerConn, ok bool) {
	if l.open >= l.maxOpen {
		if evicted = l.connToClose(c.source); evicted == nil {
			return nil, false
		}
		l.removeConn(evicted)
	}
	l.open++
	l.bySource[c.source]++
	l.setRank(c, idleStranger)
	return evicted, true
}

// setRank gives c a rank and puts it at the end of the list of that rank. The caller holds mu.
func (l *connListener) setRank(c *listenerConn, to rank) {
	c.rank, c.since = to, time.Now()
	c.place = l.byRank[to].PushBack(c)
}

// oldestInRank returns the connection that has been in a rank for the longest time, or nil. The
// caller holds mu.
func (l *connListener) oldestInRank(of rank) *listenerConn {
	if e := l.byRank[of].Front(); e != nil {
		return e.Value.(*listenerConn) // the list contains only *listenerConn
	}
	return nil
}

// connToClose returns the connection to close for a new connection from a network (source). It
// returns nil if no connection may be closed. The caller holds mu.
func (l *connListener) connToClose(source netip.Prefix) *listenerConn {
	if l.bySource[source] > l.maxOpen/2 { // this source has more than half: close one of its connections
		for e, n := l.byRank[idleStranger].Front(), 0; e != nil && n < maxEvictSearch; e, n = e.Next(), n+1 {
			if c := e.Value.(*listenerConn); c.source == source { //nolint:forcetypeassert // as in oldestInRank
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

// removeConn removes c from the open connections. The caller holds mu.
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

// updateRank moves c to the rank for its state. It locks mu.
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

// withConn is the server's ConnContext. It stores the connection in the context of its requests.
func withConn(ctx context.Context, c net.Conn) context.Context {
	w, _ := c.(*listenerConn)
	return context.WithValue(ctx, connKey{}, w)
}

// markCallerConn records that a token was verified on the connection of a request.
func markCallerConn(r *http.Request) {
	c, _ := r.Context().Value(connKey{}).(*listenerConn)
	if c == nil || c.caller.Swap(true) {
		return
	}
	c.wire.updateRank(c, true, true)
}

// sourceOf returns the network of a client: the address for IPv4, and for IPv6 the /64 prefix,
// which usually belongs to one host.
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

// connListener is the listener of the API. It bounds the number of open connections.
type connListener struct {
	net.Listener
	newID            func() string // makes request ids
	maxOpen          int
	onEvict          func()        // called when a connection was closed for another connection
	firstByteTimeout time.Duration // how long a connection may wait for the first byte of its first request
	headerTimeout    time.Duration // time limit of the header, after the first byte
	requestTimeout   time.Duration // time limit of the whole request, after the first byte

	mu       sync.Mutex
	room     *sync.Cond // uses mu; signals that a waiting Accept may try again
	closed   bool
	open     int // number of open connections
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

// Accept returns the next connection. If maxOpen connections are already open, it closes one of
// them. If none of them may be closed, it waits.
func (l *connListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	w := &listenerConn{Conn: c, wire: l, source: sourceOf(c.RemoteAddr())}
	l.mu.Lock()
	evicted, ok := l.addConn(w)
	for !ok && !l.closed {
		l.room.Wait()
		evicted, ok = l.addConn(w)
	}
	l.mu.Unlock()
	if evicted != nil {
		l.onEvict()
		_ = evicted.Conn.Close()
	}
	if !ok {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	return w, nil
}

// Close makes Accept return. Open connections stay open.
func (l *connListener) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.room.Broadcast()
	return l.Listener.Close()
}

// onConnState is the server's ConnState callback.
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
		_ = w.Conn.SetReadDeadline(w.firstByteAt.Add(l.requestTimeout)) // net/http would count the time from when the connection was accepted
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
			all.Go(e.Value.(*listenerConn).answerAndClose) //nolint:forcetypeassert // as in oldestInRank
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
	requestUnderWay bool // a request is in progress
	answered        bool // the answer of that request has begun
	closedByDrain   bool // closed by answerAndClose

	// Only the connection's goroutine in net/http uses these fields, so they need no lock.
	firstByteAt time.Time // when the first byte arrived
	headerRead  bool      // the header of the first request was read

	source netip.Prefix
	caller atomic.Bool // a token was verified on this connection

	// connListener.mu guards the fields below. The field since is when the connection got its rank.
	// The field place is its element in the list of its rank, or nil if the connection is in no
	// list.
	rank  rank
	since time.Time
	place *list.Element
}

// Read gives a new connection much time for its first byte: as much as a connection has between two
// requests. Many clients, Go's too, open connections before they have a request. net/http would
// count the time for the header from the moment when the connection is accepted. It could then
// close a connection just when its client sends a request.
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

// drainAnswerTime is how long a client has to read the answer of a request that a drain interrupts.
const drainAnswerTime = time.Second

// answerAndClose closes the connection. If a request on the connection has no answer yet,
// answerAndClose first answers 503. It writes this answer itself, because the handler may hang.
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
