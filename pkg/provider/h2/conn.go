package h2

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// defaultWindow and defaultFrame are the limits of RFC 9113 (6.5.2), in bytes. Each side must
	// keep to them until it has received the SETTINGS of the other side.
	defaultWindow   = 65535
	defaultFrame    = 16384
	maxWindow       = 1<<31 - 1
	unlimitedStream = 1000 // streams per connection if the server names no limit, as in net/http

	// connWindow is the window of a connection: how many bytes of answers the server may send
	// before this side has read them.
	connWindow = 1 << 20
	// maxBlock is the largest size of a header block from the server, in bytes.
	maxBlock = 64 << 10
	// maxControl is the largest size of the control frames that wait to be written, in bytes. If a
	// server sends PING or SETTINGS faster than it reads the acknowledgements, this limit is
	// exceeded and the connection is closed.
	maxControl = 256 << 10
	// lastStreamID is the highest possible stream id.
	lastStreamID = 1<<31 - 1
)

// conn is one connection. Two goroutines serve it: the reader (runReader) and the writer
// (runWriter). Each of them owns the fields in its section below. The mutex mu guards the fields
// below it.
type conn struct {
	pool *Pool
	nc   net.Conn

	// Owned by the reader.
	br            *bufio.Reader
	fr            *http2.Framer
	dec           *hpack.Decoder
	head          responseHead
	block         headerBlock
	endedRequests []*Request // have ended and are not in their batches yet; the reader delivers them
	ungranted     int        // bytes received since the last WINDOW_UPDATE for the connection

	// Owned by the writer.
	out           []byte
	marks         []bufferMark
	takenRequests []*Request

	wake       chan struct{} // contains a token when the writer has something to do
	drainingCh chan struct{} // closed when the connection stops accepting requests
	closedCh   chan struct{} // closed when the connection is closed
	lastRead   atomic.Int64  // time of the last read, in ns since the time in the field start
	freeCount  atomic.Int64  // number of streams that may be opened now; the pool uses it to choose a connection
	start      time.Time

	mu            sync.Mutex // guards the fields below
	enc           *encoder
	ctl           bytes.Buffer // control frames that the writer sends next
	ctlFr         *http2.Framer
	streams       map[uint32]*Request
	byAge         list // the requests in streams, oldest first
	windowWaiters int  // number of streams whose body waits for a window
	nextID        uint32
	maxStreams    int    // concurrent streams that the server allows
	maxFrame      int    // largest frame payload that the server accepts
	listMax       uint32 // largest header list that the server accepts
	sendWindow    int64  // bytes that the server still accepts on the connection
	initialWindow int64  // value of Request.sendWindow on a new stream
	recvWindow    int    // bytes of answers that the server may still send
	proven        bool   // the server has accepted our credentials on this connection
	draining      bool   // the connection accepts no more requests and closes after the last request
	err           error  // why the connection was closed; nil: it is open
	timer         *time.Timer
	timerAt       time.Time // when timer will fire
	pinged        time.Time // when the unanswered PING was sent; zero: no PING is unanswered
}

// bufferMark is the offset in the writer's buffer at which a request ends.
type bufferMark struct {
	id  uint32
	end int
}

func newConn(p *Pool, nc net.Conn) *conn {
	c := &conn{
		pool: p, nc: nc, start: time.Now(),
		br:   bufio.NewReaderSize(nc, 32<<10),
		wake: make(chan struct{}, 1), drainingCh: make(chan struct{}), closedCh: make(chan struct{}),
		enc: newEncoder(), streams: map[uint32]*Request{}, nextID: p.cfg.firstID,
		maxStreams: unlimitedStream, maxFrame: defaultFrame, listMax: ^uint32(0), sendWindow: defaultWindow, initialWindow: defaultWindow, recvWindow: connWindow,
	}
	c.fr = http2.NewFramer(nil, c.br)
	c.fr.SetReuseFrames()
	c.fr.SetMaxReadFrameSize(defaultFrame)
	c.ctlFr = http2.NewFramer(&c.ctl, nil)
	c.dec = hpack.NewDecoder(tableSize, c.onField)
	c.dec.SetMaxStringLength(maxBlock)
	return c
}

// handshake exchanges the first frames (RFC 9113, 3.4). To limit the time of the handshake, the caller
// sets a deadline on the connection.
func (c *conn) handshake() error {
	c.ctl.WriteString(http2.ClientPreface)
	_ = c.ctlFr.WriteSettings(
		http2.Setting{ID: http2.SettingEnablePush, Val: 0},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: maxBlock},
	)
	_ = c.ctlFr.WriteWindowUpdate(0, connWindow-defaultWindow)
	if _, err := c.nc.Write(c.ctl.Bytes()); err != nil {
		return err
	}
	c.ctl.Reset()
	f, err := c.fr.ReadFrame()
	if err != nil {
		return err
	}
	s, ok := f.(*http2.SettingsFrame)
	if !ok || s.IsAck() {
		return fmt.Errorf("h2: the first frame from the server is %v, but must be SETTINGS", f.Header().Type)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if code := c.onSettings(s); code != http2.ErrCodeNo {
		return http2.ConnectionError(code)
	}
	return nil
}

// run reads and writes until the connection ends, and then removes the connection from the pool.
func (c *conn) run() {
	c.lastRead.Store(int64(time.Since(c.start)))
	c.mu.Lock()
	c.timer = time.AfterFunc(c.pool.cfg.PingAfter, c.onTimer)
	c.timerAt = time.Now().Add(c.pool.cfg.PingAfter)
	c.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() {
		err := c.runReader()
		c.close(err, goAwayCode(err))
	})
	wg.Go(c.runWriter)
	wg.Wait()
	c.mu.Lock()
	c.timer.Stop()
	c.mu.Unlock()
	c.pool.removeConn(c)
}

// wakeWriter wakes the writer goroutine.
func (c *conn) wakeWriter() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// freeStreams returns how many requests may be started now. A connection that is not proven (see
// Proven) carries one request at a time. The caller holds mu.
func (c *conn) freeStreams() int {
	if c.draining || c.err != nil {
		return 0
	}
	limit := c.maxStreams
	if !c.proven {
		limit = min(limit, 1)
	}
	return max(0, min(limit-len(c.streams), int(int64(lastStreamID)-int64(c.nextID)+2)/2))
}

// publishFree tells the pool how many requests may be started now (see freeStreams). The caller
// holds mu.
func (c *conn) publishFree() { c.freeCount.Store(int64(c.freeStreams())) }

// startDraining stops the connection from accepting requests. The caller holds mu.
func (c *conn) startDraining() {
	if c.draining {
		return
	}
	c.draining = true
	c.publishFree()
	c.pool.removeReady(c)
	close(c.drainingCh)
	c.wakeIfDrained()
}

// wakeIfDrained wakes the writer when a draining connection has no more streams. Then the writer
// closes the connection. The caller holds mu.
func (c *conn) wakeIfDrained() {
	if c.draining && len(c.streams) == 0 {
		c.wakeWriter()
	}
}

// drained reports whether the connection accepts no more requests and all its requests have ended.
func (c *conn) drained() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.draining && len(c.streams) == 0
}

// removeStream removes a stream from the connection. The caller holds mu.
func (c *conn) removeStream(r *Request) {
	delete(c.streams, r.id)
	c.byAge.remove(r)
	if r.waitsForWindow {
		r.waitsForWindow = false
		c.windowWaiters--
	}
	r.unwritten = nil
	c.publishFree()
	c.wakeIfDrained()
}

// endStream removes a stream from the connection. If mayRepeat is true and the request may be tried
// once more, endStream queues the request again. Otherwise it appends the request to the slice
// ended and returns the slice; the caller must deliver the requests in it. mayRepeat may be true
// only if the server did not process the request, or cannot have received all of it. The caller
// holds mu.
func (c *conn) endStream(ended []*Request, r *Request, f Failure, mayRepeat bool) []*Request {
	c.removeStream(r)
	if r.headArrived {
		// The status is known. An answer with an incomplete body still counts as an answer.
		f, r.Sent = Answered, false
	}
	r.Failure = f
	if f != Answered && mayRepeat && c.pool.requeue(r) {
		return ended
	}
	c.pool.requestsLeft(1)
	return append(ended, r)
}

// resetStream queues a RST_STREAM. The caller holds mu.
func (c *conn) resetStream(id uint32, code http2.ErrCode) { _ = c.ctlFr.WriteRSTStream(id, code) }

// close closes the connection because of err. If code is not ErrCodeNo, the server violated the
// protocol, and the writer sends a GOAWAY with the code. If the server may have received a whole
// request, the request returns to its batch. The other requests normally go into the queue again.
func (c *conn) close(err error, code http2.ErrCode) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	if code != http2.ErrCodeNo {
		c.pool.cfg.Log.Warn("a provider violated the HTTP/2 protocol; the connection is closed", "code", code.String(), "err", err)
	}
	c.startDraining()
	var done []*Request
	// endStream puts a request at the front of the queue. So begin with the newest request: then
	// the oldest is first in the queue.
	for r := c.byAge.last; r != nil; r = c.byAge.last {
		r.Err = err
		done = c.endStream(done, r, Broken, !r.Sent)
	}
	c.ctl.Reset()
	if code != http2.ErrCodeNo {
		_ = c.ctlFr.WriteGoAway(0, code, nil)
		_ = c.nc.SetWriteDeadline(time.Now().Add(time.Second)) // the writer sends the GOAWAY and closes nc
	}
	c.mu.Unlock()
	deliver(done)
	close(c.closedCh)
	if code == http2.ErrCodeNo {
		// This ends a Read or Write that is blocked.
		_ = c.nc.Close()
	}
}

// cancelBatch cancels the requests of a batch on this connection.
func (c *conn) cancelBatch(b *Batch) {
	var done []*Request
	c.mu.Lock()
	for r := c.byAge.first; r != nil; {
		next := r.next
		if r.batch == b {
			c.resetStream(r.id, http2.ErrCodeCancel)
			done = c.endStream(done, r, Cancelled, false)
		}
		r = next
	}
	c.mu.Unlock()
	if len(done) > 0 {
		deliver(done)
		c.wakeWriter()
	}
}

// onTimer ends requests whose time limit has passed, and sends a PING on a silent connection. It
// closes the connection if the PING is not answered in time.
func (c *conn) onTimer() {
	var done []*Request
	now := time.Now()
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	for r := c.byAge.first; r != nil && !now.Before(r.deadline); r = c.byAge.first {
		c.resetStream(r.id, http2.ErrCodeCancel)
		done = c.endStream(done, r, TimedOut, false)
	}
	lost := false
	next := c.start.Add(time.Duration(c.lastRead.Load()) + c.pool.cfg.PingAfter)
	switch {
	case !c.pinged.IsZero() && !c.start.Add(time.Duration(c.lastRead.Load())).Before(c.pinged):
		c.pinged = time.Time{} // any bytes read after the PING show that the connection works
	case !c.pinged.IsZero():
		next = c.pinged.Add(c.pool.cfg.PingTimeout)
		lost = !now.Before(next)
	case !now.Before(next):
		c.pinged = now
		_ = c.ctlFr.WritePing(false, [8]byte{'n', 'o', 't', 'i', 'f', 'y', 'd'})
		next = now.Add(c.pool.cfg.PingTimeout)
	}
	if r := c.byAge.first; r != nil && r.deadline.Before(next) {
		next = r.deadline
	}
	c.armTimer(now, next)
	c.mu.Unlock()
	deliver(done)
	c.wakeWriter()
	if lost {
		c.close(errPing, http2.ErrCodeNo)
	}
}

var errPing = fmt.Errorf("h2: the server did not answer a PING in time")

// armTimer makes the timer fire at fireAt or earlier. The caller holds mu.
func (c *conn) armTimer(now, fireAt time.Time) {
	if c.timer == nil || c.timerAt.After(now) && !fireAt.Before(c.timerAt) {
		return
	}
	c.timerAt = fireAt
	c.timer.Reset(max(fireAt.Sub(now), time.Millisecond))
}
