package server

import (
	"context"
	"errors"
	"io"
	"math/bits"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// A body is read as a whole into a pooled buffer, whose size is a power of two. So even a fan-out
// of a megabyte is read from the socket into memory that is already mapped and need not be zeroed
// (BenchmarkReadBody).
const (
	minBuffer = 1 << 10
	maxBuffer = 64 << 20
)

// buffer is pooled memory for a body. The length of b is a power of two.
type buffer struct{ b []byte }

// share counts how many bytes of a memory (see the type below) the bodies of one caller use. memory.mu
// guards it.
type share struct{ held int64 }

// memory bounds the bytes that all bodies use at the same time, shares them between callers, and
// pools the buffers.
//
// A body may grow only if afterwards all bodies of its caller together use at most as much memory
// as is still free. So a caller that is alone can use half of the memory. A second caller can then
// use half of the rest, and so on. In the long run n busy callers get 1/(n+1) of the memory each.
// This limit does not apply to the only body of a caller: it needs only enough free memory.
type memory struct {
	size int64
	wait time.Duration // how long a body waits for memory; 0: it does not wait

	mu      sync.Mutex
	held    int64
	waiting []*waiter // in order of arrival

	buffers   [27 - 10]sync.Pool // of *buffer, by log2(size) - 10
	inflaters sync.Pool          // of *inflater
}

// waiter is a body that waits until it may grow from oldSize to newSize bytes.
type waiter struct {
	share            *share // of the body's caller; nil: no caller
	oldSize, newSize int64
	ready            chan struct{} // closed by wakeWaiters after the bytes are reserved
}

func newMemory(bytes int64, wait time.Duration) *memory { return &memory{size: bytes, wait: wait} }

func classOf(n int64) int { return bits.Len64(uint64(max(n, minBuffer)-1)) - 10 }

func (m *memory) get(n int64) *buffer {
	class := classOf(n)
	if b, ok := m.buffers[class].Get().(*buffer); ok {
		return b
	}
	return &buffer{make([]byte, minBuffer<<class)}
}

func (m *memory) put(b *buffer) { m.buffers[classOf(int64(len(b.b)))].Put(b) }

// reserveResult says whether a body may use more bytes.
type reserveResult uint8

const (
	reserveOK  reserveResult = iota
	memoryFull               // not enough memory is free
	shareUsed                // memory is free, but this caller has used its share
)

// checkReserve reports whether a body may grow from oldSize to newSize bytes. callerShare is the
// share of the body's caller, or nil. The calling goroutine holds mu.
func (m *memory) checkReserve(callerShare *share, oldSize, newSize int64) reserveResult {
	free := m.size - (m.held - oldSize + newSize)
	switch {
	case free < 0:
		return memoryFull
	case callerShare != nil && callerShare.held > oldSize && callerShare.held-oldSize+newSize > free:
		return shareUsed
	}
	return reserveOK
}

// adjustHeld records that a body changed from oldSize to newSize bytes, and charges the difference
// to callerShare. The calling goroutine holds mu.
func (m *memory) adjustHeld(callerShare *share, oldSize, newSize int64) {
	m.held += newSize - oldSize
	if callerShare != nil {
		callerShare.held += newSize - oldSize
	}
}

// reserve reserves memory, so that a body may grow from oldSize to newSize bytes. It charges the
// difference to callerShare, which is nil for bodies without a caller. It waits up to m.wait. If
// the bytes do not become free in time, or ctx ends, it returns an error with the code "busy" or
// "caller_memory".
func (m *memory) reserve(ctx context.Context, callerShare *share, oldSize, newSize int64) error {
	m.mu.Lock()
	// If an earlier body waits for free memory, a later body must wait too. Otherwise small bodies
	// could keep a large body waiting forever.
	now := m.checkReserve(callerShare, oldSize, newSize)
	if now == reserveOK && slices.ContainsFunc(m.waiting, func(w *waiter) bool { return m.checkReserve(w.share, w.oldSize, w.newSize) == memoryFull }) {
		now = memoryFull
	}
	if now == reserveOK {
		m.adjustHeld(callerShare, oldSize, newSize)
		m.mu.Unlock()
		return nil
	}
	if m.wait == 0 {
		m.mu.Unlock()
		return reserveError(now)
	}
	w := &waiter{callerShare, oldSize, newSize, make(chan struct{})}
	m.waiting = append(m.waiting, w)
	m.mu.Unlock()

	timer := time.NewTimer(m.wait)
	defer timer.Stop()
	select {
	case <-w.ready:
		return nil
	case <-timer.C:
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.Index(m.waiting, w)
	if i < 0 {
		return nil // wakeWaiters has just reserved the bytes
	}
	m.waiting = slices.Delete(m.waiting, i, i+1)
	now = m.checkReserve(callerShare, oldSize, newSize)
	m.wakeWaiters() // the waiters after this one may fit now
	return reserveError(max(now, memoryFull))
}

// release gives back n bytes that were charged to callerShare.
func (m *memory) release(callerShare *share, n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.adjustHeld(callerShare, n, 0)
	m.wakeWaiters()
}

// wakeWaiters reserves memory for waiting bodies that now fit. It may skip a body whose caller has
// used its share. It never skips a body that only waits for free memory, so that large bodies are
// not starved. The caller holds mu.
func (m *memory) wakeWaiters() {
	for i := 0; i < len(m.waiting); {
		w := m.waiting[i]
		switch m.checkReserve(w.share, w.oldSize, w.newSize) {
		case memoryFull:
			return
		case shareUsed:
			i++
		case reserveOK:
			m.adjustHeld(w.share, w.oldSize, w.newSize)
			m.waiting = slices.Delete(m.waiting, i, i+1)
			close(w.ready)
		}
	}
}

func reserveError(why reserveResult) error {
	if why == shareUsed {
		return overShare("caller_memory", "this caller's request bodies use its share of the memory; send fewer large requests at once")
	}
	return &notify.Error{Kind: notify.KindUnavailable, Code: "busy", Msg: "too many large requests are being read", RetryAfter: time.Second}
}

// overShare returns the error for a caller that has used its share. There may still be room for
// other callers.
func overShare(code, msg string) error {
	return &notify.Error{Kind: notify.KindThrottled, Code: code, Msg: msg, RetryAfter: time.Second}
}

// bodyPace reads a large body and stops if the body arrives too slowly. In each window at least
// minWindowBytes must arrive, or the rest of the body if it is shorter. Without this check slow
// clients could use memory and request places for a long time. Only the goroutine that reads the
// body uses a bodyPace.
type bodyPace struct {
	r              io.Reader
	conn           *http.ResponseController
	window         time.Duration
	minWindowBytes int64     // bytes that must arrive in a window
	end            time.Time // end of the window
	until          time.Time // deadline of the whole body

	bytesRead, windowBytes int64 // bytes read so far, and the value of bytesRead at which the next window starts
	slowErr                error // error of a body that was too slow in a window
}

// newBodyPace returns the bodyPace of x's body.
func newBodyPace(x *exchange, rate int64, window, all time.Duration) *bodyPace {
	p := &bodyPace{
		conn: http.NewResponseController(x.w), window: window,
		minWindowBytes: max(1, int64(float64(rate)*window.Seconds())), until: time.Now().Add(all),
		slowErr: &notify.Error{
			Kind: notify.KindInvalid, Code: api.CodeBodyTimeout,
			Msg: "the body arrived slower than " + byteSize(rate) + " per second, measured over " + window.String(),
		},
	}
	_ = p.conn.SetWriteDeadline(p.until.Add(x.srv.cfg.WriteTimeout)) // the recorder of a test has no deadline
	p.startWindow()
	return p
}

// startWindow starts the next window.
func (p *bodyPace) startWindow() {
	p.windowBytes = p.bytesRead + p.minWindowBytes
	p.setWindowEnd(time.Now().Add(p.window))
}

func (p *bodyPace) setWindowEnd(end time.Time) {
	if end.After(p.until) {
		end = p.until
	}
	p.end = end
	_ = p.conn.SetReadDeadline(end)
}

// extendWindow makes the window longer by d, the time in which the server did not read the body. On
// a nil bodyPace it does nothing.
func (p *bodyPace) extendWindow(d time.Duration) {
	if p != nil && d > time.Millisecond {
		p.setWindowEnd(p.end.Add(d))
	}
}

func (p *bodyPace) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if p.bytesRead += int64(n); p.bytesRead >= p.windowBytes && err == nil { // after the end of the body, this deadline must not change any more: it belongs to the answer
		p.startWindow()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(p.until) {
		err = p.slowErr
	}
	return n, err
}
