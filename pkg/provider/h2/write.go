package h2

import (
	"net"
	"time"

	"golang.org/x/net/http2"
)

const (
	// turn is how many requests one turn of the writer takes: enough to fill a
	// few TLS records, few enough that an idle connection beside it gets some.
	turn = 64
	// ownFields is how many fields of its own a request is taken to have, where
	// the server limits the size of header lists: 32 bytes each beside their text.
	ownFields = 6
)

// write is the writer: it takes requests while the connection has room, and
// writes whatever there is at once.
func (c *conn) write() {
	defer func() { _ = c.nc.Close() }()
	for {
		select {
		case <-c.wake:
		case <-c.ended:
		}
		for c.fill() {
			if len(c.out) == 0 {
				continue
			}
			_ = c.nc.SetWriteDeadline(time.Now().Add(c.pool.cfg.WriteTimeout))
			n, err := c.nc.Write(c.out)
			if err != nil {
				c.unsent(n)
				c.close(err, http2.ErrCodeNo)
				return
			}
		}
		if c.drained() {
			c.close(net.ErrClosed, http2.ErrCodeNo)
			if c.ctl.Len() > 0 { // last words
				_ = c.nc.SetWriteDeadline(time.Now().Add(time.Second))
				_, _ = c.nc.Write(c.ctl.Bytes())
			}
			return
		}
	}
}

// unsent notes which requests were not written to their end: only the first n
// bytes of the buffer left this machine.
func (c *conn) unsent(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.marks {
		if r := c.streams[m.id]; r != nil && m.end > n {
			r.Sent = false
		}
	}
}

// fill puts the next frames into the buffer: control frames, bodies that waited
// for a window, new requests. False: there is nothing to write.
func (c *conn) fill() bool {
	c.out, c.marks = c.out[:0], c.marks[:0]
	var done []*Request
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return false
	}
	c.out = append(c.out, c.ctl.Bytes()...)
	c.ctl.Reset()
	if c.blocked > 0 {
		for r := c.age.first; r != nil && c.window > 0; r = r.next {
			if r.waiting {
				c.body(r)
			}
		}
	}
	// While the connection's window is used up, more headers would only make
	// the bodies wait on the other side.
	if room := min(c.room(), turn); room > 0 && c.window > 0 {
		c.taken = c.pool.take(c.taken[:0], room)
		now := time.Time{}
		for i, r := range c.taken {
			c.taken[i] = nil
			if now.IsZero() {
				now = time.Now()
			}
			if !c.begin(r, now) {
				done = append(done, r)
			}
		}
		if len(done) > 0 {
			c.pool.finished(len(done))
		}
		c.recount()
	}
	c.mu.Unlock()
	deliver(done)
	return len(c.out) > 0 || len(done) > 0
}

// begin opens a stream for r. False: r is not to be sent. The lock is held.
func (c *conn) begin(r *Request, now time.Time) bool {
	if admit := c.pool.cfg.Admit; admit != nil {
		if err := admit(); err != nil {
			r.Failure, r.Err = Withheld, err
			return false
		}
	}
	if uint64(r.Fields.size)+uint64(len(r.Path)+len(r.Own)+ownFields*32) > uint64(c.listMax) {
		r.Failure = Broken
		return false
	}
	r.id = c.nextID
	c.nextID += 2
	r.window, r.allowed, r.rest = c.initial, defaultWindow, r.Body
	r.deadline = now.Add(c.pool.cfg.Timeout)
	c.streams[r.id] = r
	c.age.pushBack(r)
	if c.age.n == 1 {
		c.arm(now, r.deadline)
	}
	if c.nextID > lastStreamID {
		c.leave() // this was its last stream
	}
	c.header(r)
	if len(r.Body) > 0 {
		c.body(r)
	}
	return true
}

// header appends the header block of r. The lock is held.
func (c *conn) header(r *Request) {
	const hl = 9
	at := len(c.out)
	c.out = append(c.out, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	c.out = c.enc.append(c.out, r)
	n := len(c.out) - at - hl
	flags := http2.Flags(0)
	if len(r.Body) == 0 {
		flags |= http2.FlagHeadersEndStream
		c.sent(r)
	}
	if n <= c.frame {
		putFrame(c.out[at:], n, http2.FrameHeaders, flags|http2.FlagHeadersEndHeaders, r.id)
		return
	}
	// It is larger than a frame may be: the rest goes into CONTINUATIONs.
	block := append([]byte(nil), c.out[at+hl:]...)
	c.out = c.out[:at]
	typ := http2.FrameHeaders
	for len(block) > 0 {
		n := min(len(block), c.frame)
		if n == len(block) {
			flags |= http2.FlagHeadersEndHeaders
		}
		c.out = appendFrame(c.out, n, typ, flags, r.id)
		c.out = append(c.out, block[:n]...)
		block, typ, flags = block[n:], http2.FrameContinuation, 0
	}
	if len(r.Body) == 0 {
		c.sent(r)
	}
}

// body appends as much of the body of r as the windows allow. The lock is held.
func (c *conn) body(r *Request) {
	for len(r.rest) > 0 {
		n := int(min(int64(len(r.rest)), int64(c.frame), r.window, c.window))
		if n <= 0 {
			if !r.waiting {
				r.waiting = true
				c.blocked++
			}
			return
		}
		r.window -= int64(n)
		c.window -= int64(n)
		flags := http2.Flags(0)
		if n == len(r.rest) {
			flags = http2.FlagDataEndStream
		}
		c.out = appendFrame(c.out, n, http2.FrameData, flags, r.id)
		c.out = append(c.out, r.rest[:n]...)
		r.rest = r.rest[n:]
	}
	if r.waiting {
		r.waiting = false
		c.blocked--
	}
	c.sent(r)
}

// sent notes that the last byte of r is in the buffer.
func (c *conn) sent(r *Request) {
	r.Sent = true
	c.marks = append(c.marks, mark{r.id, len(c.out)})
}

func appendFrame(dst []byte, n int, t http2.FrameType, f http2.Flags, id uint32) []byte {
	return append(dst, byte(n>>16), byte(n>>8), byte(n), byte(t), byte(f), byte(id>>24), byte(id>>16), byte(id>>8), byte(id))
}

func putFrame(dst []byte, n int, t http2.FrameType, f http2.Flags, id uint32) {
	appendFrame(dst[:0], n, t, f, id)
}
