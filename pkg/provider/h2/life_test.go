package h2

import (
	"context"
	"errors"
	"io"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// Each request has its deadline. After it the stream is freed, and a late answer does no harm.
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

// After GOAWAY, requests that the server will not process go to the next connection, in order.
// Requests that it may answer are waited for; then the old connection is closed.
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

// A connection that has used all stream ids is replaced.
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

// If a connection breaks before a request is complete, the request is sent again; if it breaks
// after, it is not.
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

// A server that reads nothing: the write ends in time, and requests that were not written
// completely count as not sent.
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

// A batch that is cancelled gets everything back at once, and others are not affected.
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
				if refusals < maxTries {
					id, _, _ := p.request()
					p.ok(id)
				}
			})
			if want := refusals == maxTries; (r.Failure == Refused) != want || r.Sent {
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
		if r.Failure != Withheld || !errors.Is(r.Err, no) || r.Sent {
			t.Errorf("%+v", r)
		}
		err = nil
		w.warm(p)
	})
}
