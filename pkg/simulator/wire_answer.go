package simulator

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// errRefuse, as a panic of a handler, refuses the stream.
var errRefuse = errors.New("simulator: refuse the stream")

// handle runs the handler of a request.
func (c *wireConn) handle(ctx context.Context, s *wireStream) {
	w := &wireWriter{c: c, s: s, header: http.Header{}}
	defer func() {
		switch v := recover(); v {
		case nil:
			w.end()
		case errRefuse:
			c.srv.count(func(s *WireStats) { s.Refused++ })
			c.say(func() { c.rst(s.id, http2.ErrCodeRefusedStream) })
		case http.ErrAbortHandler:
			c.say(func() {
				if c.streams[s.id] == s { // not when the caller gave it up
					c.rst(s.id, http2.ErrCodeInternal)
				}
			})
		default:
			panic(v)
		}
	}()
	r := (&http.Request{
		Method: "GET", URL: &url.URL{}, Proto: "HTTP/2.0", ProtoMajor: 2, Header: make(http.Header, len(s.head)),
		Body: io.NopCloser(bytes.NewReader(s.body)), ContentLength: int64(len(s.body)), RemoteAddr: c.nc.RemoteAddr().String(),
	}).WithContext(ctx)
	for _, f := range s.head {
		switch f.Name {
		case ":method":
			r.Method = f.Value
		case ":authority":
			r.Host = f.Value
		case ":path":
			u, err := url.ParseRequestURI(f.Value)
			if err != nil {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			r.URL = u
		case ":scheme":
		default:
			name := http.CanonicalHeaderKey(f.Name)
			r.Header[name] = append(r.Header[name], f.Value)
		}
	}
	c.srv.handler.ServeHTTP(w, r)
}

// wireWriter is the answer of one request. It is kept back until it is complete
// or flushed.
type wireWriter struct {
	c      *wireConn
	s      *wireStream
	header http.Header
	status int
	began  bool // the header is out
	body   []byte
}

func (w *wireWriter) Header() http.Header { return w.header }

func (w *wireWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

func (w *wireWriter) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	w.body = append(w.body, b...)
	return len(b), nil
}

// FlushError sends what there is.
func (w *wireWriter) FlushError() error { return w.flush(false) }

func (w *wireWriter) end() {
	w.WriteHeader(http.StatusOK)
	_ = w.flush(true) // the caller left: its affair
	if w.status == http.StatusOK {
		w.c.prove()
	}
}

func (w *wireWriter) flush(last bool) error {
	c := w.c
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.signal()
	if c.streams[w.s.id] != w.s {
		return http.ErrAbortHandler
	}
	if !w.began {
		w.began = true
		c.head(w, last && len(w.body) == 0)
		if last && len(w.body) == 0 {
			delete(c.streams, w.s.id)
			return nil
		}
	}
	for len(w.body) > 0 || last {
		n := min(int64(len(w.body)), int64(c.frameMax), w.s.window, c.window)
		if n <= 0 && len(w.body) > 0 {
			c.signal()
			c.room.Wait()
			if c.streams[w.s.id] != w.s || c.ctx.Err() != nil {
				return http.ErrAbortHandler
			}
			continue
		}
		n = max(n, 0)
		w.s.window -= n
		c.window -= n
		end := last && int(n) == len(w.body)
		_ = c.ctl.WriteData(w.s.id, end, w.body[:n])
		w.body = w.body[n:]
		if end {
			delete(c.streams, w.s.id)
			break
		}
	}
	return nil
}

// head writes the header of an answer. The lock is held.
func (c *wireConn) head(w *wireWriter, end bool) {
	c.block.Reset()
	_ = c.enc.WriteField(hpack.HeaderField{Name: ":status", Value: strconv.Itoa(w.status)})
	for name, values := range w.header {
		for _, v := range values {
			// apns-id is another each time: in the table it would push out the rest.
			_ = c.enc.WriteField(hpack.HeaderField{Name: strings.ToLower(name), Value: v, Sensitive: name == "Apns-Id"})
		}
	}
	_ = c.ctl.WriteHeaders(http2.HeadersFrameParam{StreamID: w.s.id, BlockFragment: c.block.Bytes(), EndHeaders: true, EndStream: end})
}
