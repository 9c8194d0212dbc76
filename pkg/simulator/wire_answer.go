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

// errRefuse is a panic value: if a handler panics with it, the stream is refused.
var errRefuse = errors.New("simulator: refuse the stream")

// handleRequest runs the handler of a request and then ends the stream. If the handler panics with
// errRefuse or http.ErrAbortHandler, handleRequest resets the stream.
func (c *wireConn) handleRequest(ctx context.Context, s *wireStream) {
	w := &wireWriter{c: c, s: s, header: http.Header{}}
	defer func() {
		switch v := recover(); v {
		case nil:
			w.end()
		case errRefuse:
			c.srv.updateStats(func(s *WireStats) { s.Refused++ })
			c.lockAndWake(func() { c.resetStream(s.id, http2.ErrCodeRefusedStream) })
		case http.ErrAbortHandler:
			c.lockAndWake(func() {
				if c.streams[s.id] == s { // false if the caller has already reset the stream
					c.resetStream(s.id, http2.ErrCodeInternal)
				}
			})
		default:
			panic(v)
		}
	}()
	r := (&http.Request{
		Method: "GET", URL: &url.URL{}, Proto: "HTTP/2.0", ProtoMajor: 2, Header: make(http.Header, len(s.head)),
		Body: io.NopCloser(bytes.NewReader(s.body)), ContentLength: int64(len(s.body)), RemoteAddr: c.tlsConn.RemoteAddr().String(),
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

// wireWriter is the http.ResponseWriter of one request. It keeps the answer until the answer is
// complete or is flushed.
type wireWriter struct {
	c        *wireConn
	s        *wireStream
	header   http.Header
	status   int
	headSent bool // true: the headers were sent
	body     []byte
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

// FlushError sends everything that was written so far.
func (w *wireWriter) FlushError() error { return w.flush(false) }

func (w *wireWriter) end() {
	w.WriteHeader(http.StatusOK)
	_ = w.flush(true) // an error means that the caller has closed the connection
	if w.status == http.StatusOK {
		w.c.proveToken()
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
	if !w.headSent {
		w.headSent = true
		c.writeHead(w, last && len(w.body) == 0)
		if last && len(w.body) == 0 {
			delete(c.streams, w.s.id)
			return nil
		}
	}
	for len(w.body) > 0 || last {
		n := min(int64(len(w.body)), int64(c.frameMax), w.s.answerWindow, c.answerWindow)
		if n <= 0 && len(w.body) > 0 {
			c.signal()
			c.windowGrew.Wait()
			if c.streams[w.s.id] != w.s || c.ctx.Err() != nil {
				return http.ErrAbortHandler
			}
			continue
		}
		n = max(n, 0)
		w.s.answerWindow -= n
		c.answerWindow -= n
		end := last && int(n) == len(w.body)
		_ = c.outFramer.WriteData(w.s.id, end, w.body[:n])
		w.body = w.body[n:]
		if end {
			delete(c.streams, w.s.id)
			break
		}
	}
	return nil
}

// writeHead writes the headers of an answer. c.mu is locked.
func (c *wireConn) writeHead(w *wireWriter, end bool) {
	c.headerBlock.Reset()
	_ = c.enc.WriteField(hpack.HeaderField{Name: ":status", Value: strconv.Itoa(w.status)})
	for name, values := range w.header {
		for _, v := range values {
			// apns-id is different in each answer. Keep it out of the header table, where it would
			// displace other fields.
			_ = c.enc.WriteField(hpack.HeaderField{Name: strings.ToLower(name), Value: v, Sensitive: name == "Apns-Id"})
		}
	}
	_ = c.outFramer.WriteHeaders(http2.HeadersFrameParam{StreamID: w.s.id, BlockFragment: c.headerBlock.Bytes(), EndHeaders: true, EndStream: end})
}
