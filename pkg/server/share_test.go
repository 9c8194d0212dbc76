package server

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
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
		slow(fanout, size, size/maxBufferGrowth)
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
	if s.bulk.held != n*initialReadSize {
		t.Errorf("%d bytes are held for %d bodies of which nothing came", s.bulk.held, n)
	}
	d := &dribble{left: 64 << 20, stop: 63 << 20, entered: entered, release: release}
	wg.Go(func() { ask(s, "POST", "/v1/notifications:fanout", token(t, "other", api.ScopeSend), "", d.of(64<<20)) })
	<-entered
	if held := s.bulk.held - n*initialReadSize; held != 8<<20 {
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

func (o openTails) Subscribe(ctx context.Context, _ api.TailFilter) (<-chan api.Event, func() int64) {
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
	if who.inFlight.Load() != 0 || who.streams.Load() != 0 || s.places[classNormal].underWay.Load() != 0 || s.places[classStream].underWay.Load() != 0 {
		t.Errorf("%d requests and %d streams are counted that ended", who.inFlight.Load(), who.streams.Load())
	}
	if got := ask(s, "POST", "/v1/notifications", greedy, "{}"); got.status != 201 {
		t.Errorf("after: %d", got.status)
	}
}
