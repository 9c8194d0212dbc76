package h2

import (
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// Every violation of the protocol ends the connection with the code of RFC 9113, and requests
// under way are lost.
func TestBrokenFrames(t *testing.T) {
	raw := func(typ http2.FrameType, flags http2.Flags, id uint32, payload ...byte) func(p *peer) {
		return func(p *peer) { p.write(func() error { return p.fr.WriteRawFrame(typ, flags, id, payload) }) }
	}
	status := byte(0x88) // :status 200
	for name, x := range map[string]struct {
		do   func(p *peer)
		code http2.ErrCode
	}{
		"DATA on stream 0":          {raw(http2.FrameData, 0, 0, 1), http2.ErrCodeProtocol},
		"DATA on an idle stream":    {raw(http2.FrameData, 0, 99, 1), http2.ErrCodeProtocol},
		"DATA on a server's stream": {raw(http2.FrameData, 0, 2, 1), http2.ErrCodeProtocol},
		"padding beyond its frame":  {raw(http2.FrameData, http2.FlagDataPadded, 3, 9, 1), http2.ErrCodeProtocol},
		"HEADERS on an idle stream": {raw(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 99, status), http2.ErrCodeProtocol},
		"HEADERS on stream 0":       {raw(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 0, status), http2.ErrCodeProtocol},
		"HEADERS, padding beyond":   {raw(http2.FrameHeaders, http2.FlagHeadersEndHeaders|http2.FlagHeadersPadded, 3, 9, status), http2.ErrCodeProtocol},
		"a bad header block":        {raw(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 3, 0xff, 0xff, 0xff, 0xff, 0xff), http2.ErrCodeCompression},
		"a block cut short":         {raw(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 3, 0x40, 5, 'a'), http2.ErrCodeCompression},
		"an index of nothing":       {raw(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 3, 0x80|70), http2.ErrCodeCompression},
		"CONTINUATION alone":        {raw(http2.FrameContinuation, 0, 3, status), http2.ErrCodeProtocol},
		"PUSH_PROMISE":              {raw(http2.FramePushPromise, http2.FlagPushPromiseEndHeaders, 3, 0, 0, 0, 2, status), http2.ErrCodeProtocol},
		"SETTINGS of odd length":    {raw(http2.FrameSettings, 0, 0, 1, 2, 3), http2.ErrCodeFrameSize},
		"SETTINGS on a stream":      {raw(http2.FrameSettings, 0, 3), http2.ErrCodeProtocol},
		"SETTINGS, window too big":  {raw(http2.FrameSettings, 0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff), http2.ErrCodeFlowControl},
		"SETTINGS, frames too tiny": {raw(http2.FrameSettings, 0, 0, 0, 5, 0, 0, 0, 1), http2.ErrCodeProtocol},
		"PING of odd length":        {raw(http2.FramePing, 0, 0, 1, 2, 3), http2.ErrCodeFrameSize},
		"PING on a stream":          {raw(http2.FramePing, 0, 3, 1, 2, 3, 4, 5, 6, 7, 8), http2.ErrCodeProtocol},
		"RST_STREAM, idle":          {raw(http2.FrameRSTStream, 0, 99, 0, 0, 0, 0), http2.ErrCodeProtocol},
		"RST_STREAM of odd length":  {raw(http2.FrameRSTStream, 0, 3, 0, 0), http2.ErrCodeFrameSize},
		"WINDOW_UPDATE of 0":        {raw(http2.FrameWindowUpdate, 0, 0, 0, 0, 0, 0), http2.ErrCodeProtocol},
		"WINDOW_UPDATE, idle":       {raw(http2.FrameWindowUpdate, 0, 99, 0, 0, 0, 1), http2.ErrCodeProtocol},
		"a window beyond 2^31":      {raw(http2.FrameWindowUpdate, 0, 0, 0x7f, 0xff, 0xff, 0xff), http2.ErrCodeFlowControl},
		"the same of a stream":      {raw(http2.FrameWindowUpdate, 0, 3, 0x7f, 0xff, 0xff, 0xff), http2.ErrCodeFlowControl},
		"GOAWAY cut short":          {raw(http2.FrameGoAway, 0, 0, 1), http2.ErrCodeFrameSize},
		"a frame that is too large": {raw(http2.FrameData, 0, 3, make([]byte, 16385)...), http2.ErrCodeFrameSize},
		"more DATA than allowed": {func(p *peer) {
			p.headers(3, false, ":status", "200")
			for range 5 {
				p.write(func() error { return p.fr.WriteDataPadded(1, false, nil, make([]byte, 255)) })
			}
			for range connWindow/16384 + 1 {
				raw(http2.FrameData, http2.FlagDataPadded, 1, append([]byte{255}, make([]byte, 16383)...)...)(p)
			}
			raw(http2.FrameData, 0, 99)(p) // (it was given back each time)
		}, http2.ErrCodeProtocol},
		"an endless header block": {func(p *peer) {
			p.write(func() error {
				return p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte{status}})
			})
			for range 10 {
				p.write(func() error { return p.fr.WriteContinuation(3, false, make([]byte, 16384)) })
			}
		}, http2.ErrCodeEnhanceYourCalm},
		"empty CONTINUATIONs": {func(p *peer) {
			p.write(func() error {
				return p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte{status}})
			})
			raw(http2.FrameContinuation, 0, 3)(p)
		}, http2.ErrCodeEnhanceYourCalm},
		"another frame inside a block": {func(p *peer) {
			p.write(func() error {
				return p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte{status}})
			})
			p.write(func() error { return p.fr.WritePing(false, [8]byte{}) })
		}, http2.ErrCodeProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			pipeTest(t, func(c *Config) { c.Size = 1; c.BackoffMin = time.Hour; c.BackoffMax = time.Hour }, func(t *testing.T, w *world) {
				p := w.accept()
				w.warm(p)
				r := w.do("x", func(*Batch) {
					if id, _, _ := p.request(); id != 3 {
						t.Fatal(id)
					}
					go x.do(p)
				})
				if r.Failure != Broken && r.Failure != Answered || r.Failure == Broken && !r.Sent {
					t.Errorf("%+v", r)
				}
				if code, said := p.gone(); !said || code != x.code {
					t.Errorf("GOAWAY %v %v, want %v", said, code, x.code)
				}
			})
		})
	}
}

// An answer that is none ends its stream alone.
func TestMalformedAnswers(t *testing.T) {
	pipeTest(t, nil, func(t *testing.T, w *world) {
		p := w.accept()
		w.warm(p)
		for what, answer := range map[string]func(id uint32){
			"no status":             func(id uint32) { p.headers(id, true, "x", "y") },
			"bad status":            func(id uint32) { p.headers(id, true, ":status", "2x0") },
			"an interim end":        func(id uint32) { p.headers(id, true, ":status", "100") },
			"DATA first":            func(id uint32) { p.write(func() error { return p.fr.WriteData(id, true, []byte("x")) }) },
			"headers after headers": func(id uint32) { p.headers(id, false, "x", "y"); p.headers(id, false, "x", "y") },
		} {
			r := w.do("x", func(*Batch) {
				id, _, _ := p.request()
				answer(id)
				if f := p.next(http2.FrameRSTStream); f.StreamID != id {
					t.Errorf("%v", f)
				}
			})
			if r.Failure != Broken || !r.Sent {
				t.Errorf("%s: %+v", what, r)
			}
			w.warm(p)
		}
	})
}

// The first frame must be SETTINGS.
func TestGreeting(t *testing.T) {
	pipeTest(t, func(c *Config) { c.BackoffMin, c.BackoffMax = time.Second, time.Second }, func(t *testing.T, w *world) {
		nc := <-w.conns
		fr := http2.NewFramer(nc, nc)
		go func() { _ = fr.WritePing(false, [8]byte{}) }()
		buf := make([]byte, 1000)
		for {
			if _, err := nc.Read(buf); err != nil {
				break
			}
		}
		r := newRequest("x")
		b := NewBatch()
		w.Submit(b, r)
		w.wait(t.Context(), b, 1)
		down, ok := errors.AsType[*Down](r.Err)
		if r.Failure != NoConnection || !ok || !strings.Contains(down.Error(), "PING") {
			t.Errorf("%+v", r)
		}
		// One that says nothing is given up.
		began := time.Now()
		nc = <-w.conns
		for {
			if _, err := nc.Read(buf); err != nil {
				break
			}
		}
		if d := time.Since(began); d < 5*time.Second || d > 7*time.Second {
			t.Errorf("given up after %v", d)
		}
		w.warm(w.accept())
	})
}

// Floods of PING and SETTINGS while nothing is read end the connection.
func TestFlood(t *testing.T) {
	pipeTest(t, func(c *Config) { c.WriteTimeout = time.Hour }, func(t *testing.T, w *world) {
		nc := <-w.conns
		fr := http2.NewFramer(nc, nc)
		hello := make([]byte, len(http2.ClientPreface))
		if _, err := nc.Read(hello); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 1000)
		ready := make(chan struct{})
		go func() { _ = fr.WriteSettings(); close(ready) }()
		if _, err := nc.Read(buf); err != nil {
			t.Fatal(err)
		}
		<-ready
		n := 0
		for ; fr.WritePing(false, [8]byte{}) == nil; n++ {
			if n > 1_000_000 {
				t.Fatal("it takes everything")
			}
		}
		if n < 1000 {
			t.Errorf("given up after %d PINGs", n)
		}
		nc.Close()
	})
}
