package h2

import (
	"encoding/binary"
	"errors"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// deliverAt limits how long finished requests wait. When deliverAt requests have finished, the
// reader delivers them to their batches, even if more frames are in the read buffer.
const deliverAt = 256

// responseHead contains the fields of a header block that this package uses.
type responseHead struct {
	status     int
	retryAfter string
	bad        bool
}

// headerBlock collects a header block that spans several frames.
type headerBlock struct {
	id    uint32 // stream id; 0: no block is open
	ended bool
	buf   []byte
}

// runReader reads frames until the connection ends, in the reader goroutine. It returns why the
// connection ended. The error is an http2.ConnectionError if the server violated the protocol.
func (c *conn) runReader() error {
	defer c.deliverEnded()
	for {
		if !c.frameBuffered() || len(c.endedRequests) >= deliverAt {
			c.deliverEnded() // the next read may block
		}
		h, err := c.fr.ReadFrameHeader()
		if err != nil {
			return err
		}
		f, err := c.fr.ReadFrameForHeader(h)
		if c.br.Buffered() < 9 {
			c.lastRead.Store(int64(time.Since(c.start)))
		}
		if err != nil {
			return err
		}
		if err := c.onFrame(f); err != nil {
			return err
		}
	}
}

// frameBuffered reports whether the read buffer contains a complete frame.
func (c *conn) frameBuffered() bool {
	n := c.br.Buffered()
	if n < 9 {
		return false
	}
	h, err := c.br.Peek(3)
	return err == nil && n >= 9+int(uint32(h[0])<<16|uint32(binary.BigEndian.Uint16(h[1:])))
}

// goAwayCode returns the code for a GOAWAY after the error err. It returns ErrCodeNo if the server did
// nothing wrong.
func goAwayCode(err error) http2.ErrCode {
	var conn http2.ConnectionError
	var stream http2.StreamError
	switch {
	case errors.As(err, &conn):
		return http2.ErrCode(conn)
	case errors.As(err, &stream):
		// The frame was not decoded. If the frame was a header block, the HPACK table would be
		// wrong from then on. So the connection must end.
		return stream.Code
	case errors.Is(err, http2.ErrFrameTooLarge):
		return http2.ErrCodeFrameSize
	}
	return http2.ErrCodeNo
}

func (c *conn) onFrame(f http2.Frame) error {
	switch f := f.(type) {
	case *http2.HeadersFrame:
		return c.onHeaders(f.StreamID, f.HeaderBlockFragment(), f.HeadersEnded(), f.StreamEnded())
	case *http2.ContinuationFrame:
		return c.onContinuation(f)
	case *http2.DataFrame:
		return c.onData(f)
	case *http2.RSTStreamFrame:
		return c.onReset(f)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.wakeWriter()
	code := http2.ErrCodeNo
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			code = c.onSettings(f)
		}
	case *http2.WindowUpdateFrame:
		code = c.onWindow(f)
	case *http2.PingFrame:
		if !f.IsAck() {
			_ = c.ctlFr.WritePing(true, f.Data)
		}
	case *http2.GoAwayFrame:
		c.onGoAway(f)
	case *http2.PushPromiseFrame:
		code = http2.ErrCodeProtocol // our SETTINGS forbid pushes
	}
	if c.ctl.Len() > maxControl {
		code = http2.ErrCodeEnhanceYourCalm
	}
	if code != http2.ErrCodeNo {
		return http2.ConnectionError(code)
	}
	return nil
}

// neverOpened returns true if this side has not opened a stream with this id yet. The caller holds
// mu.
func (c *conn) neverOpened(id uint32) bool { return id%2 == 0 || id >= c.nextID }

func (c *conn) onHeaders(id uint32, fragment []byte, complete, ended bool) error {
	if complete {
		return c.onBlock(id, fragment, ended)
	}
	c.block.id, c.block.ended, c.block.buf = id, ended, append(c.block.buf[:0], fragment...)
	return nil
}

// onContinuation adds a frame to the open header block. The framer has checked that the frame
// belongs to this block.
func (c *conn) onContinuation(f *http2.ContinuationFrame) error {
	if len(c.block.buf)+len(f.HeaderBlockFragment()) > maxBlock || len(f.HeaderBlockFragment()) == 0 && !f.HeadersEnded() {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	c.block.buf = append(c.block.buf, f.HeaderBlockFragment()...)
	if !f.HeadersEnded() {
		return nil
	}
	return c.onBlock(c.block.id, c.block.buf, c.block.ended)
}

// onField is called for every field of a header block, in order. If the status is 2xx, the other fields
// are not needed, so onField makes the decoder stop calling it for this block.
func (c *conn) onField(f hpack.HeaderField) {
	switch f.Name {
	case ":status":
		if c.head.status = parseStatus(f.Value); c.head.status == 0 {
			c.head.bad = true
		}
		c.dec.SetEmitEnabled(c.head.status < 200 || c.head.status >= 300)
	case "retry-after":
		c.head.retryAfter = f.Value
	}
}

func parseStatus(s string) (n int) {
	if len(s) != 3 {
		return 0
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0
		}
		n = n*10 + int(s[i]-'0')
	}
	if n < 100 {
		return 0
	}
	return n
}

// onBlock handles a complete header block. The block is an interim response, the head of an answer,
// or the trailer of an answer.
func (c *conn) onBlock(id uint32, block []byte, ended bool) error {
	c.head = responseHead{}
	c.dec.SetEmitEnabled(true)
	_, err := c.dec.Write(block)
	if err == nil {
		err = c.dec.Close()
	}
	if err != nil {
		return http2.ConnectionError(http2.ErrCodeCompression)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.neverOpened(id) {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	r := c.streams[id]
	if r == nil {
		return nil // the request was cancelled or timed out
	}
	trailer := r.headArrived
	interim := !trailer && c.head.status >= 100 && c.head.status < 200
	switch {
	case trailer && !ended, !trailer && c.head.status == 0, c.head.bad, interim && ended:
		c.endMalformed(r)
		return nil
	case interim:
		return nil
	case !trailer:
		r.Status, r.RetryAfter, r.headArrived = c.head.status, c.head.retryAfter, true
	}
	if ended {
		c.endAnswered(r)
	}
	return nil
}

// endMalformed ends a stream whose answer violates HTTP. The caller holds mu.
func (c *conn) endMalformed(r *Request) {
	c.resetStream(r.id, http2.ErrCodeProtocol)
	c.wakeWriter()
	c.endedRequests = c.endStream(c.endedRequests, r, Broken, false)
}

// endAnswered ends a stream whose answer is complete. The caller holds mu.
func (c *conn) endAnswered(r *Request) {
	if !r.Sent {
		// The server answered before it received the whole request, and needs no more of it.
		c.resetStream(r.id, http2.ErrCodeNo)
		c.wakeWriter()
	}
	r.ended = true
	c.endedRequests = c.endStream(c.endedRequests, r, Answered, false)
}

func (c *conn) onData(f *http2.DataFrame) error {
	n := int(f.Length) // with the padding of the frame
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.neverOpened(f.StreamID) {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if c.recvWindow -= n; c.recvWindow < 0 {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	// Give the window space of the bytes that arrived back to the server, even before this side has
	// used the bytes. Other limits bound the memory: an answer has at most MaxAnswer bytes, and this
	// side decides how many streams exist.
	if c.ungranted += n; c.ungranted >= connWindow/4 {
		_ = c.ctlFr.WriteWindowUpdate(0, uint32(c.ungranted))
		c.recvWindow += c.ungranted
		c.ungranted = 0
		c.wakeWriter()
	}
	r := c.streams[f.StreamID]
	if r == nil {
		return nil
	}
	if !r.headArrived {
		c.endMalformed(r)
		return nil
	}
	if r.recvWindow -= n; r.recvWindow < 0 {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	data := f.Data()
	room := MaxAnswer - len(r.Answer)
	r.Answer = append(r.Answer, data[:min(len(data), room)]...)
	switch {
	case f.StreamEnded():
		c.endAnswered(r)
	case len(data) >= room:
		c.resetStream(r.id, http2.ErrCodeCancel) // the rest of the body is not needed
		c.wakeWriter()
		c.endedRequests = c.endStream(c.endedRequests, r, Answered, false)
	default:
		if r.ungranted += n; r.ungranted >= defaultWindow/2 {
			_ = c.ctlFr.WriteWindowUpdate(r.id, uint32(r.ungranted))
			r.recvWindow += r.ungranted
			r.ungranted = 0
			c.wakeWriter()
		}
	}
	return nil
}

// deliverEnded judges the finished requests and delivers them to their batches. Then it wakes the
// writer, because streams became free. Only the reader calls it.
func (c *conn) deliverEnded() {
	if len(c.endedRequests) == 0 {
		return
	}
	c.mu.Lock()
	for _, r := range c.endedRequests {
		if r.Failure != Answered || c.proven && r.Status == 200 {
			continue
		}
		switch c.pool.cfg.Judge(r) {
		case Proven:
			c.proven = true
		case Unproven:
			c.proven = false
		case Leave:
			c.startDraining()
		}
	}
	c.publishFree()
	c.mu.Unlock()
	deliver(c.endedRequests)
	clear(c.endedRequests)
	c.endedRequests = c.endedRequests[:0]
	if c.pool.waiting.Load() > 0 {
		c.wakeWriter()
	}
}
