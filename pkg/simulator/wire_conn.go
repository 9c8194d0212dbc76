package simulator

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// wireConn is one HTTP/2 connection of a caller. A goroutine reads, one writes,
// and each request has its own, as with net/http.
type wireConn struct {
	srv    *wireServer
	nc     *tls.Conn
	fr     *http2.Framer // to read
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{}
	reqs   sync.WaitGroup

	mu       sync.Mutex
	room     *sync.Cond // a window has grown, or the connection ended
	wire     Wire
	proven   bool
	acked    *Wire  // what the caller has acknowledged; nil: nothing yet
	said     []Wire // what it has not
	streams  map[uint32]*wireStream
	last     uint32 // highest stream that was begun
	final    uint32 // after a GOAWAY: the highest that is looked at
	away     bool
	closing  bool  // the writer is to close
	window   int64 // for answers
	initial  int64
	allowed  int64 // of bodies
	frameMax int
	out      bytes.Buffer
	ctl      *http2.Framer // writes to out
	enc      *hpack.Encoder
	block    bytes.Buffer
}

// wireStream is a request under way.
type wireStream struct {
	id      uint32
	head    []hpack.HeaderField
	body    []byte
	window  int64 // for the answer
	allowed int64 // of the request's body
	cancel  context.CancelFunc
}

// maxWireBody is how much of a request's body is kept.
const maxWireBody = 64 << 10

func newWireConn(s *wireServer, nc *tls.Conn) *wireConn {
	c := &wireConn{srv: s, nc: nc, wake: make(chan struct{}, 1), streams: map[uint32]*wireStream{}, window: 65535, initial: 65535, allowed: 65535, frameMax: 16384}
	c.room = sync.NewCond(&c.mu)
	ctx := withConn(context.Background(), nc)
	connOf(ctx).wire = c
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.fr = http2.NewFramer(nil, bufio.NewReaderSize(nc, 32<<10))
	c.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.fr.MaxHeaderListSize = 16 << 10
	c.fr.SetMaxReadFrameSize(1<<24 - 1)
	c.ctl = http2.NewFramer(&c.out, nil)
	c.enc = hpack.NewEncoder(&c.block)
	return c
}

// serve reads until the caller leaves.
func (c *wireConn) serve() {
	defer c.reqs.Wait()
	defer c.cut()
	_ = c.nc.SetReadDeadline(time.Now().Add(10 * time.Second))
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c.nc, preface); err != nil || string(preface) != http2.ClientPreface {
		return
	}
	_ = c.nc.SetReadDeadline(time.Time{})
	c.srv.mu.Lock()
	wire := c.srv.wire
	c.srv.mu.Unlock()
	c.announce(wire)
	c.reqs.Go(c.write)
	for {
		f, err := c.fr.ReadFrame()
		if err == nil {
			err = c.onFrame(f)
		}
		var stream http2.StreamError
		if errors.As(err, &stream) {
			c.say(func() { c.rst(stream.StreamID, stream.Code) })
			continue
		}
		var broken http2.ConnectionError
		if errors.As(err, &broken) {
			c.srv.count(func(s *WireStats) { s.Broken++ })
			c.say(func() { c.closing = true; _ = c.ctl.WriteGoAway(c.last, http2.ErrCode(broken), nil) })
			_, _ = io.Copy(io.Discard, c.nc) // until the caller has read it and left
			return
		}
		if err != nil {
			return
		}
	}
}

// say changes what is to be written.
func (c *wireConn) say(f func()) {
	c.mu.Lock()
	f()
	c.mu.Unlock()
	c.signal()
}

func (c *wireConn) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// cut ends the connection at once.
func (c *wireConn) cut() {
	c.cancel()
	c.mu.Lock()
	c.room.Broadcast()
	c.mu.Unlock()
	_ = c.nc.NetConn().Close()
}

// write is the writer.
func (c *wireConn) write() {
	var buf []byte
	for {
		select {
		case <-c.wake:
		case <-c.ctx.Done():
			return
		}
		for {
			c.mu.Lock()
			silent, closing := c.wire.Silent, c.closing || c.away && len(c.streams) == 0
			if !silent {
				buf = append(buf[:0], c.out.Bytes()...)
				c.out.Reset()
			}
			c.mu.Unlock()
			if silent || len(buf) == 0 && !closing {
				break
			}
			if len(buf) > 0 {
				if _, err := c.nc.Write(buf); err != nil {
					c.cut()
					return
				}
			}
			if closing {
				c.hangUp()
				return
			}
			buf = buf[:0]
		}
	}
}

// hangUp says that nothing more will come, and leaves it to the caller to close:
// a close with something unread would take back what is still under way to it.
func (c *wireConn) hangUp() {
	_ = c.nc.SetReadDeadline(time.Now().Add(5 * time.Second))
	_ = c.nc.CloseWrite()
	if t, ok := c.nc.NetConn().(*net.TCPConn); ok {
		_ = t.CloseWrite()
	}
}

// announce sends what is in force as SETTINGS. The first come before anything
// else.
func (c *wireConn) announce(w Wire) {
	c.say(func() {
		c.wire = w
		c.settings()
	})
}

// settings sends SETTINGS. The lock is held.
func (c *wireConn) settings() {
	w := c.wire
	if first := c.srv.sim.cfg.APNs.FirstStreams; first > 0 && !c.proven {
		w.Streams = min(w.Streams, first)
	}
	c.said = append(c.said, w)
	_ = c.ctl.WriteSettings(
		http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: uint32(w.Streams)},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(w.Window)},
		http2.Setting{ID: http2.SettingMaxFrameSize, Val: uint32(w.Frame)},
		http2.Setting{ID: http2.SettingHeaderTableSize, Val: uint32(w.HeaderTable)},
	)
}

// prove lifts the limit of a connection whose token was accepted.
func (c *wireConn) prove() {
	if c.srv.sim.cfg.APNs.FirstStreams <= 0 {
		return
	}
	c.mu.Lock()
	first := !c.proven
	c.proven = true
	if first {
		c.settings()
	}
	c.mu.Unlock()
	c.signal()
}

// goAway tells the caller to leave: what was begun is answered, what comes after
// is not looked at.
func (c *wireConn) goAway() {
	c.say(func() {
		if c.away {
			return
		}
		c.away, c.final = true, c.last
		_ = c.ctl.WriteGoAway(c.last, http2.ErrCodeNo, []byte(`{"reason":"Shutdown"}`))
		c.srv.count(func(s *WireStats) { s.GoAways++ })
	})
}

// close ends the connection in order, without a word of HTTP/2.
func (c *wireConn) close() {
	c.say(func() { c.out.Reset(); c.closing = true })
}

// rst ends a stream. The lock is held.
func (c *wireConn) rst(id uint32, code http2.ErrCode) {
	if s := c.streams[id]; s != nil {
		delete(c.streams, id)
		if s.cancel != nil {
			s.cancel()
		}
	}
	c.room.Broadcast()
	_ = c.ctl.WriteRSTStream(id, code)
}
