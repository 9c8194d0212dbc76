package server

import (
	"bufio"
	"compress/flate"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// A client may announce a body that it never sends. So the announced length must not reserve memory
// that other requests need. Before the first byte arrives, at most initialReadSize bytes are
// reserved. Each time the buffer is full, it grows to maxBufferGrowth times its size, or to the
// announced length if that is at most twice as much. Without an announced length it grows to twice
// its size. With a growth of 8, about an eighth of a body is copied when the buffer grows; with a
// growth of 2, all of it is copied.
const (
	initialReadSize = 16 << 10
	maxBufferGrowth = 8
)

// body contains the body of one request. The method release gives its memory back.
type body struct {
	data      []byte
	wireBytes int64 // bytes read from the connection, compressed or not
	buf       *buffer
	reserved  int64
	memory    *memory
	share     *share
}

func (b *body) release() {
	if b.buf != nil {
		b.memory.put(b.buf)
		b.memory.release(b.share, b.reserved)
	}
	*b = body{}
}

// grow makes the buffer at least n bytes large. The parameter used is how many bytes have arrived;
// grow keeps them. grow returns the error of memory.reserve.
func (b *body) grow(ctx context.Context, n int64, used int) error {
	if b.buf != nil && int64(len(b.buf.b)) >= n {
		return nil
	}
	size := int64(minBuffer) << classOf(n)
	if err := b.memory.reserve(ctx, b.share, b.reserved, size); err != nil {
		return err
	}
	b.reserved = size
	next := b.memory.get(n)
	if b.buf != nil {
		copy(next.b, b.buf.b[:used])
		b.memory.put(b.buf)
	}
	b.buf = next
	return nil
}

// read reads the body of r, at most limit bytes, and decompresses it if it is gzip. It reserves
// memory in pool and counts it for the caller in callerShare. If the growing buffer has to wait for
// memory, read extends the window in pace by the time of the wait. pace may be nil.
func (b *body) read(r *http.Request, limit int64, pool *memory, callerShare *share, pace *bodyPace) error {
	b.memory, b.share = pool, callerShare
	if r.ContentLength > limit {
		return tooLarge(limit) // refused before any byte is read
	}
	src := io.Reader(r.Body)
	if pace != nil {
		pace.r, src = src, pace
	}
	switch enc := r.Header.Get("Content-Encoding"); {
	case enc == "" || strings.EqualFold(enc, "identity"):
	case strings.EqualFold(enc, "gzip"):
		return b.inflate(r.Context(), src, limit, pace)
	default:
		return notify.Invalid(api.CodeUnsupportedMediaType, "Content-Encoding", `must be "gzip", "identity" or omitted`)
	}
	if r.ContentLength < 0 || r.ContentLength > initialReadSize {
		n, err := b.readAll(r.Context(), src, limit, r.ContentLength, pace)
		if b.wireBytes = int64(n); err == nil && r.ContentLength > b.wireBytes {
			err = readError(io.ErrUnexpectedEOF)
		}
		return err
	}
	if err := b.grow(r.Context(), r.ContentLength, 0); err != nil {
		return err
	}
	b.data = b.buf.b[:r.ContentLength]
	n, err := io.ReadFull(src, b.data)
	b.wireBytes = int64(n)
	if err != nil {
		return readError(err)
	}
	return nil
}

// readAll reads src to its end, at most limit bytes. The parameter length is the number of bytes
// that the client announced, or negative if it announced none.
func (b *body) readAll(ctx context.Context, src io.Reader, limit, length int64, pace *bodyPace) (n int, err error) {
	if err := b.grow(ctx, min(initialReadSize, limit), 0); err != nil {
		return 0, err
	}
	for {
		m, err := src.Read(b.buf.b[n:])
		n += m
		switch {
		case int64(n) > limit:
			return n, tooLarge(limit)
		case errors.Is(err, io.EOF), int64(n) == length:
			b.data = b.buf.b[:n]
			return n, nil
		case err != nil:
			return n, readError(err)
		}
		if n < len(b.buf.b) {
			continue
		}
		if int64(n) >= maxBuffer { // the buffer is full: no more bytes may follow
			var one [1]byte
			if m, _ := io.ReadFull(src, one[:]); m > 0 {
				return n, tooLarge(limit)
			}
			b.data = b.buf.b[:n]
			return n, nil
		}
		next := 2 * int64(n)
		if length > 0 {
			if next = maxBufferGrowth * int64(n); 2*next >= length {
				next = length
			}
		}
		start := time.Now()
		if err = b.grow(ctx, min(next, maxBuffer), n); err != nil {
			return n, err
		}
		pace.extendWindow(time.Since(start))
	}
}

// inflater decompresses gzip. Its reader stops exactly at the end of each gzip member.
type inflater struct {
	gzip.Reader
	src bufio.Reader
}

var errTrailingBytes = errors.New("the gzip data is followed by other bytes")

// Read reads one gzip member after another (RFC 1952).
func (z *inflater) Read(p []byte) (int, error) {
	n, err := z.Reader.Read(p)
	switch {
	case !errors.Is(err, io.EOF):
		return n, err
	case n > 0:
		return n, nil // the next call reports the end
	}
	next, err := z.src.Peek(2)
	switch {
	case len(next) == 0:
		return 0, err
	case string(next) != "\x1f\x8b":
		return 0, errTrailingBytes
	}
	if err := z.Reset(&z.src); err != nil {
		return 0, err
	}
	z.Multistream(false)
	return 0, nil
}

func (b *body) inflate(ctx context.Context, from io.Reader, limit int64, pace *bodyPace) error {
	src := &byteCounter{r: io.LimitReader(from, limit+1)}
	z, _ := b.memory.inflaters.Get().(*inflater)
	if z == nil {
		z = new(inflater)
	}
	defer b.memory.inflaters.Put(z)
	defer func() { b.wireBytes = src.n }()
	z.src.Reset(src)
	err := z.Reset(&z.src)
	if err == nil {
		z.Multistream(false)
		_, err = b.readAll(ctx, z, limit, -1, pace)
	} else {
		err = readError(err)
	}
	if src.n > limit { // LimitReader has cut off further bytes
		return tooLarge(limit)
	}
	return err
}

type byteCounter struct {
	r io.Reader
	n int64
}

func (c *byteCounter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

func tooLarge(limit int64) error {
	return &notify.Error{Kind: notify.KindTooLarge, Code: "body_too_large", Msg: "the body is larger than " + byteSize(limit)}
}

// readError returns the *notify.Error for an error of reading a body.
func readError(err error) error {
	if e, ok := errors.AsType[*notify.Error](err); ok {
		return e
	}
	var corrupt flate.CorruptInputError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &notify.Error{Kind: notify.KindInvalid, Code: api.CodeBodyTimeout, Msg: "the body did not arrive in time", Err: err}
	case errors.Is(err, errTrailingBytes):
		return &notify.Error{Kind: notify.KindInvalid, Code: api.CodeMalformed, Msg: "the gzip data of the body is followed by other bytes; only more gzip data may follow", Err: err}
	case errors.Is(err, gzip.ErrHeader), errors.Is(err, gzip.ErrChecksum), errors.As(err, &corrupt):
		return &notify.Error{Kind: notify.KindInvalid, Code: api.CodeMalformed, Msg: "the body is not valid gzip", Err: err}
	}
	return &notify.Error{Kind: notify.KindInvalid, Code: api.CodeMalformed, Msg: "the body ended early", Err: err}
}

func byteSize(n int64) string {
	switch {
	case n >= 1<<20:
		return strconv.FormatInt(n>>20, 10) + " MiB"
	case n >= 1<<10:
		return strconv.FormatInt(n>>10, 10) + " KiB"
	}
	return strconv.FormatInt(n, 10) + " bytes"
}
