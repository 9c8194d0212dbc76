package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/intake"
	"github.com/notifyd/notifyd/pkg/notify"
)

// dribble is a body of which some bytes come at once and the rest when it is
// released.
type dribble struct {
	left    int64
	stop    int64 // bytes left when it stands still
	entered chan struct{}
	release chan struct{}
}

func (d *dribble) Read(p []byte) (int, error) {
	if d.left == d.stop {
		d.entered <- struct{}{}
		<-d.release
		d.stop = -1
	}
	most := d.left
	if d.stop >= 0 {
		most = d.left - d.stop
	}
	n := min(int64(len(p)), most)
	if d.left -= n; d.left == 0 {
		return int(n), io.EOF
	}
	return int(n), nil
}

func (d *dribble) of(length int64) option {
	return func(r *http.Request) { r.Body, r.ContentLength = io.NopCloser(d), length }
}

// Whatever one caller sends, and however slowly, another is let in.
func TestACallerLeavesMemoryToOthers(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	refused := make(chan string, 16)
	s := newWorld().start(t, Config{MaxFanout: size, MaxBatch: size, BulkMemory: 8 * size, MemoryWait: time.Millisecond}, func(d *Deps) {
		d.Hooks.Refused = func(reason string) { refused <- reason }
	})
	greedy, other := token(t, "greedy", api.ScopeSend), token(t, "other", api.ScopeSend)
	const fanout = "/v1/notifications:fanout"
	entered, release := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	slow := func(path string, length, come int64) {
		wg.Go(func() {
			d := &dribble{left: length, stop: length - come, entered: entered, release: release}
			if got := ask(s, "POST", path, greedy, "", d.of(length)); got.status != 201 {
				t.Errorf("a slow body: %d %s", got.status, got.body)
			}
		})
		<-entered
	}
	for range 4 { // what came of each is enough for its buffer to be of full size
		slow(fanout, size, size/growth)
	}
	if s.bulk.held != 4*size {
		t.Fatalf("%d bytes are held", s.bulk.held)
	}
	for _, path := range []string{fanout, "/v1/notifications:batch"} {
		got := ask(s, "POST", path, greedy, strings.Repeat("x", size))
		if p := got.problem(t); got.status != 429 || p.Code != "caller_memory" || got.header.Get("Retry-After") != "1" || <-refused != "caller_memory" {
			t.Errorf("a fifth: %d %s", got.status, got.body)
		}
		if got := ask(s, "POST", path, other, strings.Repeat("x", size)); got.status != 201 {
			t.Errorf("another caller: %d %s", got.status, got.body)
		}
	}
	// The same for single requests.
	for range int64(64<<20) / (512 << 10) / 2 {
		slow("/v1/notifications", 512<<10, 128<<10)
	}
	if got := ask(s, "POST", "/v1/notifications", greedy, strings.Repeat("x", 100_000)); got.status != 429 || got.problem(t).Code != "caller_memory" {
		t.Errorf("one single more: %d %s", got.status, got.body)
	}
	if got := ask(s, "POST", "/v1/notifications", other, strings.Repeat("x", 512<<10)); got.status != 201 {
		t.Errorf("a single of another caller: %d %s", got.status, got.body)
	}
	close(release)
	wg.Wait()
	if got := ask(s, "POST", fanout, greedy, strings.Repeat("x", size)); got.status != 201 {
		t.Errorf("after: %d %s", got.status, got.body)
	}
	if s.bulk.held != 0 || s.small.held != 0 || s.callers.known.young["greedy"].bulk.held != 0 {
		t.Error("memory was not given back")
	}
}

// A length that is announced holds nothing of what did not come.
func TestAnnouncedBodiesHoldNothing(t *testing.T) {
	t.Parallel()
	s := newWorld().start(t, Config{}, nil)
	tok := token(t, "shop", api.ScopeSend)
	entered, release := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	const n = 100
	for range n {
		wg.Go(func() {
			d := &dribble{left: 64 << 20, stop: 64 << 20, entered: entered, release: release}
			ask(s, "POST", "/v1/notifications:fanout", tok, "", d.of(64<<20), func(r *http.Request) {
				ctx, cancel := context.WithCancel(r.Context())
				cancel() // so that none waits for memory once it goes on
				*r = *r.WithContext(ctx)
			})
		})
		<-entered
	}
	if s.bulk.held != n*firstRead {
		t.Errorf("%d bytes are held for %d bodies of which nothing came", s.bulk.held, n)
	}
	d := &dribble{left: 64 << 20, stop: 63 << 20, entered: entered, release: release}
	wg.Go(func() { ask(s, "POST", "/v1/notifications:fanout", token(t, "other", api.ScopeSend), "", d.of(64<<20)) })
	<-entered
	if held := s.bulk.held - n*firstRead; held != 8<<20 {
		t.Errorf("%d bytes are held for one of which 1 MiB came", held)
	}
	close(release)
	wg.Wait()
	if s.bulk.held != 0 {
		t.Error("memory was not given back")
	}
}

// openTails says when a tail was opened; it has no events.
type openTails chan struct{}

func (o openTails) Subscribe(ctx context.Context, _ string) (<-chan api.Event, func() int64) {
	events := make(chan api.Event)
	context.AfterFunc(ctx, func() { close(events) })
	o <- struct{}{}
	return events, func() int64 { return 0 }
}

func TestACallerLeavesRequestsToOthers(t *testing.T) {
	t.Parallel()
	w := newWorld()
	entered, release := w.hold()
	tails := make(openTails)
	refused := make(chan string, 1)
	s := w.start(t, Config{MaxInFlight: 8, MaxStreams: 8}, func(d *Deps) {
		d.Hooks.Refused = func(reason string) { refused <- reason }
		d.Tail = tails
	})
	greedy, other := token(t, "greedy", api.ScopeSend, api.ScopeRead), token(t, "other", api.ScopeSend, api.ScopeRead)
	var wg sync.WaitGroup
	send := func(token string) {
		wg.Go(func() {
			if got := ask(s, "POST", "/v1/notifications", token, "{}"); got.status != 201 {
				t.Errorf("%d %s", got.status, got.body)
			}
		})
		<-entered
	}
	feeds, stop := context.WithCancel(t.Context())
	feed := func(token string) {
		wg.Go(func() {
			ask(s, "GET", "/v1/tail", token, "", func(r *http.Request) { *r = *r.WithContext(feeds) })
		})
		<-tails
	}
	over := func(method, path, code string) {
		t.Helper()
		got := ask(s, method, path, greedy, "")
		if p := got.problem(t); got.status != 429 || p.Code != code || got.header.Get("Retry-After") != "1" || <-refused != code {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	for range 4 {
		send(greedy)
		feed(greedy)
	}
	over("POST", "/v1/notifications", "caller_in_flight")
	over("GET", "/v1/users/u/notifications", "caller_in_flight")
	over("GET", "/v1/tail", "caller_streams")
	over("GET", "/v1/failed", "caller_streams")
	for range 2 { // a third of all
		send(other)
		feed(other)
	}
	stop()
	close(release)
	wg.Wait()
	who, _ := s.callers.known.get("greedy")
	if who.inFlight.Load() != 0 || who.streams.Load() != 0 || s.inFlight.Load() != 0 || s.streams.Load() != 0 {
		t.Errorf("%d requests and %d streams are counted that ended", who.inFlight.Load(), who.streams.Load())
	}
	if got := ask(s, "POST", "/v1/notifications", greedy, "{}"); got.status != 201 {
		t.Errorf("after: %d", got.status)
	}
}

// A body must come at the rate asked for, and be there in the end.
func TestBodiesMustCome(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	// f sends a body in pieces of so many bytes a second.
	f := func(name string, piece int, pause func(i int) time.Duration, want time.Duration, answer string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			ln, _, stop := pipeServer(t, newWorld(), Config{})
			c := ln.dial()
			start := time.Now()
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				fmt.Fprintf(c, "POST /v1/notifications:fanout HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", token(t, "shop", api.ScopeSend), size)
				for i, left := 0, size; left > 0; i++ {
					n := min(piece, left)
					if _, err := c.Write(bytes.Repeat([]byte("x"), n)); err != nil {
						return // cut off
					}
					if left -= n; left > 0 {
						time.Sleep(pause(i))
					}
				}
			}()
			got, _ := io.ReadAll(c)
			if took := time.Since(start); took != want {
				t.Errorf("%s: answered after %v, want %v", name, took, want)
			}
			if !strings.Contains(string(got), answer) {
				t.Errorf("%s: answered %q", name, got)
			}
			c.Close()
			<-sent
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
	every := func(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }
	f("fast enough", 80<<10, every(time.Second), 51*time.Second, "201 Created")
	f("too slow", 50<<10, every(time.Second), 5*time.Second, "slower than 64 KiB a second over 5s")
	f("too slow all in all", 6800, every(100*time.Millisecond), time.Minute, "not there in the time for it")
	f("slow in the middle", 1<<20, func(i int) time.Duration {
		if i == 2 {
			return 10 * time.Second
		}
		return time.Second
	}, 7*time.Second, "408 Request Timeout")
	f("in bursts", 400<<10, every(4900*time.Millisecond), 49*time.Second, "201 Created")
}

// However greedy callers are, one who comes new is let in; and when they have
// met each other, they hold the same.
func TestMemoryIsShared(t *testing.T) {
	t.Parallel()
	const size, each = 1 << 12, 4
	rng := rand.New(rand.NewPCG(1, 2))
	for n := 1; n <= 6; n++ {
		m := newMemory(size, 0)
		callers := make([]share, n)
		check := func() {
			var sum int64
			for i := range callers {
				sum += callers[i].held
			}
			if m.held != sum || m.held > size {
				t.Fatalf("%d held, callers hold %d", m.held, sum)
			}
		}
		grab := func(by *share) {
			for m.take(t.Context(), by, 0, each) == nil {
				if free := m.size - m.held; by.held > free {
					t.Fatalf("one holds %d and leaves %d", by.held, free)
				}
			}
			check()
		}
		for i := range callers { // the worst: each takes all it can before the next comes
			if free := m.size - m.held; free < size>>i {
				t.Fatalf("caller %d finds %d", i, free)
			}
			grab(&callers[i])
			if callers[i].held < size>>(i+1)-each {
				t.Fatalf("caller %d got %d", i, callers[i].held)
			}
		}
		for range 2 * size { // their bodies end, and each sends all it can
			if i := rng.IntN(n); callers[i].held > 0 {
				m.release(&callers[i], each)
			}
			for _, i := range rng.Perm(n) {
				grab(&callers[i])
			}
		}
		check()
		for i := range callers {
			if got, want := callers[i].held, int64(size/(n+1)); got < want*9/10 || got > want*11/10 {
				t.Errorf("one of %d holds %d, want some %d", n, got, want)
			}
		}
	}
}

func TestWaitingForMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(100, 2*time.Second)
		var a, b, c share
		take := func(by *share, have, want int64) chan error {
			done := make(chan error, 1)
			go func() { done <- m.take(t.Context(), by, have, want) }()
			synctest.Wait()
			return done
		}
		has := func(done chan error) {
			t.Helper()
			synctest.Wait()
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
			default:
				t.Error("it still waits")
			}
		}
		waits := func(done chan error) {
			t.Helper()
			synctest.Wait()
			if len(done) != 0 {
				t.Errorf("it does not wait: %v", <-done)
			}
		}
		has(take(&a, 0, 25))
		has(take(&a, 0, 25))
		own := take(&a, 0, 20)
		waits(own)
		has(take(&b, 0, 25)) // who waits for its own share keeps nobody out
		large := take(&c, 0, 40)
		waits(large)
		small := take(new(share), 0, 1)
		waits(small) // else small ones could keep the large one out for ever
		m.release(&a, 25)
		has(large)
		has(small)
		waits(own)
		m.release(&a, 25)
		has(own)

		start := time.Now()
		full := take(&c, 40, 70)
		behind := take(&b, 0, 2)
		waits(full)
		time.Sleep(time.Second)
		m.release(&b, 25)
		has(full) // a body of which more came goes on when there is room
		has(behind)
		first := take(&c, 0, 5)
		if err := <-first; notify.KindOf(err) != notify.KindThrottled || notify.RetryAfterOf(err) <= 0 {
			t.Errorf("its own share: %v", err)
		}
		if err := <-take(new(share), 0, 90); notify.KindOf(err) != notify.KindUnavailable || time.Since(start) != 5*time.Second {
			t.Errorf("no room: %v after %v", err, time.Since(start))
		}
		// One that gives up lets those behind it go on.
		gone := take(new(share), 0, 90)
		time.Sleep(time.Second)
		after := take(new(share), 0, 1)
		waits(after)
		if err := <-gone; err == nil {
			t.Error("there was no room")
		}
		has(after)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := m.take(ctx, nil, 0, 90); err == nil || len(m.waiting) != 0 {
			t.Errorf("%v, %d wait", err, len(m.waiting))
		}
	})
}

// The time for a body is over when it is there: it does not end the handler.
func TestABodysTimeIsNotTheHandlers(t *testing.T) {
	t.Parallel()
	for path, size := range map[string]int{"/v1/notifications": 2, "/v1/notifications:batch": 2, "/v1/notifications:fanout": 5 * 64 << 10} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			w.intake = func(ctx context.Context, _ string, _ intake.Meta, _ []byte) (intake.Answer, error) {
				select {
				case <-time.After(25 * time.Second): // a slow log
					return intake.Answer{Status: 201, Body: []byte(`{}`)}, nil
				case <-ctx.Done():
					return intake.Answer{}, ctx.Err()
				}
			}
			ln, _, stop := pipeServer(t, w, Config{})
			c := ln.dial()
			go fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", path, token(t, "shop", api.ScopeSend), size, strings.Repeat("x", size))
			if got, _ := io.ReadAll(c); !strings.Contains(string(got), "201 Created") {
				t.Errorf("%s: %q", path, got)
			}
			c.Close()
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A body that waited for memory was not slow meanwhile.
func TestWaitingForMemoryIsNotSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ln, s, stop := pipeServer(t, newWorld(), Config{MemoryWait: 4 * time.Second})
		var other share
		if err := s.bulk.take(t.Context(), &other, 0, s.cfg.BulkMemory-firstRead); err != nil {
			t.Fatal(err)
		}
		c := ln.dial()
		go func() {
			fmt.Fprintf(c, "POST /v1/notifications:fanout HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", token(t, "shop", api.ScopeSend), 2*firstRead)
			c.Write(make([]byte, firstRead))
			time.Sleep(6 * time.Second)
			c.Write(make([]byte, firstRead))
		}()
		time.AfterFunc(3*time.Second, func() { s.bulk.release(&other, s.cfg.BulkMemory-firstRead) })
		if got, _ := io.ReadAll(c); !strings.Contains(string(got), "201 Created") {
			t.Errorf("%q", got)
		}
		c.Close()
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
