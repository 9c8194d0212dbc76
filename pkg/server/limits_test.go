package server

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	inmemory "github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
)

func zipped(t testing.TB, s string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.WriteString(z, s); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// noise is n bytes that do not compress.
func noise(n int) string {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{}).Read(b)
	return string(b)
}

// chunked hides the length of a body.
func chunked(r *http.Request) { r.ContentLength = -1 }

func TestBodies(t *testing.T) {
	t.Parallel()
	w := newWorld()
	var mu sync.Mutex
	var got string
	w.intake = func(_ context.Context, _ string, _ request.Meta, body []byte) (request.Answer, error) {
		mu.Lock()
		defer mu.Unlock()
		got = string(body)
		return request.Answer{Status: 201, Body: []byte(`{}`)}, nil
	}
	s := w.start(t, Config{MaxSingle: 40_000, MaxBatch: 70_000}, nil)
	tok := token(t, "shop", api.ScopeSend)
	const single, batch = "/v1/notifications", "/v1/notifications:batch"
	f := func(name, path, body string, status int, code, want string, opts ...option) {
		t.Helper()
		got = ""
		r := ask(s, "POST", path, tok, body, opts...)
		if r.status != status {
			t.Errorf("%s: %d %s", name, r.status, r.body)
		}
		if status >= 400 && r.problem(t).Code != code {
			t.Errorf("%s: %s", name, r.body)
		}
		if got != want {
			t.Errorf("%s: intake got %d bytes, want %d", name, len(got), len(want))
		}
	}
	x := func(n int) string { return strings.Repeat("x", n) }
	gz := header("Content-Encoding", "gzip")
	f("small", single, "{}", 201, "", "{}")
	f("empty", single, "", 201, "", "")
	f("just in", single, x(40_000), 201, "", x(40_000))
	f("one over", single, x(40_001), 413, "body_too_large", "")
	f("larger route", batch, x(70_000), 201, "", x(70_000))
	f("no length", single, x(39_000), 201, "", x(39_000), chunked)
	f("no length, just in", single, x(40_000), 201, "", x(40_000), chunked)
	f("no length, over", single, x(40_001), 413, "body_too_large", "", chunked)
	f("gzip", single, zipped(t, x(40_000)), 201, "", x(40_000), gz)
	f("gzip without length", single, zipped(t, x(40_000)), 201, "", x(40_000), gz, chunked)
	f("gzip bomb", single, zipped(t, x(10<<20)), 413, "body_too_large", "", gz)
	f("not gzip", single, "{}{}{}{}{}{}{}{}", 400, api.CodeMalformed, "", gz)
	f("gzip cut", single, zipped(t, x(40_000))[:40], 400, api.CodeMalformed, "", gz)
	f("gzip in two members", single, zipped(t, x(20_000))+zipped(t, x(10)), 201, "", x(20_010), gz)
	f("gzip in empty members", single, zipped(t, "")+zipped(t, x(10))+zipped(t, ""), 201, "", x(10), gz)
	f("gzip of nothing", single, zipped(t, ""), 201, "", "", gz)
	f("gzip larger than its limit", single, zipped(t, noise(60_000)), 413, "body_too_large", "", gz, chunked)
	f("gzip, second member damaged", single, zipped(t, x(10))+"\x1f\x8b\x08\xff0123456789", 400, api.CodeMalformed, "", gz)
	for _, behind := range []string{"\n", "x", "\x00\x00", "\x1f", "\x1f\x8c", x(8), x(10_000)} {
		f("bytes behind gzip", single, zipped(t, "{}")+behind, 400, api.CodeMalformed, "", gz)
		if r := ask(s, "POST", single, tok, zipped(t, "{}")+behind, gz, chunked); !strings.Contains(r.problem(t).Detail, "followed by other bytes") {
			t.Errorf("%d bytes behind gzip: %s", len(behind), r.body)
		}
	}
	f("brotli", single, "{}", 415, api.CodeUnsupportedMediaType, "", header("Content-Encoding", "br"))
	f("length lies", single, "{}", 400, api.CodeMalformed, "", func(r *http.Request) { r.ContentLength = 100 })
}

// A body that says it is too large is refused before any of it is read.
func TestTooLargeIsRefusedUnread(t *testing.T) {
	t.Parallel()
	s := newWorld().start(t, Config{}, nil)
	r := httptest.NewRequest("POST", "/v1/notifications", errReader{t})
	r.ContentLength = 512<<10 + 1
	r.Header.Set("Authorization", "Bearer "+token(t, "shop", api.ScopeSend))
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	if w.Code != 413 {
		t.Errorf("%d", w.Code)
	}
	// So is the body of one without a token.
	r = httptest.NewRequest("POST", "/v1/notifications:fanout", errReader{t})
	r.ContentLength = 60 << 20
	w = httptest.NewRecorder()
	if s.Handler().ServeHTTP(w, r); w.Code != 401 {
		t.Errorf("%d", w.Code)
	}
}

type errReader struct{ t *testing.T }

func (r errReader) Read([]byte) (int, error) {
	r.t.Error("the body was read")
	return 0, io.EOF
}

// Buffers are used again: no request may see another's body.
func TestBodiesAreNotMixedUp(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.intake = func(_ context.Context, _ string, m request.Meta, body []byte) (request.Answer, error) {
		if strings.Trim(string(body), m.Key[:1]) != "" {
			return request.Answer{}, errors.New("mixed up")
		}
		return request.Answer{Status: 201, Body: []byte(`{}`)}, nil
	}
	s := w.start(t, Config{}, nil)
	tok := token(t, "shop", api.ScopeSend)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			letter := string(rune('a' + g))
			for i := range 50 {
				body := strings.Repeat(letter, 1+i*997%20_000)
				opts := []option{header("Idempotency-Key", letter)}
				if i%3 == 0 {
					opts = append(opts, chunked)
				}
				if got := ask(s, "POST", "/v1/notifications", tok, body, opts...); got.status != 201 {
					t.Errorf("%d %s", got.status, got.body)
				}
			}
		})
	}
	wg.Wait()
	if s.small.held != 0 {
		t.Error("memory was not given back")
	}
}

// hold makes intake wait and says when it was entered.
func (w *world) hold() (entered chan struct{}, release chan struct{}) {
	entered, release = make(chan struct{}, 16), make(chan struct{})
	w.intake = func(context.Context, string, request.Meta, []byte) (request.Answer, error) {
		entered <- struct{}{}
		<-release
		return request.Answer{Status: 201, Body: []byte(`{}`)}, nil
	}
	return entered, release
}

func TestInFlightCap(t *testing.T) {
	t.Parallel()
	w := newWorld()
	entered, release := w.hold()
	refused := make(chan string, 1)
	s := w.start(t, Config{MaxInFlight: 1}, func(d *Deps) { d.Hooks.Refused = func(reason string) { refused <- reason } })
	tok := token(t, "shop", api.ScopeSend)
	var wg sync.WaitGroup
	wg.Go(func() {
		if got := ask(s, "POST", "/v1/notifications", tok, "{}"); got.status != 201 {
			t.Errorf("the first: %d", got.status)
		}
	})
	<-entered
	got := ask(s, "POST", "/v1/notifications", tok, "{}")
	if p := got.problem(t); got.status != 503 || p.Code != "busy" || got.header.Get("Retry-After") != "1" || <-refused != "in_flight" {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := ask(s, "GET", "/healthz", "", ""); got.status != 200 {
		t.Errorf("a probe was refused: %d", got.status)
	}
	close(release)
	wg.Wait()
	if got := ask(s, "POST", "/v1/notifications", tok, "{}"); got.status != 201 {
		t.Errorf("after: %d", got.status)
	}
}

// Large bodies that fill their memory do not keep small ones out.
func TestBulkMemoryIsApart(t *testing.T) {
	t.Parallel()
	w := newWorld()
	entered, release := w.hold()
	s := w.start(t, Config{MaxFanout: 1 << 20, MaxBatch: 1 << 20, BulkMemory: 2 << 20, MemoryWait: time.Millisecond}, nil)
	tok := token(t, "shop", api.ScopeSend)
	big := strings.Repeat("x", 1<<20)
	var wg sync.WaitGroup
	for _, caller := range []string{"shop", "other"} {
		wg.Go(func() { ask(s, "POST", "/v1/notifications:fanout", token(t, caller, api.ScopeSend), big) })
		<-entered
	}
	if got := ask(s, "POST", "/v1/notifications:fanout", token(t, "third", api.ScopeSend), big); got.status != 503 {
		t.Errorf("a third fan-out: %d", got.status)
	}
	wg.Go(func() {
		if got := ask(s, "POST", "/v1/notifications", tok, "{}"); got.status != 201 {
			t.Errorf("a single beside full bulk memory: %d", got.status)
		}
	})
	<-entered
	close(release)
	wg.Wait()
	if s.bulk.held != 0 || s.small.held != 0 {
		t.Error("memory was not given back")
	}
}

func TestCallerRate(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.callers["slow"] = engine.Caller{ID: "slow", Rate: 0.5, Burst: 2}
	w.callers["off"] = engine.Caller{ID: "off", Disabled: true}
	now := time.Unix(1_800_000_000, 0)
	s := w.start(t, Config{Rate: 10, Burst: 3}, func(d *Deps) {
		d.Callers = callersOf{world: w}
		d.Now = func() time.Time { return now }
		d.Auth = newVerifier(t, AuthConfig{KeyFile: keyFile(t, signingKey()), Now: func() time.Time { return now }})
	})
	tokens := map[string]string{}
	for _, c := range []string{"slow", "usual", "off"} {
		tokens[c] = tokenAt(t, now, c, api.ScopeSend)
	}
	send := func(caller string) reply { return ask(s, "POST", "/v1/notifications", tokens[caller], "{}") }
	f := func(caller string, ok int, retry, rate string) {
		t.Helper()
		for i := range ok {
			if got := send(caller); got.status != 201 {
				t.Errorf("%s %d: %d %s", caller, i, got.status, got.body)
			}
		}
		got := send(caller)
		if got.status != 429 || got.problem(t).Code != "rate_limited" || got.header.Get("Retry-After") != retry || got.header.Get("RateLimit-Policy") != rate {
			t.Errorf("%s: %d %v", caller, got.status, got.header)
		}
	}
	f("usual", 3, "1", `"caller";q=10;w=1;burst=3`)
	f("slow", 2, "2", `"caller";q=1;w=1;burst=2`)
	now = now.Add(2 * time.Second) // what Retry-After said is true
	f("slow", 1, "2", `"caller";q=1;w=1;burst=2`)
	f("usual", 3, "1", `"caller";q=10;w=1;burst=3`)
	if got := send("off"); got.status != 403 || got.problem(t).Code != "caller_disabled" {
		t.Errorf("%d %s", got.status, got.body)
	}
	if w.lookups != 3 {
		t.Errorf("the store was asked %d times for 3 callers", w.lookups)
	}
	w.callers["off"] = engine.Caller{ID: "off"}
	now = now.Add(callerTTL)
	if got := send("off"); got.status != 201 {
		t.Errorf("switched on again: %d", got.status)
	}
}

// What an operator sets of a caller holds for its next request.
func TestSettingsOfACallerBindAtOnce(t *testing.T) {
	t.Parallel()
	w, _ := matrixWorld()
	s := w.start(t, Config{Rate: 100, Burst: 100}, func(d *Deps) { d.Callers = w.later.Callers() })
	shop, sre := token(t, "shop", api.ScopeSend), token(t, "sre", api.ScopeOperate)
	send := func() int { return ask(s, "POST", "/v1/notifications", shop, "{}").status }
	set := func(settings string) {
		t.Helper()
		if got := ask(s, "PUT", "/v1/ops/callers/shop", sre, settings); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	if got := send(); got != 201 {
		t.Fatalf("%d", got)
	}
	set(`{"disabled":true}`)
	if got := send(); got != 403 {
		t.Errorf("switched off: %d", got)
	}
	set(`{"rate":0.001,"burst":1}`)
	if a, b := send(), send(); a != 201 && a != 429 || b != 429 {
		t.Errorf("a burst of 1: %d, then %d", a, b)
	}
	set(`{}`)
	if got := ask(s, "POST", "/v1/notifications", shop, "{}"); got.header.Get("RateLimit-Policy") != "" && !strings.Contains(got.header.Get("RateLimit-Policy"), "burst=100") {
		t.Errorf("the default again: %d %v", got.status, got.header)
	}
}

// sharers are processes whose callers share buckets.
type sharers struct {
	t                *testing.T
	tokens           *flakyLimits
	perSecond, burst int
	all              []*callerTable
}

func newSharers(t *testing.T, processes, perSecond, burst int) *sharers {
	s := &sharers{t: t, tokens: &flakyLimits{Limits: inmemory.NewLimits()}, perSecond: perSecond, burst: burst}
	for range processes {
		s.join()
	}
	return s
}

// join adds a process.
func (s *sharers) join() {
	s.all = append(s.all, newCallers(nil, limit.NewShared(s.tokens, limit.SharedConfig{}), float64(s.perSecond), s.burst, 10))
}

// asks has each process ask once every so often, one after another, and returns how many
// requests were let through.
func (s *sharers) asks(length, every time.Duration) (admitted, asked int) {
	for at, pause := time.Duration(0), every/time.Duration(len(s.all)); at < length; at += every {
		for _, c := range s.all {
			asked++
			_, err := c.admitRequest(s.t.Context(), "shop", time.Now())
			if err == nil {
				admitted++
			} else if e := (*throttled)(nil); !errors.As(err, &e) || e.err.RetryAfter <= 0 {
				s.t.Fatal(err)
			}
			time.Sleep(pause)
		}
	}
	return admitted, asked
}

// Three processes that share buckets let through what one would, also when one dies or
// another joins, and each goes by its own bucket while the shared one does not answer.
func TestCallerRateOverProcesses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const perSecond, burst = 100, 40
		s := newSharers(t, 3, perSecond, burst)
		within := func(when string, seconds, saved int) {
			t.Helper()
			// What a process has in a lease is counted when it is taken, and used up to
			// leaseLasts later: a twentieth of a second's for each.
			most := seconds*perSecond + saved + len(s.all)*perSecond/leaseShare
			if n, _ := s.asks(time.Duration(seconds)*time.Second, time.Millisecond); n < seconds*perSecond*98/100 || n > most {
				t.Errorf("%s: %d requests in %d s at %d a second, at most %d", when, n, seconds, perSecond, most)
			}
		}
		within("three", 10, burst)
		s.all = s.all[:2]
		within("one died", 10, 0)
		s.join()
		s.join()
		within("two joined", 10, 0)
		s.all = s.all[:1]
		within("one takes all requests", 10, 0)
		s.join()
		s.tokens.away = true
		if n, _ := s.asks(10*time.Second, time.Millisecond); n < 1960 {
			t.Errorf("%d requests in 10 s of two processes for themselves", n)
		}
	})
}

// A caller whose requests come at random to many processes is hardly refused below its
// rate: no process keeps much of the bucket that it does not use.
func TestCallerRateOverManyProcesses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ processes, perSecond, burst int }{
		{100, 1000, 100}, {3, 100, 20}, {20, 20_000, 1000},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSharers(t, c.processes, c.perSecond, c.burst)
			random := rand.New(rand.NewPCG(1, 2))
			refused, asked := 0, c.perSecond*3
			for range asked {
				if _, err := s.all[random.IntN(c.processes)].admitRequest(t.Context(), "shop", time.Now()); err != nil {
					refused++
				}
				time.Sleep(time.Duration(random.ExpFloat64() / 0.7 / float64(c.perSecond) * float64(time.Second)))
			}
			t.Logf("%d of %d refused, the shared bucket was asked %d times", refused, asked, s.tokens.taken.Load())
			if refused > asked/100 {
				t.Errorf("%d of %d requests were refused at 70%% of %d a second over %d processes", refused, asked, c.perSecond, c.processes)
			}
		})
	}
}

// flakyLimits do not answer while they are away.
type flakyLimits struct {
	limit.Limits
	away  bool
	taken atomic.Int64 // questions
}

func (l *flakyLimits) Take(ctx context.Context, bucket string, n int, rate float64, burst int) (int, time.Duration, error) {
	l.taken.Add(1)
	if l.away {
		return 0, 0, notify.Unavailable("redis", time.Second, errors.New("away"))
	}
	return l.Limits.Take(ctx, bucket, n, rate, burst)
}

// An answer of the store that was under way when a newer one came does not take
// its place.
func TestOlderSettingsDoNotComeBack(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.callers["shop"] = engine.Caller{ID: "shop", Disabled: true, Version: 2}
	c := newCallers(callersOf{world: w}, nil, 100, 100, 10)
	now := time.Unix(1_800_000_000, 0)
	if _, err := c.admitRequest(t.Context(), "shop", now); notify.KindOf(err) != notify.KindForbidden {
		t.Fatal(err)
	}
	w.callers["shop"] = engine.Caller{ID: "shop", Version: 1}
	c.forgetSettings("shop")
	if _, err := c.admitRequest(t.Context(), "shop", now); notify.KindOf(err) != notify.KindForbidden {
		t.Errorf("version 1 behind version 2: %v", err)
	}
}

// A reader that is behind is not waited for until the connection ends.
func TestHistoryIsNotWaitedForLong(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := w.start(t, Config{MaxWait: time.Millisecond}, func(d *Deps) { d.History = stuckHistory{} })
	tok := token(t, "shop", api.ScopeRead)
	for _, path := range []string{"/v1/users/ann/notifications", "/v1/notifications/ntf_01KAJ8Q2T5E7V9XCB3M4N6P8RS/timeline"} {
		got := ask(s, "GET", path, tok, "")
		if p := got.problem(t); got.status != 503 || p.Code != "history" || got.header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
}

// stuckHistory answers nothing before its context ends.
type stuckHistory struct{ history.Reader }

func (stuckHistory) User(ctx context.Context, _ engine.HistoryQuery) ([]engine.Found, engine.HistoryCursor, error) {
	<-ctx.Done()
	return nil, nil, ctx.Err()
}

func (stuckHistory) Find(ctx context.Context, _ notify.ID) (engine.Found, error) {
	<-ctx.Done()
	return engine.Found{}, ctx.Err()
}

func TestPanicIsA500(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.intake = func(context.Context, string, request.Meta, []byte) (request.Answer, error) { panic("secret detail") }
	s := w.start(t, Config{}, nil)
	tok := token(t, "shop", api.ScopeSend)
	got := ask(s, "POST", "/v1/notifications", tok, "{}")
	if p := got.problem(t); got.status != 500 || strings.Contains(got.body, "secret") || p.Code != "internal" {
		t.Errorf("%d %s", got.status, got.body)
	}
	if n := s.places[classNormal].underWay.Load(); n != 0 {
		t.Errorf("%d in flight after the panic", n)
	}
}

func TestErrorsOfIntake(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := w.start(t, Config{}, nil)
	tok := token(t, "shop", api.ScopeSend)
	f := func(err error, status int, code, retry string) {
		t.Helper()
		w.intake = func(context.Context, string, request.Meta, []byte) (request.Answer, error) {
			return request.Answer{}, err
		}
		got := ask(s, "POST", "/v1/notifications", tok, "{}")
		if p := got.problem(t); got.status != status || p.Code != code || got.header.Get("Retry-After") != retry {
			t.Errorf("%v: %d %s Retry-After %q", err, got.status, got.body, got.header.Get("Retry-After"))
		}
	}
	f(notify.Invalid("expires_in_past", "expires_at", "must lie in the future"), 422, "expires_in_past", "")
	f(notify.Invalid("bad_json", "", "no"), 400, "bad_json", "")
	f(notify.Invalid("unsupported_media_type", "Content-Type", "no"), 415, "unsupported_media_type", "")
	f(&notify.Error{Kind: notify.KindMismatch, Code: api.CodeMismatch}, 422, api.CodeMismatch, "")
	f(&notify.Error{Kind: notify.KindConflict, Code: "idempotency_running", RetryAfter: 1500 * time.Millisecond}, 409, "idempotency_running", "2")
	f(&notify.Error{Kind: notify.KindTooLarge, Code: "too_long"}, 413, "too_long", "")
	f(notify.Unavailable("log", 0, nil), 503, "log", "1")
	f(context.DeadlineExceeded, 503, "timeout", "1")
	f(errors.New("?"), 500, "internal", "")
	f(&notify.Error{Kind: notify.KindInternal, Code: "pebble_corrupt", Msg: "/data/000017.sst"}, 500, "internal", "")
}

// TestMethodLabels: a label value stays in memory for as long as the process runs, so
// what a client invents must not become one.
func TestMethodLabels(t *testing.T) {
	t.Parallel()
	w := newWorld()
	told := map[string]bool{}
	s := w.start(t, Config{}, func(d *Deps) {
		d.Hooks.Request = func(route, method string, _ int, _ time.Duration, _, _ int64) { told[route+" "+method] = true }
	})
	for i := range 2000 {
		method := strings.Repeat("A", i%100+1) + strconv.Itoa(i)
		for _, path := range []string{"/healthz", "/nothing" + strconv.Itoa(i), "/v1/users/" + strconv.Itoa(i)} {
			ask(s, method, path, "", "")
		}
	}
	if len(told) != 3 {
		t.Errorf("%d labels of 2,000 methods at 3 kinds of path", len(told))
	}
}
