package h2

import (
	"encoding/binary"
	"errors"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// deliverAt is how many answers are handed over at once at most.
const deliverAt = 256

// head is what is looked at of a header block.
type head struct {
	status     int
	retryAfter string
	bad        bool
}

// headerBlock is one that is spread over several frames.
type headerBlock struct {
	id    uint32 // 0: none is open
	ended bool
	buf   []byte
}

// read is the reader. It returns why the connection is over: an
// http2.ConnectionError where the server broke the protocol.
func (c *conn) read() error {
	defer c.flush()
	for {
		if !c.whole() || len(c.finished) >= deliverAt {
			c.flush() // the next read may wait
		}
		h, err := c.fr.ReadFrameHeader()
		if err != nil {
			return err
		}
		f, err := c.fr.ReadFrameForHeader(h)
		if c.br.Buffered() < 9 {
			c.heard.Store(int64(time.Since(c.start)))
		}
		if err != nil {
			return err
		}
		if err := c.onFrame(f); err != nil {
			return err
		}
	}
}

// whole reports whether a complete frame is in the buffer.
func (c *conn) whole() bool {
	n := c.br.Buffered()
	if n < 9 {
		return false
	}
	h, err := c.br.Peek(3)
	return err == nil && n >= 9+int(uint32(h[0])<<16|uint32(binary.BigEndian.Uint16(h[1:])))
}

// codeOf is what a GOAWAY says of an error; ErrCodeNo where the server did
// nothing wrong.
func codeOf(err error) http2.ErrCode {
	var conn http2.ConnectionError
	var stream http2.StreamError
	switch {
	case errors.As(err, &conn):
		return http2.ErrCode(conn)
	case errors.As(err, &stream):
		// A frame that was not read to its end may have been a header block: the
		// table would be wrong from here on.
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
	defer c.signal()
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
		code = http2.ErrCodeProtocol // it was told not to
	}
	if c.ctl.Len() > maxControl {
		code = http2.ErrCodeEnhanceYourCalm
	}
	if code != http2.ErrCodeNo {
		return http2.ConnectionError(code)
	}
	return nil
}

// idle reports whether a stream of that id was never opened. The lock is held.
func (c *conn) idle(id uint32) bool { return id%2 == 0 || id >= c.nextID }

func (c *conn) onHeaders(id uint32, fragment []byte, complete, ended bool) error {
	if complete {
		return c.onBlock(id, fragment, ended)
	}
	c.block.id, c.block.ended, c.block.buf = id, ended, append(c.block.buf[:0], fragment...)
	return nil
}

// onContinuation: the framer has checked that it continues what came before.
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

// onField sees every field of a header block, in order. After the status of a
// success there is nothing left to know.
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

// onBlock takes a complete header block: interim, the head of an answer, or its
// trailer.
func (c *conn) onBlock(id uint32, block []byte, ended bool) error {
	c.head = head{}
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
	if c.idle(id) {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	r := c.streams[id]
	if r == nil {
		return nil // given up
	}
	trailer := r.afterHead
	interim := !trailer && c.head.status >= 100 && c.head.status < 200
	switch {
	case trailer && !ended, !trailer && c.head.status == 0, c.head.bad, interim && ended:
		c.malformed(r)
		return nil
	case interim:
		return nil
	case !trailer:
		r.Status, r.RetryAfter, r.afterHead = c.head.status, c.head.retryAfter, true
	}
	if ended {
		c.answered(r)
	}
	return nil
}

// malformed ends a stream whose answer is none. The lock is held.
func (c *conn) malformed(r *Request) {
	c.rst(r.id, http2.ErrCodeProtocol)
	c.signal()
	c.finished = c.end(c.finished, r, Broken, false)
}

// answered ends a stream whose answer is complete. The lock is held.
func (c *conn) answered(r *Request) {
	if !r.Sent {
		// The server answered before it had it all, and wants no more.
		c.rst(r.id, http2.ErrCodeNo)
		c.signal()
	}
	r.ended = true
	c.finished = c.end(c.finished, r, Answered, false)
}

func (c *conn) onData(f *http2.DataFrame) error {
	n := int(f.Length) // with its padding
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idle(f.StreamID) {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if c.allowed -= n; c.allowed < 0 {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	// Nothing is kept back from the connection's window: MaxAnswer bounds each
	// stream, and their number is ours.
	if c.received += n; c.received >= connWindow/4 {
		_ = c.ctlFr.WriteWindowUpdate(0, uint32(c.received))
		c.allowed += c.received
		c.received = 0
		c.signal()
	}
	r := c.streams[f.StreamID]
	if r == nil {
		return nil
	}
	if !r.afterHead {
		c.malformed(r)
		return nil
	}
	if r.allowed -= n; r.allowed < 0 {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	data := f.Data()
	room := MaxAnswer - len(r.Answer)
	r.Answer = append(r.Answer, data[:min(len(data), room)]...)
	switch {
	case f.StreamEnded():
		c.answered(r)
	case len(data) >= room:
		c.rst(r.id, http2.ErrCodeCancel) // the rest is of no interest
		c.signal()
		c.finished = c.end(c.finished, r, Answered, false)
	default:
		if r.credit += n; r.credit >= defaultWindow/2 {
			_ = c.ctlFr.WriteWindowUpdate(r.id, uint32(r.credit))
			r.allowed += r.credit
			r.credit = 0
			c.signal()
		}
	}
	return nil
}

// flush hands over what is done, and lets the writer use the streams that
// became free.
func (c *conn) flush() {
	if len(c.finished) == 0 {
		return
	}
	c.mu.Lock()
	for _, r := range c.finished {
		if r.Failure != Answered || c.proven && r.Status == 200 {
			continue
		}
		switch c.pool.cfg.Judge(r) {
		case Proven:
			c.proven = true
		case Unproven:
			c.proven = false
		case Leave:
			c.leave()
		}
	}
	c.recount()
	c.mu.Unlock()
	deliver(c.finished)
	clear(c.finished)
	c.finished = c.finished[:0]
	if c.pool.waiting.Load() > 0 {
		c.signal()
	}
}
