package server

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// What net/http answers by itself, before there is a request for a handler, and
// what is cut off at the end of a drain, is a problem too. Only the connection
// sees both. Behind TLS it sees nothing: there net/http's own answers are plain
// text, and what is cut is closed.

// wire is a listener whose connections answer with problems. At most so many of them
// are open at a time: see connections.go.
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

// Write sends what net/http says, unless it is an answer of its own.
func (c *wireConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	if c.over {
		c.mu.Unlock()
		return 0, net.ErrClosed
	}
	c.answered = c.answered || !bytes.HasPrefix(p, continues)
	c.mu.Unlock()
	if status, why := ownAnswer(p); status != 0 {
		if _, err := c.Conn.Write(problemAnswer(status, api.CodeMalformed, why, c.wire.newID(), 0)); err != nil {
			return 0, err
		}
		return len(p), nil
	}
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

func (c *wireConn) cut() {
	c.mu.Lock()
	c.over = true
	waits := c.asked && !c.answered
	c.mu.Unlock()
	_ = c.Conn.SetWriteDeadline(time.Now().Add(cutTime))
	if waits {
		_, _ = c.Conn.Write(problemAnswer(http.StatusServiceUnavailable, "draining",
			"this server stops: the request was not done in time, and what it asked for may or may not have been", c.wire.newID(), time.Second))
	}
	_ = c.Close()
}

var (
	continues = []byte("HTTP/1.1 100 ")
	refusals  = []byte("HTTP/1.1 4")
	failures  = []byte("HTTP/1.1 5")
	// What net/http writes behind the status of an answer of its own, all of it
	// in one write; an answer of a handler has no such headers, for its text is
	// JSON, in which no line ends.
	ownHeaders  = []byte("\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n")
	expectation = []byte("HTTP/1.1 417 ")
)

// ownAnswer returns the status of an answer of net/http's own, and what is wrong
// with the request; 0: p is none.
func ownAnswer(p []byte) (status int, why string) {
	if !bytes.HasPrefix(p, refusals) && !bytes.HasPrefix(p, failures) {
		return 0, ""
	}
	line, _, ok := bytes.Cut(p, []byte("\r\n"))
	if !ok || len(line) < 12 {
		return 0, ""
	}
	if !bytes.HasPrefix(p, expectation) && !bytes.HasPrefix(p[len(line):], ownHeaders) {
		return 0, ""
	}
	status, err := strconv.Atoi(string(line[9:12]))
	if err != nil {
		return 0, ""
	}
	switch status {
	case http.StatusExpectationFailed:
		return status, "Expect takes 100-continue and nothing else"
	case http.StatusRequestHeaderFieldsTooLarge:
		return status, "the request line and the headers are too large"
	case http.StatusNotImplemented:
		return status, "Transfer-Encoding takes chunked and nothing else"
	case http.StatusHTTPVersionNotSupported:
		return status, "this server speaks HTTP/1.0 and HTTP/1.1, and HTTP/2 over TLS"
	}
	why = "not a valid HTTP request"
	if _, more, ok := bytes.Cut(line, []byte(": ")); ok {
		why += ": " + string(more)
	}
	return status, why
}

// problemAnswer is a whole answer, after which the connection closes.
func problemAnswer(status int, code, detail, id string, retry time.Duration) []byte {
	p := problemOf(&notify.Error{Code: code, Msg: detail}, status)
	p.RequestID = id
	body, _ := json.Marshal(p) // strings and a number always marshal
	body = append(body, '\n')
	b := append(make([]byte, 0, 512+len(body)), "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(append(b, ' '), http.StatusText(status)...)
	b = append(b, "\r\nContent-Type: "+api.TypeProblem+"\r\nCache-Control: no-store\r\nConnection: close\r\n"+api.HeaderRequestID+": "+id+"\r\n"...)
	if retry > 0 {
		b = append(strconv.AppendInt(append(b, "Retry-After: "...), seconds(retry), 10), "\r\n"...)
	}
	b = append(strconv.AppendInt(append(b, "Content-Length: "...), int64(len(body)), 10), "\r\n\r\n"...)
	return append(b, body...)
}
