package h2

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

func TestExchange(t *testing.T) {
	pipeTest(t, nil, func(t *testing.T, w *world) {
		p := w.accept()
		dec := hpack.NewDecoder(4096, nil)
		for i := range 5 {
			r := w.do("hello", func(*Batch) {
				id, block, body := p.request()
				fields, err := dec.DecodeFull(block)
				if err != nil {
					t.Fatal(err)
				}
				got := fmt.Sprint(fields)
				want := "[header field \":method\" = \"POST\" header field \":scheme\" = \"https\" header field \":authority\" = \"push.example\"" +
					" header field \":path\" = \"/x\" header field \"topic\" = \"t\" header field \"authorization\" = \"bearer secret\" (sensitive) header field \"id\" = \"1\"]"
				if got != want || string(body) != "hello" || id != uint32(2*i+1) {
					t.Errorf("%d %s %q", id, got, body)
				}
				if i > 1 && len(block) > 40 {
					t.Errorf("a block of %d bytes: the table is not used", len(block))
				}
				p.headers(id, false, ":status", "500", "retry-after", "7")
				p.write(func() error { return p.fr.WriteData(id, false, []byte("par")) })
				p.write(func() error { return p.fr.WriteData(id, true, []byte("tial")) })
			})
			if r.Failure != Answered || r.Status != 500 || r.RetryAfter != "7" || string(r.Answer) != "partial" {
				t.Errorf("%+v", r)
			}
		}
	})
}

// What a server may do to an answer without breaking a rule.
func TestAnswers(t *testing.T) {
	pipeTest(t, nil, func(t *testing.T, w *world) {
		p := w.accept()
		w.warm(p)
		f := func(what string, status int, body string, answer func(id uint32)) {
			t.Helper()
			r := w.do("x", func(*Batch) { id, _, _ := p.request(); answer(id) })
			if r.Failure != Answered || r.Status != status || string(r.Answer) != body {
				t.Errorf("%s: %+v", what, r)
			}
		}
		f("interim", 200, "", func(id uint32) { p.headers(id, false, ":status", "103"); p.ok(id) })
		f("trailer", 200, "b", func(id uint32) {
			p.headers(id, false, ":status", "200")
			p.write(func() error { return p.fr.WriteData(id, false, []byte("b")) })
			p.headers(id, true, "x", "y")
		})
		f("padding", 503, "body", func(id uint32) {
			p.block.Reset()
			_ = p.enc.WriteField(hpack.HeaderField{Name: ":status", Value: "503"})
			p.write(func() error {
				return p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.block.Bytes(), EndHeaders: true, PadLength: 200})
			})
			for _, c := range "body" {
				p.write(func() error { return p.fr.WriteDataPadded(id, false, []byte(string(c)), make([]byte, 255)) })
			}
			p.write(func() error { return p.fr.WriteData(id, true, nil) })
		})
		f("continuation", 429, "", func(id uint32) {
			p.block.Reset()
			_ = p.enc.WriteField(hpack.HeaderField{Name: ":status", Value: "429"})
			_ = p.enc.WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("v", 100)})
			b := bytes.Clone(p.block.Bytes())
			p.write(func() error {
				return p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b[:1], EndStream: true})
			})
			for i := 1; i < len(b); i++ {
				p.write(func() error { return p.fr.WriteContinuation(id, i == len(b)-1, b[i:i+1]) })
			}
		})
		f("cut by a reset", 410, "so f", func(id uint32) {
			p.headers(id, false, ":status", "410")
			p.write(func() error { return p.fr.WriteData(id, false, []byte("so f")) })
			p.write(func() error { return p.fr.WriteRSTStream(id, http2.ErrCodeInternal) })
		})
		f("with unknown frames between", 200, "", func(id uint32) {
			p.write(func() error { return p.fr.WriteRawFrame(0xbe, 0xff, id, []byte("?")) })
			p.write(func() error { return p.fr.WritePriority(id, http2.PriorityParam{Weight: 1}) })
			p.ok(id)
		})
		// More than is kept, with an endless supply: the rest is refused.
		r := w.do("x", func(*Batch) {
			id, _, _ := p.request()
			p.headers(id, false, ":status", "500")
			left := 65535
			for {
				n := min(left, 10_000)
				p.write(func() error { return p.fr.WriteData(id, false, make([]byte, n)) })
				left -= n
				synctest.Wait()
				for len(p.frames) > 0 {
					switch f := <-p.frames; {
					case f.Type == http2.FrameWindowUpdate && f.StreamID == id:
						left += int(f.payload[2])<<8 + int(f.payload[3])
					case f.Type == http2.FrameRSTStream && f.StreamID == id:
						return
					}
				}
				if left == 0 {
					t.Fatal("the window was not given back")
				}
			}
		})
		if r.Failure != Answered || len(r.Answer) != MaxAnswer {
			t.Errorf("%v, %d bytes", r.Failure, len(r.Answer))
		}
		w.warm(p)
	})
}

// The connection's window is given back, also for streams nobody knows any more.
func TestConnectionWindow(t *testing.T) {
	pipeTest(t, nil, func(t *testing.T, w *world) {
		p := w.accept()
		w.warm(p)
		left := connWindow
		for range 40 {
			r := w.do("x", func(*Batch) {
				id, _, _ := p.request()
				p.headers(id, false, ":status", "500")
				for range 6 {
					if left < 10_000 {
						t.Fatal("the window was not given back")
					}
					p.write(func() error { return p.fr.WriteData(id, false, make([]byte, 10_000)) })
					left -= 10_000
				}
				p.write(func() error { return p.fr.WriteRSTStream(id, http2.ErrCodeCancel) })
				synctest.Wait()
				for len(p.frames) > 0 {
					if f := <-p.frames; f.Type == http2.FrameWindowUpdate && f.StreamID == 0 {
						left += int(f.payload[1])<<16 + int(f.payload[2])<<8 + int(f.payload[3])
					}
				}
			})
			if len(r.Answer) != 60_000 {
				t.Fatalf("%d bytes", len(r.Answer))
			}
		}
	})
}

// Bodies wait for the windows of the stream and of the connection, and go on
// when either is opened.
func TestRequestWindows(t *testing.T) {
	pipeTest(t, nil, func(t *testing.T, w *world) {
		p := w.accept(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10}, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 100})
		body := strings.Repeat("0123456789", 3)
		data := func(want int) frame {
			t.Helper()
			f := p.next(http2.FrameData)
			if len(f.payload) != want {
				t.Fatalf("%d bytes of DATA, want %d", len(f.payload), want)
			}
			return f
		}
		quiet := func() {
			t.Helper()
			synctest.Wait()
			for len(p.frames) > 0 {
				if f := <-p.frames; f.Type != http2.FrameSettings {
					t.Fatalf("%v came", f)
				}
			}
		}
		r := w.do(body, func(*Batch) {
			f := data(10)
			quiet()
			p.write(func() error { return p.fr.WriteWindowUpdate(f.StreamID, 5) })
			data(5)
			quiet()
			p.write(func() error { return p.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 20}) })
			data(10)
			p.write(func() error { return p.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 2}) }) // 18 below
			p.write(func() error { return p.fr.WriteWindowUpdate(f.StreamID, 18) })
			quiet()
			p.write(func() error { return p.fr.WriteWindowUpdate(f.StreamID, 100) })
			if f := data(5); !f.ended() {
				t.Error("not the end")
			}
			p.ok(f.StreamID)
		})
		if r.Status != 200 {
			t.Errorf("%+v", r)
		}
		// The connection's: 65,535 less what was used.
		p.write(func() error {
			return p.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
		})
		synctest.Wait()
		b, rs := w.submit(5, strings.Repeat("x", 20_000))
		got, last := 0, frame{}
		for got < defaultWindow-len(body) {
			last = p.next(http2.FrameData)
			got += len(last.payload)
		}
		if got != defaultWindow-len(body) {
			t.Fatalf("%d bytes", got)
		}
		p.next(http2.FrameHeaders)
		late, lrs := w.submit(1, "x")
		synctest.Wait()
		if w.Stats().Waiting != 1 {
			t.Error("a header was sent for a body that cannot follow")
		}
		quiet()
		p.write(func() error { return p.fr.WriteWindowUpdate(0, 1<<20) })
		for got < 5*20_000+1 {
			got += len(p.next(http2.FrameData).payload)
		}
		for id := uint32(3); id <= 13; id += 2 {
			p.ok(id)
		}
		w.wait(t.Context(), b, 5)
		w.wait(t.Context(), late, 1)
		for _, r := range append(rs, lrs...) {
			if r.Status != 200 {
				t.Errorf("%+v", r)
			}
		}
	})
}

// A server that answers before it has the whole body wants no more of it.
func TestEarlyAnswer(t *testing.T) {
	pipeTest(t, nil, func(t *testing.T, w *world) {
		p := w.accept(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})
		r := w.do("hello", func(*Batch) {
			f := p.next(http2.FrameData)
			p.headers(f.StreamID, true, ":status", "413")
			if x := p.next(http2.FrameRSTStream); x.StreamID != f.StreamID || x.payload[3] != byte(http2.ErrCodeNo) {
				t.Errorf("%v %x", x, x.payload)
			}
		})
		if r.Status != 413 {
			t.Errorf("%+v", r)
		}
	})
}

// Large header blocks go out in pieces, larger than the server takes not at all.
func TestLargeHeaders(t *testing.T) {
	pipeTest(t, nil, func(t *testing.T, w *world) {
		p := w.accept(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 20_000}, http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: 60_000})
		b, r := NewBatch(), newRequest("x")
		r.Own = AppendField(r.Own, "large", strings.Repeat("v", 50_000))
		w.Submit(b, r)
		id, block, _ := p.request()
		fields, err := hpack.NewDecoder(4096, nil).DecodeFull(block)
		if err != nil || len(fields[len(fields)-1].Value) != 50_000 {
			t.Errorf("%v %d", err, len(fields))
		}
		p.ok(id)
		w.wait(t.Context(), b, 1)
		r.Own = AppendField(r.Own, "larger", strings.Repeat("v", 10_000))
		w.Submit(b, r)
		w.wait(t.Context(), b, 1)
		if r.Failure != Broken || r.Sent {
			t.Errorf("%+v", r)
		}
		w.warm(p)
	})
}

// Whatever breaks the protocol ends the connection with the code of RFC 9113, and
// what was sent is lost.
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

// Each request has its deadline; the stream is given back, and an answer that
// comes later harms nobody.
func TestTimeout(t *testing.T) {
	pipeTest(t, func(c *Config) { c.Timeout = 10 * time.Second }, func(t *testing.T, w *world) {
		p := w.accept(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 2})
		w.warm(p)
		began := time.Now()
		b1, r1 := w.submit(1, "x")
		id1, _, _ := p.request()
		time.Sleep(3 * time.Second)
		b2, r2 := w.submit(1, "x")
		id2, _, _ := p.request()
		b3, r3 := w.submit(1, "x") // waits for a stream
		w.wait(t.Context(), b1, 1)
		if d := time.Since(began); d < 10*time.Second || d > 10*time.Second+100*time.Millisecond || r1[0].Failure != TimedOut || !r1[0].Sent {
			t.Errorf("%+v after %v", r1[0], d)
		}
		if f := p.next(http2.FrameRSTStream); f.StreamID != id1 || f.payload[3] != byte(http2.ErrCodeCancel) {
			t.Errorf("%v", f)
		}
		id3, _, _ := p.request()
		p.ok(id1) // late
		p.ok(id3)
		w.wait(t.Context(), b3, 1)
		w.wait(t.Context(), b2, 1)
		if d := time.Since(began); d < 13*time.Second || d > 14*time.Second || r2[0].Failure != TimedOut || r3[0].Status != 200 {
			t.Errorf("%+v %+v after %v", r2[0], r3[0], d)
		}
		p.ok(id2)
		w.warm(p)
	})
}

// A body that never found a window was not sent.
func TestTimeoutUnsent(t *testing.T) {
	pipeTest(t, nil, func(t *testing.T, w *world) {
		p := w.accept(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 3})
		r := w.do("hello", func(*Batch) { p.next(http2.FrameData) })
		if r.Failure != TimedOut || r.Sent {
			t.Errorf("%+v", r)
		}
	})
}

// A silent connection is asked, and given up when it does not answer; anything
// heard is a sign of life.
func TestPing(t *testing.T) {
	pipeTest(t, func(c *Config) {
		c.Timeout, c.PingAfter, c.PingTimeout = time.Hour, 30*time.Second, 10*time.Second
	}, func(t *testing.T, w *world) {
		p := w.accept()
		w.warm(p)
		began := time.Now()
		for range 3 {
			f := p.next(http2.FramePing)
			p.write(func() error { return p.fr.WritePing(true, [8]byte(f.payload)) })
		}
		if d := time.Since(began); d < 80*time.Second || d > 130*time.Second {
			t.Errorf("three PINGs in %v", d)
		}
		r := w.do("x", func(*Batch) {
			id, _, _ := p.request()
			for range 10 { // it talks: no PING
				time.Sleep(20 * time.Second)
				p.write(func() error { return p.fr.WriteWindowUpdate(0, 1) })
			}
			_ = id
			began = time.Now()
		})
		if d := time.Since(began); r.Failure != Broken || !r.Sent || d < 40*time.Second || d > 41*time.Second {
			t.Errorf("%+v after %v", r, d)
		}
		pings := 0
		for f := range p.frames {
			if f.Type == http2.FramePing {
				pings++
			}
		}
		if pings != 1 {
			t.Errorf("%d PINGs", pings)
		}
		w.warm(w.accept())
	})
}

// GOAWAY: what the server will not look at goes to the next connection, in
// order; what it may answer is waited for, and then the old one is closed.
func TestGoAway(t *testing.T) {
	pipeTest(t, nil, func(t *testing.T, w *world) {
		p := w.accept()
		w.warm(p)
		b, rs := w.submit(10, "#")
		for range 10 {
			p.request()
		}
		p.write(func() error { return p.fr.WriteGoAway(1<<31-1, http2.ErrCodeNo, nil) }) // the polite first
		p.write(func() error { return p.fr.WriteGoAway(9, http2.ErrCodeNo, []byte("bye")) })
		q := w.accept() // before the old one is done
		for i := range 6 {
			id, _, body := q.request()
			if string(body) != strconv.Itoa(4+i) {
				t.Errorf("the next is %s, want %d", body, 4+i)
			}
			if id == 1 { // one at a time until it is proven
				synctest.Wait()
				if len(q.frames) != 0 {
					t.Error("more than one request on a new connection")
				}
			}
			q.ok(id)
		}
		for id := uint32(3); id <= 9; id += 2 {
			time.Sleep(time.Second)
			p.ok(id)
		}
		w.wait(t.Context(), b, 10)
		for i, r := range rs {
			if r.Status != 200 || (r.id <= 9 && i < 4) != (i < 4) {
				t.Errorf("%d: %+v", i, r)
			}
		}
		if _, said := p.gone(); said {
			t.Error("it was blamed")
		}
		w.warm(q)
	})
}

// A connection whose stream ids are used up is replaced.
func TestIDsRunOut(t *testing.T) {
	pipeTest(t, func(c *Config) { c.firstID = lastStreamID - 8 }, func(t *testing.T, w *world) {
		p := w.accept()
		w.warm(p)
		b, rs := w.submit(20, "x")
		last := uint32(0)
		for range 4 {
			last, _, _ = p.request()
			p.ok(last)
		}
		if last != lastStreamID {
			t.Errorf("the last stream is %d", last)
		}
		began := time.Now()
		p.gone()
		if time.Since(began) > 0 {
			t.Error("it was kept")
		}
		for range 4 { // five each
			q := w.accept()
			q.answerAll()
		}
		w.wait(t.Context(), b, 20)
		for _, r := range rs {
			if r.Status != 200 {
				t.Errorf("%+v", r)
			}
		}
		for len(w.conns) > 0 {
			(<-w.conns).Close()
		}
	})
}

// A connection that broke before a request was whole lets it be sent again; one
// that broke after does not.
func TestBrokenConnection(t *testing.T) {
	pipeTest(t, nil, func(t *testing.T, w *world) {
		p := w.accept(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 3})
		b, rs := w.submit(1, "hello")
		p.next(http2.FrameData)
		p.nc.Close()
		p = w.accept()
		id, _, body := p.request()
		if string(body) != "hello" {
			t.Errorf("%q", body)
		}
		p.ok(id)
		w.wait(t.Context(), b, 1)
		if rs[0].Status != 200 {
			t.Errorf("%+v", rs[0])
		}
		r := w.do("x", func(*Batch) { p.request(); p.nc.Close() })
		if r.Failure != Broken || !r.Sent {
			t.Errorf("%+v", r)
		}
		w.warm(w.accept())
	})
}

// A server that reads nothing: the write ends in time, and what the wire did not
// take was not sent.
func TestWriteTimeout(t *testing.T) {
	pipeTest(t, func(c *Config) { c.Timeout = time.Hour; c.WriteTimeout = 7 * time.Second }, func(t *testing.T, w *world) {
		nc := <-w.conns
		fr := http2.NewFramer(nc, nc)
		hello := make([]byte, len(http2.ClientPreface)+9+2*6+13)
		if _, err := io.ReadFull(nc, hello); err != nil {
			t.Fatal(err)
		}
		if err := fr.WriteSettings(); err != nil {
			t.Fatal(err)
		}
		if f, err := fr.ReadFrame(); err != nil || !f.Header().Flags.Has(http2.FlagSettingsAck) {
			t.Fatal(err)
		}
		b, rs := w.submit(1, "x")
		began := time.Now()
		q := w.accept()
		if d := time.Since(began); d < 7*time.Second || d > 20*time.Second {
			t.Errorf("after %v", d)
		}
		if rs[0].tries != 1 {
			t.Error("it was not on the way")
		}
		id, _, _ := q.request()
		q.ok(id)
		w.wait(t.Context(), b, 1)
		if rs[0].Status != 200 {
			t.Errorf("%+v", rs[0])
		}
		nc.Close()
	})
}

// Whoever gives up gets everything back at once; nobody else notices.
func TestCancel(t *testing.T) {
	pipeTest(t, nil, func(t *testing.T, w *world) {
		p := w.accept(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 4})
		w.warm(p)
		b, rs := w.submit(6, "x")
		for range 4 {
			p.request()
		}
		other, ors := w.submit(1, "x")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		w.wait(ctx, b, 6)
		for i, r := range rs {
			if r.Failure != Cancelled || r.Sent != (i < 4) {
				t.Errorf("%d: %+v", i, r)
			}
		}
		for range 4 {
			p.next(http2.FrameRSTStream)
		}
		id, _, _ := p.request()
		p.ok(id)
		w.wait(t.Context(), other, 1)
		if ors[0].Status != 200 {
			t.Errorf("%+v", ors[0])
		}
		w.Submit(b, rs...)
		w.wait(ctx, b, 6)
		for _, r := range rs {
			if r.Failure != Cancelled || r.Sent {
				t.Errorf("%+v", r)
			}
		}
		b.Reset()
		w.Submit(b, rs[0])
		id, _, _ = p.request()
		p.ok(id)
		w.wait(t.Context(), b, 1)
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

// A refused stream is tried again, three times in all.
func TestRefused(t *testing.T) {
	pipeTest(t, nil, func(t *testing.T, w *world) {
		p := w.accept()
		w.warm(p)
		for _, refusals := range []int{1, 2, 3} {
			r := w.do("x", func(*Batch) {
				for range refusals {
					id, _, _ := p.request()
					p.write(func() error { return p.fr.WriteRSTStream(id, http2.ErrCodeRefusedStream) })
				}
				if refusals < tries {
					id, _, _ := p.request()
					p.ok(id)
				}
			})
			if want := refusals == tries; (r.Failure == Refused) != want || r.Sent {
				t.Errorf("%d: %+v", refusals, r)
			}
		}
		w.warm(p)
	})
}

// Withheld requests come back with the reason.
func TestAdmit(t *testing.T) {
	no := errors.New("no")
	var err error
	pipeTest(t, func(c *Config) { c.Admit = func() error { return err } }, func(t *testing.T, w *world) {
		p := w.accept()
		w.warm(p)
		err = no
		r := w.do("x", func(*Batch) {})
		if r.Failure != Withheld || r.Err != no || r.Sent {
			t.Errorf("%+v", r)
		}
		err = nil
		w.warm(p)
	})
}
