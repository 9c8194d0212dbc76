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

// wireConn is one HTTP/2 connection of a caller. As in net/http, one goroutine (serve) reads
// frames, one (writeLoop) writes frames, and each request has its own goroutine. Only serve uses
// inFramer. To send a frame, a goroutine locks mu and adds the frame to outgoing. writeLoop sends
// the frames in outgoing.
type wireConn struct {
	srv      *wireServer
	tlsConn  *tls.Conn
	inFramer *http2.Framer // reads frames
	ctx      context.Context
	cancel   context.CancelFunc
	wake     chan struct{}  // wakes writeLoop
	requests sync.WaitGroup // counts the goroutines of requests and writeLoop

	mu                  sync.Mutex // guards the fields below
	windowGrew          *sync.Cond // signalled when a window has grown, a stream was reset, or the connection ended
	wire                Wire       // the settings in force
	proven              bool       // true: APNs has accepted a provider token on this connection
	ackedSettings       *Wire      // latest settings that the caller acknowledged; nil: none yet
	unackedSettings     []Wire     // settings that the caller has not acknowledged yet, the oldest first
	streams             map[uint32]*wireStream
	lastStream          uint32 // highest number of a stream that has begun
	goAwayStream        uint32 // after a GOAWAY: highest number of a stream that is served
	goingAway           bool   // true: a GOAWAY was sent
	closing             bool   // true: the connection is closed after the frames in outgoing were sent
	answerWindow        int64  // how many bytes of answers the caller accepts on the connection
	initialAnswerWindow int64  // the answerWindow of a new stream
	bodyWindow          int64  // how many bytes of bodies the caller may send on the connection
	frameMax            int    // most bytes in a frame that the caller accepts
	outgoing            bytes.Buffer
	outFramer           *http2.Framer // writes to outgoing; mu must be held
	enc                 *hpack.Encoder
	headerBlock         bytes.Buffer
}

// wireStream is one request in progress. wireConn.mu guards its fields.
type wireStream struct {
	id           uint32
	head         []hpack.HeaderField
	body         []byte
	answerWindow int64 // how many bytes of the answer the caller accepts
	bodyWindow   int64 // how many bytes of the body the caller may send
	cancel       context.CancelFunc
}

// maxWireBody is the most bytes of a request body that the server keeps.
const maxWireBody = 64 << 10

func newWireConn(s *wireServer, nc *tls.Conn) *wireConn {
	c := &wireConn{srv: s, tlsConn: nc, wake: make(chan struct{}, 1), streams: map[uint32]*wireStream{}, answerWindow: 65535, initialAnswerWindow: 65535, bodyWindow: 65535, frameMax: 16384}
	c.windowGrew = sync.NewCond(&c.mu)
	ctx := withConn(context.Background(), nc)
	connOf(ctx).wire = c
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.inFramer = http2.NewFramer(nil, bufio.NewReaderSize(nc, 32<<10))
	c.inFramer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.inFramer.MaxHeaderListSize = 16 << 10
	c.inFramer.SetMaxReadFrameSize(1<<24 - 1)
	c.outFramer = http2.NewFramer(&c.outgoing, nil)
	c.enc = hpack.NewEncoder(&c.headerBlock)
	return c
}

// serve reads frames until the connection ends.
func (c *wireConn) serve() {
	defer c.requests.Wait()
	defer c.closeNow()
	_ = c.tlsConn.SetReadDeadline(time.Now().Add(10 * time.Second))
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c.tlsConn, preface); err != nil || string(preface) != http2.ClientPreface {
		return
	}
	_ = c.tlsConn.SetReadDeadline(time.Time{})
	c.srv.mu.Lock()
	wire := c.srv.wire
	c.srv.mu.Unlock()
	c.announce(wire)
	c.requests.Go(c.writeLoop)
	for {
		f, err := c.inFramer.ReadFrame()
		if err == nil {
			err = c.onFrame(f)
		}
		var stream http2.StreamError
		if errors.As(err, &stream) {
			c.lockAndWake(func() { c.resetStream(stream.StreamID, stream.Code) })
			continue
		}
		var broken http2.ConnectionError
		if errors.As(err, &broken) {
			c.srv.updateStats(func(s *WireStats) { s.Broken++ })
			c.lockAndWake(func() { c.closing = true; _ = c.outFramer.WriteGoAway(c.lastStream, http2.ErrCode(broken), nil) })
			// Wait until the caller has read the GOAWAY and closed the connection.
			_, _ = io.Copy(io.Discard, c.tlsConn)
			return
		}
		if err != nil {
			return
		}
	}
}

// lockAndWake calls f with mu locked, and then wakes writeLoop, which sends the frames that f has
// written to outFramer.
func (c *wireConn) lockAndWake(f func()) {
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

// closeNow closes the connection at once.
func (c *wireConn) closeNow() {
	c.cancel()
	c.mu.Lock()
	c.windowGrew.Broadcast()
	c.mu.Unlock()
	_ = c.tlsConn.NetConn().Close()
}

// writeLoop sends the frames in outgoing until the connection ends.
func (c *wireConn) writeLoop() {
	var buf []byte
	for {
		select {
		case <-c.wake:
		case <-c.ctx.Done():
			return
		}
		for {
			c.mu.Lock()
			silent, closing := c.wire.Silent, c.closing || c.goingAway && len(c.streams) == 0
			if !silent {
				buf = append(buf[:0], c.outgoing.Bytes()...)
				c.outgoing.Reset()
			}
			c.mu.Unlock()
			if silent || len(buf) == 0 && !closing {
				break
			}
			if len(buf) > 0 {
				if _, err := c.tlsConn.Write(buf); err != nil {
					c.closeNow()
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

// hangUp closes the sending side and lets the caller close the connection. If the server closed a
// connection with unread data, the connection would be reset. Then the caller would lose frames
// that it has not received yet.
func (c *wireConn) hangUp() {
	_ = c.tlsConn.SetReadDeadline(time.Now().Add(5 * time.Second))
	_ = c.tlsConn.CloseWrite()
	if t, ok := c.tlsConn.NetConn().(*net.TCPConn); ok {
		_ = t.CloseWrite()
	}
}

// announce stores the new settings w and sends them. serve calls it first, so the first frame of a
// connection is a SETTINGS frame.
func (c *wireConn) announce(w Wire) {
	c.lockAndWake(func() {
		c.wire = w
		c.sendSettings()
	})
}

// sendSettings sends the current settings. The caller holds the lock.
func (c *wireConn) sendSettings() {
	w := c.wire
	if first := c.srv.sim.cfg.APNs.FirstStreams; first > 0 && !c.proven {
		w.Streams = min(w.Streams, first)
	}
	c.unackedSettings = append(c.unackedSettings, w)
	_ = c.outFramer.WriteSettings(
		http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: uint32(w.Streams)},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(w.Window)},
		http2.Setting{ID: http2.SettingMaxFrameSize, Val: uint32(w.Frame)},
		http2.Setting{ID: http2.SettingHeaderTableSize, Val: uint32(w.HeaderTable)},
	)
}

// proveToken records that APNs has accepted a provider token on this connection. From then on the
// limit FirstStreams does not apply to it.
func (c *wireConn) proveToken() {
	if c.srv.sim.cfg.APNs.FirstStreams <= 0 {
		return
	}
	c.mu.Lock()
	first := !c.proven
	c.proven = true
	if first {
		c.sendSettings()
	}
	c.mu.Unlock()
	c.signal()
}

// goAway sends a GOAWAY frame. Streams that have already begun are still answered, but later
// streams are ignored.
func (c *wireConn) goAway() {
	c.lockAndWake(func() {
		if c.goingAway {
			return
		}
		c.goingAway, c.goAwayStream = true, c.lastStream
		_ = c.outFramer.WriteGoAway(c.lastStream, http2.ErrCodeNo, []byte(`{"reason":"Shutdown"}`))
		c.srv.updateStats(func(s *WireStats) { s.GoAways++ })
	})
}

// close ends the connection normally, without a GOAWAY. It drops the frames that were not sent.
func (c *wireConn) close() {
	c.lockAndWake(func() { c.outgoing.Reset(); c.closing = true })
}

// resetStream ends a stream with RST_STREAM. The caller holds the lock.
func (c *wireConn) resetStream(id uint32, code http2.ErrCode) {
	if s := c.streams[id]; s != nil {
		delete(c.streams, id)
		if s.cancel != nil {
			s.cancel()
		}
	}
	c.windowGrew.Broadcast()
	_ = c.outFramer.WriteRSTStream(id, code)
}
