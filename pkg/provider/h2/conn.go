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
	// What a server may assume until it says otherwise (RFC 9113, 6.5.2).
	defaultWindow   = 65535
	defaultFrame    = 16384
	maxWindow       = 1<<31 - 1
	unlimitedStream = 1000 // where the server names no limit, as net/http

	// connWindow is how many bytes of answers may be on their way on a connection.
	connWindow = 1 << 20
	// maxBlock bounds a header block of the server, in bytes.
	maxBlock = 64 << 10
	// maxControl bounds acknowledgements that wait to be written, in bytes: who
	// sends PING or SETTINGS faster than it reads is no friend.
	maxControl = 256 << 10
	// lastStreamID is the highest id of a stream.
	lastStreamID = 1<<31 - 1
)

// conn is one connection. Its reader and its writer are the only goroutines that
// touch what stands above the lock.
type conn struct {
	pool *Pool
	nc   net.Conn

	// The reader's.
	br       *bufio.Reader
	fr       *http2.Framer
	dec      *hpack.Decoder
	head     head
	block    headerBlock
	finished []*Request // done, not yet delivered
	received int        // bytes of the connection's window not yet given back

	// The writer's.
	out   []byte
	marks []mark
	taken []*Request

	wake  chan struct{} // the writer has something to do
	gone  chan struct{} // it takes no more requests
	ended chan struct{} // it is closed
	heard atomic.Int64  // when something was read last, since start
	free  atomic.Int64  // streams it could take now
	start time.Time

	mu      sync.Mutex
	enc     *encoder
	ctl     bytes.Buffer // control frames to write next
	ctlFr   *http2.Framer
	streams map[uint32]*Request
	age     list // the same, oldest first
	blocked int  // of them, how many wait for a window
	nextID  uint32
	limit   int // streams the server allows
	frame   int // largest frame it takes
	listMax uint32
	window  int64 // of the connection: what the server still takes
	initial int64 // window of a new stream
	allowed int   // bytes of answers it may still send
	proven  bool  // it was answered, our credentials are good
	left    bool  // it takes nothing more
	err     error // it is closed
	timer   *time.Timer
	timerAt time.Time // when it goes off
	pinged  time.Time // when the PING that waits for its answer was sent; zero: none
}

// mark is where in the writer's buffer a request ends.
type mark struct {
	id  uint32
	end int
}

func newConn(p *Pool, nc net.Conn) *conn {
	c := &conn{
		pool: p, nc: nc, start: time.Now(),
		br:   bufio.NewReaderSize(nc, 32<<10),
		wake: make(chan struct{}, 1), gone: make(chan struct{}), ended: make(chan struct{}),
		enc: newEncoder(), streams: map[uint32]*Request{}, nextID: p.cfg.firstID,
		limit: unlimitedStream, frame: defaultFrame, listMax: ^uint32(0), window: defaultWindow, initial: defaultWindow, allowed: connWindow,
	}
	c.fr = http2.NewFramer(nil, c.br)
	c.fr.SetReuseFrames()
	c.fr.SetMaxReadFrameSize(defaultFrame)
	c.ctlFr = http2.NewFramer(&c.ctl, nil)
	c.dec = hpack.NewDecoder(tableSize, c.onField)
	c.dec.SetMaxStringLength(maxBlock)
	return c
}

// greet exchanges the first frames (RFC 9113, 3.4). The caller bounds it by a
// deadline on the connection.
func (c *conn) greet() error {
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
		return fmt.Errorf("h2: the first frame is %v, not SETTINGS", f.Header().Type)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if code := c.onSettings(s); code != http2.ErrCodeNo {
		return http2.ConnectionError(code)
	}
	return nil
}

// run reads and writes until the connection ends.
func (c *conn) run() {
	c.heard.Store(int64(time.Since(c.start)))
	c.mu.Lock()
	c.timer = time.AfterFunc(c.pool.cfg.PingAfter, c.onTimer)
	c.timerAt = time.Now().Add(c.pool.cfg.PingAfter)
	c.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() {
		err := c.read()
		c.close(err, codeOf(err))
	})
	wg.Go(c.write)
	wg.Wait()
	c.mu.Lock()
	c.timer.Stop()
	c.mu.Unlock()
	c.pool.forget(c)
}

func (c *conn) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// room is how many requests may be begun now. The lock is held.
func (c *conn) room() int {
	if c.left || c.err != nil {
		return 0
	}
	limit := c.limit
	if !c.proven {
		limit = min(limit, 1)
	}
	return max(0, min(limit-len(c.streams), int(int64(lastStreamID)-int64(c.nextID)+2)/2))
}

// recount publishes room. The lock is held.
func (c *conn) recount() { c.free.Store(int64(c.room())) }

// leave ends the taking of requests. The lock is held.
func (c *conn) leave() {
	if c.left {
		return
	}
	c.left = true
	c.recount()
	c.pool.detach(c)
	close(c.gone)
	c.settleDrain()
}

// settleDrain lets the writer close a connection that has left and is done. The lock is held.
func (c *conn) settleDrain() {
	if c.left && len(c.streams) == 0 {
		c.signal()
	}
}

// drained reports whether the connection has nothing left to do, or is closed.
func (c *conn) drained() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left && len(c.streams) == 0
}

// drop takes a stream out of the connection. The lock is held.
func (c *conn) drop(r *Request) {
	delete(c.streams, r.id)
	c.age.remove(r)
	if r.waiting {
		r.waiting = false
		c.blocked--
	}
	r.rest = nil
	c.recount()
	c.settleDrain()
}

// end takes a stream out and hands the request back, or queues it again where
// the server cannot have seen all of it. The lock is held; requests to deliver
// are appended to to.
func (c *conn) end(to []*Request, r *Request, f Failure, again bool) []*Request {
	c.drop(r)
	if r.afterHead {
		f, r.Sent = Answered, false // an answer whose body was cut is an answer
	}
	r.Failure = f
	if f != Answered && again && c.pool.requeue(r) {
		return to
	}
	c.pool.finished(1)
	return append(to, r)
}

// rst tells the server to forget a stream. The lock is held.
func (c *conn) rst(id uint32, code http2.ErrCode) { _ = c.ctlFr.WriteRSTStream(id, code) }

// close ends the connection for an error, with a GOAWAY where the server broke
// the protocol. What it carried is handed back.
func (c *conn) close(err error, code http2.ErrCode) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	if code != http2.ErrCodeNo {
		c.pool.cfg.Log.Warn("a provider broke the rules of HTTP/2", "code", code.String(), "err", err)
	}
	c.leave()
	var done []*Request
	for r := c.age.last; r != nil; r = c.age.last { // so that what is queued again keeps its order
		r.Err = err
		done = c.end(done, r, Broken, !r.Sent)
	}
	c.ctl.Reset()
	if code != http2.ErrCodeNo {
		_ = c.ctlFr.WriteGoAway(0, code, nil)
		_ = c.nc.SetWriteDeadline(time.Now().Add(time.Second)) // for the writer, which sends it
	}
	c.mu.Unlock()
	deliver(done)
	close(c.ended)
	if code == http2.ErrCodeNo {
		// Whatever is in a Write or Read ends by this.
		_ = c.nc.Close()
	}
}

// abandon gives up the requests of a batch.
func (c *conn) abandon(b *Batch) {
	var done []*Request
	c.mu.Lock()
	for r := c.age.first; r != nil; {
		next := r.next
		if r.batch == b {
			c.rst(r.id, http2.ErrCodeCancel)
			done = c.end(done, r, Cancelled, false)
		}
		r = next
	}
	c.mu.Unlock()
	if len(done) > 0 {
		deliver(done)
		c.signal()
	}
}

// onTimer gives up what has waited too long for its answer, and finds out
// whether a silent connection is alive.
func (c *conn) onTimer() {
	var done []*Request
	now := time.Now()
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	for r := c.age.first; r != nil && !now.Before(r.deadline); r = c.age.first {
		c.rst(r.id, http2.ErrCodeCancel)
		done = c.end(done, r, TimedOut, false)
	}
	lost := false
	next := c.start.Add(time.Duration(c.heard.Load()) + c.pool.cfg.PingAfter)
	switch {
	case !c.pinged.IsZero() && !c.start.Add(time.Duration(c.heard.Load())).Before(c.pinged):
		c.pinged = time.Time{} // anything that was heard is a sign of life
	case !c.pinged.IsZero():
		next = c.pinged.Add(c.pool.cfg.PingTimeout)
		lost = !now.Before(next)
	case !now.Before(next):
		c.pinged = now
		_ = c.ctlFr.WritePing(false, [8]byte{'n', 'o', 't', 'i', 'f', 'y', 'd'})
		next = now.Add(c.pool.cfg.PingTimeout)
	}
	if r := c.age.first; r != nil && r.deadline.Before(next) {
		next = r.deadline
	}
	c.arm(now, next)
	c.mu.Unlock()
	deliver(done)
	c.signal()
	if lost {
		c.close(errPing, http2.ErrCodeNo)
	}
}

var errPing = fmt.Errorf("h2: no answer to a PING")

// arm sets the timer, unless it goes off before. The lock is held.
func (c *conn) arm(now, at time.Time) {
	if c.timer == nil || c.timerAt.After(now) && !at.Before(c.timerAt) {
		return
	}
	c.timerAt = at
	c.timer.Reset(max(at.Sub(now), time.Millisecond))
}
