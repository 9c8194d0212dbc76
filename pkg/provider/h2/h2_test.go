package h2

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

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

// Everything that a server may do to an answer within the protocol.
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

// The connection's window is granted again, even for streams that have ended.
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
		r.OwnFields = AppendField(r.OwnFields, "large", strings.Repeat("v", 50_000))
		w.Submit(b, r)
		id, block, _ := p.request()
		fields, err := hpack.NewDecoder(4096, nil).DecodeFull(block)
		if err != nil || len(fields[len(fields)-1].Value) != 50_000 {
			t.Errorf("%v %d", err, len(fields))
		}
		p.ok(id)
		w.wait(t.Context(), b, 1)
		r.OwnFields = AppendField(r.OwnFields, "larger", strings.Repeat("v", 10_000))
		w.Submit(b, r)
		w.wait(t.Context(), b, 1)
		if r.Failure != Broken || r.Sent {
			t.Errorf("%+v", r)
		}
		w.warm(p)
	})
}
