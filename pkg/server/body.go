package server

import (
	"bufio"
	"compress/flate"
	"context"
	"errors"
	"io"
	"math/bits"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"golang.org/x/sync/semaphore"
)

// Bodies are read whole into pooled buffers of a power of two: a fan-out of a
// megabyte is then read straight from the socket into memory that is already
// mapped and not zeroed (BenchmarkReadBody).
const (
	minBuffer = 1 << 10
	maxBuffer = 64 << 20
	firstRead = 16 << 10 // what is taken for a body whose length is not believed
)

// buffer is pooled memory for a body; b has the size of its class.
type buffer struct{ b []byte }

// memory bounds the bytes of bodies held at a time, and keeps their buffers.
type memory struct {
	sem       *semaphore.Weighted
	wait      time.Duration      // for memory to become free; 0: none
	buffers   [27 - 10]sync.Pool // of *buffer, by log2(size) - 10
	inflaters sync.Pool          // of *inflater
}

func newMemory(bytes int64, wait time.Duration) *memory {
	return &memory{sem: semaphore.NewWeighted(bytes), wait: wait}
}

func classOf(n int64) int { return bits.Len64(uint64(max(n, minBuffer)-1)) - 10 }

func (m *memory) get(n int64) *buffer {
	class := classOf(n)
	if b, ok := m.buffers[class].Get().(*buffer); ok {
		return b
	}
	return &buffer{make([]byte, minBuffer<<class)}
}

func (m *memory) put(b *buffer) { m.buffers[classOf(int64(len(b.b)))].Put(b) }

func (m *memory) take(ctx context.Context, n int64) error {
	if m.sem.TryAcquire(n) {
		return nil
	}
	if m.wait > 0 {
		ctx, cancel := context.WithTimeout(ctx, m.wait)
		defer cancel()
		if m.sem.Acquire(ctx, n) == nil {
			return nil
		}
	}
	return &notify.Error{Kind: notify.KindUnavailable, Code: "busy", Msg: "too many large requests are being read", RetryAfter: time.Second}
}

// body is what was read of one request; release gives the memory back.
type body struct {
	data  []byte
	wire  int64 // bytes as they came
	buf   *buffer
	taken int64
	from  *memory
}

func (b *body) release() {
	if b.buf != nil {
		b.from.put(b.buf)
		b.from.sem.Release(b.taken)
	}
	*b = body{}
}

// grow makes room for n bytes, keeping the first used.
func (b *body) grow(ctx context.Context, n int64, used int) error {
	if b.buf != nil && int64(len(b.buf.b)) >= n {
		return nil
	}
	size := int64(minBuffer) << classOf(n)
	if err := b.from.take(ctx, size); err != nil {
		return err
	}
	next := b.from.get(n)
	if b.buf != nil {
		copy(next.b, b.buf.b[:used])
		b.from.put(b.buf)
		b.from.sem.Release(b.taken)
	}
	b.buf, b.taken = next, size
	return nil
}

// read reads r's body of at most limit bytes, decompressed if it is gzip.
func (b *body) read(r *http.Request, limit int64, from *memory) error {
	b.from = from
	if r.ContentLength > limit {
		return tooLarge(limit) // before any of it is read
	}
	switch enc := r.Header.Get("Content-Encoding"); {
	case enc == "" || strings.EqualFold(enc, "identity"):
	case strings.EqualFold(enc, "gzip"):
		return b.inflate(r, limit)
	default:
		return notify.Invalid(api.CodeUnsupportedMediaType, "Content-Encoding", "bodies may be gzip or not compressed")
	}
	// Where nobody waits for memory it is taken as the body comes: a length that
	// is only announced must not keep others out.
	if r.ContentLength < 0 || (from.wait == 0 && r.ContentLength > firstRead) {
		n, err := b.readAll(r.Context(), r.Body, limit)
		if b.wire = int64(n); err == nil && r.ContentLength > b.wire {
			err = readError(io.ErrUnexpectedEOF)
		}
		return err
	}
	if err := b.grow(r.Context(), r.ContentLength, 0); err != nil {
		return err
	}
	b.data = b.buf.b[:r.ContentLength]
	n, err := io.ReadFull(r.Body, b.data)
	b.wire = int64(n)
	if err != nil {
		return readError(err)
	}
	return nil
}

// readAll reads src to its end, at most limit bytes.
func (b *body) readAll(ctx context.Context, src io.Reader, limit int64) (n int, err error) {
	if err := b.grow(ctx, min(firstRead, limit), 0); err != nil {
		return 0, err
	}
	for {
		m, err := src.Read(b.buf.b[n:])
		n += m
		switch {
		case int64(n) > limit:
			return n, tooLarge(limit)
		case err == io.EOF:
			b.data = b.buf.b[:n]
			return n, nil
		case err != nil:
			return n, readError(err)
		}
		if n == len(b.buf.b) {
			if int64(n) >= maxBuffer { // only its end may follow
				var one [1]byte
				if m, _ := io.ReadFull(src, one[:]); m > 0 {
					return n, tooLarge(limit)
				}
				b.data = b.buf.b[:n]
				return n, nil
			}
			if err := b.grow(ctx, int64(n)+1, n); err != nil {
				return n, err
			}
		}
	}
}

// inflater unpacks gzip. Its reader stops exactly where a member ends.
type inflater struct {
	gzip.Reader
	src bufio.Reader
}

var errBehindGzip = errors.New("bytes follow the gzip data that are no gzip data")

// Read reads the members of the stream one after the other (RFC 1952).
func (z *inflater) Read(p []byte) (int, error) {
	n, err := z.Reader.Read(p)
	switch {
	case err != io.EOF:
		return n, err
	case n > 0:
		return n, nil // the end is met again
	}
	next, err := z.src.Peek(2)
	switch {
	case len(next) == 0:
		return 0, err
	case string(next) != "\x1f\x8b":
		return 0, errBehindGzip
	}
	if err := z.Reset(&z.src); err != nil {
		return 0, err
	}
	z.Multistream(false)
	return 0, nil
}

func (b *body) inflate(r *http.Request, limit int64) error {
	src := &counter{r: io.LimitReader(r.Body, limit+1)}
	z, _ := b.from.inflaters.Get().(*inflater)
	if z == nil {
		z = new(inflater)
	}
	defer b.from.inflaters.Put(z)
	defer func() { b.wire = src.n }()
	z.src.Reset(src)
	err := z.Reset(&z.src)
	if err == nil {
		z.Multistream(false)
		_, err = b.readAll(r.Context(), z, limit)
	} else {
		err = readError(err)
	}
	if src.n > limit { // and what came behind was cut off
		return tooLarge(limit)
	}
	return err
}

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

func tooLarge(limit int64) error {
	return &notify.Error{Kind: notify.KindTooLarge, Code: "body_too_large", Msg: "the body is larger than " + byteSize(limit)}
}

// readError translates what reading a body says.
func readError(err error) error {
	var corrupt flate.CorruptInputError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &notify.Error{Kind: notify.KindInvalid, Code: api.CodeBodyTimeout, Msg: "the body came too slowly", Err: err}
	case errors.Is(err, errBehindGzip):
		return &notify.Error{Kind: notify.KindInvalid, Code: api.CodeMalformed, Msg: "bytes follow the gzip data of the body; nothing may follow but more gzip data", Err: err}
	case errors.Is(err, gzip.ErrHeader), errors.Is(err, gzip.ErrChecksum), errors.As(err, &corrupt):
		return &notify.Error{Kind: notify.KindInvalid, Code: api.CodeMalformed, Msg: "the body is not valid gzip", Err: err}
	}
	return &notify.Error{Kind: notify.KindInvalid, Code: api.CodeMalformed, Msg: "the body ended early", Err: err}
}

func byteSize(n int64) string {
	if n >= 1<<20 {
		return strconv.FormatInt(n>>20, 10) + " MiB"
	}
	return strconv.FormatInt(n>>10, 10) + " KiB"
}
