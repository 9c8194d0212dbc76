package h2

import (
	"net"
	"time"

	"golang.org/x/net/http2"
)

const (
	// takeAtOnce is how many requests the writer takes from the queue at a time. 64 requests fill a
	// few TLS records, but leave some requests for an idle connection.
	takeAtOnce = 64
	// ownFields is the assumed number of fields that only one request has. It is used only if the
	// server limits the size of header lists. The size of a list includes, for each field, 32 bytes
	// in addition to the field's text.
	ownFields = 6
)

// runWriter runs in the writer goroutine. It takes requests from the queue while the connection has
// room, and writes everything that is ready with one call of Write.
func (c *conn) runWriter() {
	defer func() { _ = c.nc.Close() }()
	for {
		select {
		case <-c.wake:
		case <-c.closedCh:
		}
		for c.fillBuffer() {
			if len(c.out) == 0 {
				continue
			}
			_ = c.nc.SetWriteDeadline(time.Now().Add(c.pool.cfg.WriteTimeout))
			n, err := c.nc.Write(c.out)
			if err != nil {
				c.markUnsent(n)
				c.close(err, http2.ErrCodeNo)
				return
			}
		}
		if c.drained() {
			c.close(net.ErrClosed, http2.ErrCodeNo)
			if c.ctl.Len() > 0 { // the GOAWAY that close has queued
				_ = c.nc.SetWriteDeadline(time.Now().Add(time.Second))
				_, _ = c.nc.Write(c.ctl.Bytes())
			}
			return
		}
	}
}

// markUnsent sets Sent to false for the requests that were not written completely. n is the number
// of bytes of the buffer that were written.
func (c *conn) markUnsent(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.marks {
		if r := c.streams[m.id]; r != nil && m.end > n {
			r.Sent = false
		}
	}
}

// fillBuffer puts the next frames into the buffer: control frames, bodies that waited for window
// space, and new requests. It returns false if there is nothing to write.
func (c *conn) fillBuffer() bool {
	c.out, c.marks = c.out[:0], c.marks[:0]
	var done []*Request
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return false
	}
	c.out = append(c.out, c.ctl.Bytes()...)
	c.ctl.Reset()
	if c.windowWaiters > 0 {
		for r := c.byAge.first; r != nil && c.sendWindow > 0; r = r.next {
			if r.waitsForWindow {
				c.appendBody(r)
			}
		}
	}
	// When the connection's window is used up, new requests could send only their headers. So start
	// no request.
	if room := min(c.freeStreams(), takeAtOnce); room > 0 && c.sendWindow > 0 {
		c.takenRequests = c.pool.takeQueued(c.takenRequests[:0], room)
		now := time.Time{}
		for i, r := range c.takenRequests {
			c.takenRequests[i] = nil
			if now.IsZero() {
				now = time.Now()
			}
			if !c.openStream(r, now) {
				done = append(done, r)
			}
		}
		if len(done) > 0 {
			c.pool.requestsLeft(len(done))
		}
		c.publishFree()
	}
	c.mu.Unlock()
	deliver(done)
	return len(c.out) > 0 || len(done) > 0
}

// openStream opens a stream for r and puts r into the buffer. It returns false if r must not be
// sent. The caller holds mu.
func (c *conn) openStream(r *Request, now time.Time) bool {
	if admit := c.pool.cfg.Admit; admit != nil {
		if err := admit(); err != nil {
			r.Failure, r.Err = Withheld, err
			return false
		}
	}
	if uint64(r.Fields.size)+uint64(len(r.Path)+len(r.OwnFields)+ownFields*32) > uint64(c.listMax) {
		r.Failure = Broken
		return false
	}
	r.id = c.nextID
	c.nextID += 2
	r.sendWindow, r.recvWindow, r.unwritten = c.initialWindow, defaultWindow, r.Body
	r.deadline = now.Add(c.pool.cfg.Timeout)
	c.streams[r.id] = r
	c.byAge.pushBack(r)
	if c.byAge.n == 1 {
		c.armTimer(now, r.deadline)
	}
	if c.nextID > lastStreamID {
		c.startDraining() // stream ids are used up
	}
	c.appendHeaders(r)
	if len(r.Body) > 0 {
		c.appendBody(r)
	}
	return true
}

// appendHeaders appends the header block of r. The caller holds mu.
func (c *conn) appendHeaders(r *Request) {
	const hl = 9
	at := len(c.out)
	c.out = append(c.out, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	c.out = c.enc.appendBlock(c.out, r)
	n := len(c.out) - at - hl
	flags := http2.Flags(0)
	if len(r.Body) == 0 {
		flags |= http2.FlagHeadersEndStream
		c.markSent(r)
	}
	if n <= c.maxFrame {
		putFrame(c.out[at:], n, http2.FrameHeaders, flags|http2.FlagHeadersEndHeaders, r.id)
		return
	}
	// The block is larger than the largest frame: the rest goes into CONTINUATION frames.
	block := append([]byte(nil), c.out[at+hl:]...)
	c.out = c.out[:at]
	typ := http2.FrameHeaders
	for len(block) > 0 {
		n := min(len(block), c.maxFrame)
		if n == len(block) {
			flags |= http2.FlagHeadersEndHeaders
		}
		c.out = appendFrame(c.out, n, typ, flags, r.id)
		c.out = append(c.out, block[:n]...)
		block, typ, flags = block[n:], http2.FrameContinuation, 0
	}
	if len(r.Body) == 0 {
		c.markSent(r)
	}
}

// appendBody appends as much of the body of r as the windows allow. The caller holds mu.
func (c *conn) appendBody(r *Request) {
	for len(r.unwritten) > 0 {
		n := int(min(int64(len(r.unwritten)), int64(c.maxFrame), r.sendWindow, c.sendWindow))
		if n <= 0 {
			if !r.waitsForWindow {
				r.waitsForWindow = true
				c.windowWaiters++
			}
			return
		}
		r.sendWindow -= int64(n)
		c.sendWindow -= int64(n)
		flags := http2.Flags(0)
		if n == len(r.unwritten) {
			flags = http2.FlagDataEndStream
		}
		c.out = appendFrame(c.out, n, http2.FrameData, flags, r.id)
		c.out = append(c.out, r.unwritten[:n]...)
		r.unwritten = r.unwritten[n:]
	}
	if r.waitsForWindow {
		r.waitsForWindow = false
		c.windowWaiters--
	}
	c.markSent(r)
}

// markSent notes that the whole request r is in the buffer.
func (c *conn) markSent(r *Request) {
	r.Sent = true
	c.marks = append(c.marks, bufferMark{r.id, len(c.out)})
}

func appendFrame(dst []byte, n int, t http2.FrameType, f http2.Flags, id uint32) []byte {
	return append(dst, byte(n>>16), byte(n>>8), byte(n), byte(t), byte(f), byte(id>>24), byte(id>>16), byte(id>>8), byte(id))
}

func putFrame(dst []byte, n int, t http2.FrameType, f http2.Flags, id uint32) {
	appendFrame(dst[:0], n, t, f, id)
}
