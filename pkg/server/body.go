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

// firstRead is what is taken for a body of which nothing has come, and growth
// how many times what came of it the buffer may be: a length is only announced,
// and must not keep others out. At a growth of 8 an eighth of a body is copied,
// at 2 all of it.
const (
	firstRead = 16 << 10
	growth    = 8
)

// body is what was read of one request; release gives the memory back.
type body struct {
	data  []byte
	wire  int64 // bytes as they came
	buf   *buffer
	taken int64
	from  *memory
	by    *share
}

func (b *body) release() {
	if b.buf != nil {
		b.from.put(b.buf)
		b.from.release(b.by, b.taken)
	}
	*b = body{}
}

// grow makes room for n bytes, keeping the first used.
func (b *body) grow(ctx context.Context, n int64, used int) error {
	if b.buf != nil && int64(len(b.buf.b)) >= n {
		return nil
	}
	size := int64(minBuffer) << classOf(n)
	if err := b.from.take(ctx, b.by, b.taken, size); err != nil {
		return err
	}
	b.taken = size
	next := b.from.get(n)
	if b.buf != nil {
		copy(next.b, b.buf.b[:used])
		b.from.put(b.buf)
	}
	b.buf = next
	return nil
}

// read reads r's body of at most limit bytes, decompressed if it is gzip, into
// memory of from that by holds. pace is told when reading stood still for the
// memory; nil: nobody is.
func (b *body) read(r *http.Request, limit int64, from *memory, by *share, pace *pace) error {
	b.from, b.by = from, by
	if r.ContentLength > limit {
		return tooLarge(limit) // before any of it is read
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
		return notify.Invalid(api.CodeUnsupportedMediaType, "Content-Encoding", "bodies may be gzip or not compressed")
	}
	if r.ContentLength < 0 || r.ContentLength > firstRead {
		n, err := b.readAll(r.Context(), src, limit, r.ContentLength, pace)
		if b.wire = int64(n); err == nil && r.ContentLength > b.wire {
			err = readError(io.ErrUnexpectedEOF)
		}
		return err
	}
	if err := b.grow(r.Context(), r.ContentLength, 0); err != nil {
		return err
	}
	b.data = b.buf.b[:r.ContentLength]
	n, err := io.ReadFull(src, b.data)
	b.wire = int64(n)
	if err != nil {
		return readError(err)
	}
	return nil
}

// readAll reads src to its end, at most limit bytes. length is how many there
// are; below 0: not known.
func (b *body) readAll(ctx context.Context, src io.Reader, limit, length int64, pace *pace) (n int, err error) {
	if err := b.grow(ctx, min(firstRead, limit), 0); err != nil {
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
		if int64(n) >= maxBuffer { // only its end may follow
			var one [1]byte
			if m, _ := io.ReadFull(src, one[:]); m > 0 {
				return n, tooLarge(limit)
			}
			b.data = b.buf.b[:n]
			return n, nil
		}
		next := 2 * int64(n)
		if length > 0 {
			if next = growth * int64(n); 2*next >= length {
				next = length
			}
		}
		start := time.Now()
		if err = b.grow(ctx, min(next, maxBuffer), n); err != nil {
			return n, err
		}
		pace.pause(time.Since(start))
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
	case !errors.Is(err, io.EOF):
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

func (b *body) inflate(ctx context.Context, from io.Reader, limit int64, pace *pace) error {
	src := &counter{r: io.LimitReader(from, limit+1)}
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
		_, err = b.readAll(ctx, z, limit, -1, pace)
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
	if e, ok := errors.AsType[*notify.Error](err); ok {
		return e
	}
	var corrupt flate.CorruptInputError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &notify.Error{Kind: notify.KindInvalid, Code: api.CodeBodyTimeout, Msg: "the body was not there in the time for it", Err: err}
	case errors.Is(err, errBehindGzip):
		return &notify.Error{Kind: notify.KindInvalid, Code: api.CodeMalformed, Msg: "bytes follow the gzip data of the body; nothing may follow but more gzip data", Err: err}
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
