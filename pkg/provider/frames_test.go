package provider

import (
	"bytes"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// frameServer is an HTTP/2 server on the level of frames. Unlike that of net/http it can change
// its limit, refuse streams and send GOAWAY whenever a test wants.
type frameServer struct {
	t      *testing.T
	l      net.Listener
	onPush func(c *frameConn, stream uint32) // the request of a stream is complete
	limit  uint32                            // streams of a new connection

	mu    sync.Mutex
	conns []*frameConn
	over  int // streams opened above the limit in force
}

type frameConn struct {
	s      *frameServer
	number int // from 1

	mu    sync.Mutex
	fr    *http2.Framer
	nc    net.Conn
	limit int
	open  map[uint32]bool
	hdrs  hpack.Encoder
	buf   bytes.Buffer
}

func newFrameServer(t *testing.T, limit uint32, onPush func(c *frameConn, stream uint32)) *frameServer {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &frameServer{t: t, l: l, onPush: onPush, limit: limit}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { s.serve(nc) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		for _, c := range s.all() {
			c.nc.Close()
		}
		wg.Wait()
	})
	return s
}

func (s *frameServer) all() []*frameConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*frameConn(nil), s.conns...)
}

func (s *frameServer) url() *url.URL { return &url.URL{Scheme: "http", Host: s.l.Addr().String()} }

func (s *frameServer) serve(nc net.Conn) {
	defer nc.Close()
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := nc.Read(preface); err != nil || string(preface) != http2.ClientPreface {
		return
	}
	c := &frameConn{s: s, fr: http2.NewFramer(nc, nc), nc: nc, open: map[uint32]bool{}, limit: int(s.limit)}
	c.hdrs = *hpack.NewEncoder(&c.buf)
	s.mu.Lock()
	s.conns = append(s.conns, c)
	c.number = len(s.conns)
	s.mu.Unlock()
	c.settings(s.limit)
	for {
		f, err := c.fr.ReadFrame()
		if err != nil {
			return
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				c.write(func() { c.fr.WriteSettingsAck() })
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				c.write(func() { c.fr.WritePing(true, f.Data) })
			}
		case *http2.HeadersFrame:
			c.mu.Lock()
			c.open[f.StreamID] = true
			over := len(c.open) > c.limit
			c.mu.Unlock()
			if over {
				s.mu.Lock()
				s.over++
				s.mu.Unlock()
			}
		case *http2.DataFrame:
			c.write(func() { c.fr.WriteWindowUpdate(0, uint32(len(f.Data()))) })
			if f.StreamEnded() {
				s.onPush(c, f.StreamID)
			}
		}
	}
}

func (c *frameConn) write(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func (c *frameConn) settings(limit uint32) {
	c.write(func() {
		c.limit = int(limit)
		c.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: limit})
	})
}

func (c *frameConn) ok(stream uint32) {
	c.write(func() {
		c.buf.Reset()
		c.hdrs.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
		delete(c.open, stream)
		c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: c.buf.Bytes(), EndHeaders: true, EndStream: true})
	})
}

func (c *frameConn) reset(stream uint32, code http2.ErrCode) {
	c.write(func() { delete(c.open, stream); c.fr.WriteRSTStream(stream, code) })
}

func (c *frameConn) goAway(last uint32, code http2.ErrCode) {
	c.write(func() { c.fr.WriteGoAway(last, code, []byte(`{"reason":"Shutdown"}`)) })
}

func framePusher(start func(e Endpoint, n int) pusher, s *frameServer) pusher {
	return start(Endpoint{BaseURL: s.url().String(), Timeout: time.Minute}, 1)
}

func allClass(t *testing.T, rs []notify.Result, class notify.Class) {
	t.Helper()
	for i, r := range rs {
		if r.Class != class {
			t.Fatalf("%d: %+v, want %v", i, r, class)
		}
	}
}

// APNs allows one stream until it has seen a valid token, and may take the limit
// back later: the limit in force is never exceeded, nor another connection opened.
func TestFramesSettings(t *testing.T) { withPushers(t, testFramesSettings) }

func testFramesSettings(t *testing.T, start func(e Endpoint, n int) pusher) {
	var mu sync.Mutex
	n := 0
	s := newFrameServer(t, 1, nil)
	s.onPush = func(c *frameConn, stream uint32) {
		mu.Lock()
		n++
		now := n
		mu.Unlock()
		if now == 1 {
			c.settings(50)
		}
		c.ok(stream)
	}
	a := framePusher(start, s)
	allClass(t, collect(t, t.Context(), a, testCall(notify.Push, notify.Content{Body: "b"}, 3000, deviceToken)), notify.ClassAccepted)
	s.mu.Lock()
	over := s.over
	s.mu.Unlock()
	if over > 0 || len(s.all()) != 1 {
		t.Errorf("%d streams above the limit, %d connections", over, len(s.all()))
	}
	if st := a.pool.Stats(); st.Streams != 50 {
		t.Errorf("%+v", st)
	}
}

// Pushes that a GOAWAY or a refused stream excluded are sent again, at once and once. Pushes
// that it leaves open are ambiguous.
func TestFramesGoAway(t *testing.T) { withPushers(t, testFramesGoAway) }

func testFramesGoAway(t *testing.T, start func(e Endpoint, n int) pusher) {
	var mu sync.Mutex
	taken, gone := 0, false
	s := newFrameServer(t, 100, nil)
	s.onPush = func(c *frameConn, stream uint32) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case c.number == 1 && stream > 41:
			if !gone {
				gone = true
				c.goAway(41, http2.ErrCodeNo)
			}
			return // not processed
		case stream == 7 && c.number == 2: // one: a push is begun three times at most, and may have been cut by the GOAWAY
			c.reset(stream, http2.ErrCodeRefusedStream)
			return
		}
		taken++
		c.ok(stream)
	}
	a := framePusher(start, s)
	allClass(t, collect(t, t.Context(), a, testCall(notify.Push, notify.Content{Body: "b"}, 500, deviceToken)), notify.ClassAccepted)
	mu.Lock()
	defer mu.Unlock()
	if taken != 500 || len(s.all()) != 2 {
		t.Errorf("taken %d times over %d connections", taken, len(s.all()))
	}
}

func TestFramesAmbiguous(t *testing.T) { withPushers(t, testFramesAmbiguous) }

func testFramesAmbiguous(t *testing.T, start func(e Endpoint, n int) pusher) {
	s := newFrameServer(t, 100, nil)
	s.onPush = func(c *frameConn, stream uint32) {
		switch {
		case stream == 1:
			c.ok(stream)
		case c.number == 1: // it may have been processed, then the line is cut
			c.goAway(stream, http2.ErrCodeNo)
			c.nc.Close()
		case stream == 3:
			c.reset(stream, http2.ErrCodeInternal)
		default:
			c.ok(stream)
		}
	}
	a := framePusher(start, s)
	one := testCall(notify.Push, notify.Content{Body: "b"}, 1, deviceToken)
	for i, class := range []notify.Class{notify.ClassAccepted, notify.ClassAmbiguous, notify.ClassAccepted, notify.ClassAmbiguous, notify.ClassAccepted} {
		if r := collect(t, t.Context(), a, one)[0]; r.Class != class {
			t.Errorf("%d: %+v, want %v", i, r, class)
		}
	}
}
