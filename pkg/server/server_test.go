package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/request"
)

// pipes is a listener of in-memory connections, so that synctest's clock holds
// for them.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }
func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

// run serves s until the returned function is called, which waits for the end.
func run(t *testing.T, s *Server) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return func() error { cancel(); return <-done }
}

// pipeServer runs a server over pipes in a synctest bubble.
func pipeServer(t *testing.T, w *world, cfg Config) (*pipes, *Server, func() error) {
	ln := newPipes()
	cfg.Listener, cfg.AdminListener = ln, newPipes()
	s, err := New(cfg, w.deps(t))
	if err != nil {
		t.Fatal(err)
	}
	return ln, s, run(t, s)
}

func TestSlowClientsAreCutOff(t *testing.T) {
	t.Parallel()
	// f sends text and measures how long the server lets the client wait.
	f := func(name, text string, want time.Duration, answer string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			ln, _, stop := pipeServer(t, newWorld(), Config{})
			tok := token(t, "shop", api.ScopeSend)
			c := ln.dial()
			start := time.Now()
			go io.WriteString(c, strings.ReplaceAll(text, "TOKEN", tok))
			got, _ := io.ReadAll(c)
			if took := time.Since(start); took < want || took > want+time.Second {
				t.Errorf("%s: cut off after %v, want %v", name, took, want)
			}
			if !strings.Contains(string(got), answer) {
				t.Errorf("%s: answered %q", name, got)
			}
			c.Close()
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
	const head = "Host: x\r\nAuthorization: Bearer TOKEN\r\n"
	f("headers that do not end", "POST /v1/notifications HTTP/1.1\r\nHost: x\r\nX-A: ", 5*time.Second, "")
	f("a body that does not come", "POST /v1/notifications HTTP/1.1\r\n"+head+"Content-Length: 100\r\n\r\n{", 15*time.Second, api.CodeBodyTimeout)
	f("a fan-out that does not come", "POST /v1/notifications:fanout HTTP/1.1\r\n"+head+"Content-Length: 100\r\n\r\n{", 5*time.Second, "the body arrived slower than 64 KiB per second, measured over 5s")
	f("one of which nothing comes", "POST /v1/notifications:fanout HTTP/1.1\r\n"+head+"Content-Length: 67108864\r\nContent-Encoding: gzip\r\n\r\n", 5*time.Second, api.CodeBodyTimeout)
	f("an idle connection", "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", time.Minute, "200 OK")
	f("a header line of 1 MiB", "GET /healthz HTTP/1.1\r\nX-A: "+strings.Repeat("a", 1<<20), 0, "431")
}

func TestDrain(t *testing.T) {
	t.Parallel()
	w := newWorld()
	entered, release := w.hold()
	w.deadNews = make(chan struct{}, 1)
	s := w.start(t, Config{}, func(d *Deps) { d.Tail = noTail{} })
	stop := run(t, s)
	c := &api.Client{BaseURL: "http://" + s.Addr(), HTTPClient: &http.Client{Transport: api.NewTransport(0)}, Token: fixed(token(t, "shop", api.ScopeSend, api.ScopeRead))}
	defer c.HTTPClient.CloseIdleConnections()
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := c.Post(t.Context(), "/v1/notifications", api.TypeJSON, []byte("{}"), ""); err != nil {
			t.Errorf("a request under way: %v", err)
		}
	})
	<-entered
	tailing := make(chan struct{})
	var once sync.Once
	wg.Go(func() {
		err := c.Tail(t.Context(), api.TailFilter{}, func(api.Event) error { once.Do(func() { close(tailing) }); return nil })
		if err != nil {
			t.Errorf("the tail: %v", err)
		}
	})
	<-tailing
	wg.Go(func() {
		if _, err := c.Failed(t.Context(), 0, 30*time.Second, 10); err != nil {
			t.Errorf("a waiting feed: %v", err)
		}
	})
	<-w.deadNews
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	<-s.draining
	if got := ask(s, "GET", "/readyz", "", ""); got.status != 503 || got.problem(t).Code != "draining" {
		t.Errorf("readyz: %d", got.status)
	}
	if got := ask(s, "GET", "/healthz", "", ""); got.status != 200 {
		t.Errorf("healthz: %d", got.status)
	}
	select {
	case err := <-stopped:
		t.Errorf("stopped before the request ended: %v", err)
	default:
	}
	close(release)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	wg.Wait()
	if _, err := net.Dial("tcp", s.Addr()); err == nil {
		t.Error("still listening")
	}
}

type noTail struct{}

func (noTail) Subscribe(ctx context.Context, _ api.TailFilter) (<-chan api.Event, func() int64) {
	return make(chan api.Event), func() int64 { return 0 }
}

func fixed(token string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return token, nil }
}

// At the end of the drain every request that has no answer gets one: that of a
// handler which hangs, and one whose body does not come. Who does not even read
// is not waited for much longer.
func TestDrainHasADeadline(t *testing.T) {
	t.Parallel()
	f := func(name, text string, hangs, reads bool, want time.Duration) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			hang := make(chan struct{})
			w.intake = func(context.Context, string, request.Meta, []byte) (request.Answer, error) {
				<-hang // as a store does that does not look at the context
				return request.Answer{Status: 201, Body: []byte(`{}`)}, nil
			}
			ln, s, stop := pipeServer(t, w, Config{DrainDelay: 3 * time.Second, DrainTimeout: 7 * time.Second})
			c := ln.dial()
			go io.WriteString(c, strings.ReplaceAll(text, "TOKEN", token(t, "shop", api.ScopeSend)))
			answer := make(chan *http.Response, 1)
			if reads {
				go func() {
					r := bufio.NewReader(c)
					resp, _ := http.ReadResponse(r, nil)
					for resp != nil && resp.StatusCode == http.StatusContinue {
						resp, _ = http.ReadResponse(r, nil)
					}
					answer <- resp
				}()
			}
			synctest.Wait()
			start := time.Now()
			err := stop()
			if took := time.Since(start); took != want || !errors.Is(err, context.DeadlineExceeded) || !s.isDraining() {
				t.Errorf("%s: %v after %v", name, err, took)
			}
			if reads {
				resp := <-answer
				if resp == nil {
					t.Fatalf("%s: no answer", name)
				}
				var p api.Problem
				if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || resp.StatusCode != 503 || p.Code != "draining" || p.Status != 503 ||
					p.RequestID == "" || resp.Header.Get("Content-Type") != api.TypeProblem || resp.Header.Get("Retry-After") == "" {
					t.Errorf("%s: %d %+v, %v", name, resp.StatusCode, p, err)
				}
			}
			close(hang)
			c.Close()
			synctest.Wait()
		})
	}
	const head = " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer TOKEN\r\n"
	f("a handler that hangs", "POST /v1/notifications"+head+"Content-Length: 2\r\n\r\n{}", true, true, 10*time.Second)
	f("a body that does not come", "POST /v1/notifications"+head+"Content-Length: 2\r\n\r\n{", false, true, 10*time.Second)
	f("one who was told to go on", "POST /v1/notifications"+head+"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n", false, true, 10*time.Second)
	f("one who does not read", "POST /v1/notifications"+head+"Content-Length: 2\r\n\r\n{}", true, false, 11*time.Second)
}

func TestPlaintextBeyondLoopbackIsRefused(t *testing.T) {
	t.Parallel()
	local, everywhere := listenOn(t, "127.0.0.1:0"), listenOn(t, "0.0.0.0:0")
	if _, err := New(Config{Listener: everywhere, AdminListener: local}, newWorld().deps(t)); err == nil {
		t.Error("the API listens on every address without TLS")
	}
	if _, err := New(Config{Listener: local, AdminListener: everywhere}, newWorld().deps(t)); err == nil {
		t.Error("metrics and pprof listen on every address")
	}
	if _, err := New(Config{Listener: everywhere, AdminListener: local, Plaintext: "anywhere"}, newWorld().deps(t)); err != nil {
		t.Fatal(err)
	}
	var c Config
	if c = c.withDefaults(); !strings.HasPrefix(c.Listen, "127.0.0.1:") || !strings.HasPrefix(c.Admin, "127.0.0.1:") {
		t.Errorf("by default: %s %s", c.Listen, c.Admin)
	}
}

func TestAdmin(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	n := prometheus.NewCounter(prometheus.CounterOpts{Name: "notifyd_test_total"})
	reg.MustRegister(n)
	s := newWorld().start(t, Config{}, func(d *Deps) { d.Metrics = reg })
	stop := run(t, s)
	hc := &http.Client{}
	defer hc.CloseIdleConnections()
	f := func(path string, status int, contains string) {
		t.Helper()
		resp, err := hc.Get("http://" + s.AdminAddr() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != status || !strings.Contains(string(b), contains) {
			t.Errorf("%s: %d %.200s", path, resp.StatusCode, b)
		}
	}
	f("/metrics", 200, "notifyd_test_total 0")
	f("/debug/pprof/", 200, "goroutine")
	f("/healthz", 200, "ok")
	f("/readyz", 200, "ready")
	f("/v1/notifications/x", 404, "")
	f("/debug/pprof/trace?seconds=99999", 400, "at most 90")
	f("/debug/pprof/profile?seconds=99999", 400, "at most 90")
	for host, status := range map[string]int{"evil.test": 403, "evil.test:7421": 403, "localhost:7421": 200, "127.0.0.1": 200} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+s.AdminAddr()+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := hc.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != status {
			t.Errorf("Host %s: %d", host, resp.StatusCode)
		}
	}
	beyond := httptest.NewRequest("GET", "http://10.1.2.3:7421/debug/pprof/", nil)
	beyond = beyond.WithContext(context.WithValue(beyond.Context(), http.LocalAddrContextKey, net.Addr(&net.TCPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 7421})))
	rec := httptest.NewRecorder()
	if s.AdminHandler().ServeHTTP(rec, beyond); rec.Code != 403 {
		t.Errorf("pprof beyond loopback: %d", rec.Code)
	}
	if got := ask(s, "GET", "/debug/pprof/", "", ""); got.status != 404 {
		t.Errorf("pprof on the API: %d", got.status)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestFailedFeedWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		ln := newPipes()
		s, err := New(Config{Listener: ln, AdminListener: newPipes()}, w.deps(t))
		if err != nil {
			t.Fatal(err)
		}
		tok := token(t, "shop", api.ScopeRead)
		start := time.Now()
		got := ask(s, "GET", "/v1/failed?after=7&wait=30s", tok, "")
		var p api.FailedPage
		if got.into(t, &p); len(p.Items) != 0 || p.After != 7 || time.Since(start) != 30*time.Second {
			t.Errorf("%s after %v", got.body, time.Since(start))
		}
		start = time.Now()
		time.AfterFunc(4*time.Second, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.dead = append(w.dead, engine.DeadLetter{Seq: 8, Caller: "bank"}, engine.DeadLetter{Seq: 9, Caller: "shop", Code: "http_400"})
		})
		got = ask(s, "GET", "/v1/failed?after=7&wait=30s", tok, "")
		got.into(t, &p)
		if took := time.Since(start); len(p.Items) != 1 || p.Items[0].Code != "http_400" || p.After != 9 || took < 4*time.Second || took > 5*time.Second {
			t.Errorf("%s after %v", got.body, took)
		}
		for _, q := range []string{"wait=31s", "wait=-1s", "wait=x", "after=-1", "limit=0"} {
			if got := ask(s, "GET", "/v1/failed?"+q, tok, ""); got.status != 422 {
				t.Errorf("%s: %d", q, got.status)
			}
		}
		s.Close()
	})
}

// oneTail is a subscription the test feeds.
type oneTail struct {
	events chan api.Event
	missed func() int64
	asked  chan api.TailFilter
}

func (o *oneTail) Subscribe(_ context.Context, f api.TailFilter) (<-chan api.Event, func() int64) {
	o.asked <- f
	return o.events, o.missed
}

func TestTail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		missed := int64(0)
		tail := &oneTail{events: make(chan api.Event, 4), asked: make(chan api.TailFilter, 1), missed: func() int64 { return missed }}
		w, ln := newWorld(), newPipes()
		deps := w.deps(t)
		deps.Tail = tail
		s, err := New(Config{Listener: ln, AdminListener: newPipes()}, deps)
		if err != nil {
			t.Fatal(err)
		}
		stop := run(t, s)
		c := ln.dial()
		defer c.Close()
		go io.WriteString(c, "GET /v1/tail HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+token(t, "shop", api.ScopeRead)+"\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != 200 || resp.Header.Get("Content-Type") != api.TypeNDJSON {
			t.Fatalf("%v %+v", err, resp)
		}
		if got := <-tail.asked; got != (api.TailFilter{Caller: "shop"}) {
			t.Errorf("subscribed to %+v", got)
		}
		lines := bufio.NewScanner(resp.Body)
		next := func() (e api.Event) {
			t.Helper()
			if !lines.Scan() {
				t.Fatalf("the stream ended: %v", lines.Err())
			}
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				t.Fatal(err)
			}
			return e
		}
		start := time.Now()
		if e := next(); e.Type != api.EventHeartbeat {
			t.Errorf("%+v", e)
		}
		tail.events <- api.Event{Type: api.EventOutcome, NotificationID: "ntf_1", Status: "SENT"}
		if e := next(); e.NotificationID != "ntf_1" || time.Since(start) != 0 {
			t.Errorf("%+v after %v", e, time.Since(start))
		}
		if e := next(); e.Type != api.EventHeartbeat || time.Since(start) != 15*time.Second {
			t.Errorf("%+v after %v", e, time.Since(start))
		}
		synctest.Wait()
		missed = 12
		tail.events <- api.Event{Type: api.EventOutcome, NotificationID: "ntf_2"}
		next()
		if e := next(); e.Type != api.EventGap || e.Dropped != 12 {
			t.Errorf("%+v", e)
		}
		// Ten minutes are nothing to a tail, though they pass every other timeout.
		for time.Since(start) < 10*time.Minute {
			next()
		}
		// A client that does not read is cut off.
		synctest.Wait()
		<-time.After(2 * time.Minute)
		synctest.Wait()
		if n := s.places[classStream].underWay.Load(); n != 0 {
			t.Errorf("%d streams are open to a client that does not read", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestTailNamesProcessesToOperators: a caller's tail says that outcomes are left out, and
// not which processes there are or where they run.
func TestTailNamesProcessesToOperators(t *testing.T) {
	t.Parallel()
	f := func(name string, scopes ...string) (lines []api.Event) {
		tail := &oneTail{events: make(chan api.Event, 3), asked: make(chan api.TailFilter, 1), missed: func() int64 { return 0 }}
		tail.events <- api.Event{Type: api.EventOutcome, NotificationID: "ntf_1", Process: "mails"}
		tail.events <- api.Event{Type: api.EventGap, Process: "mails", Dropped: 3}
		tail.events <- api.Event{Type: api.EventProcesses, Processes: []string{"mails"}, Missing: []api.Process{{Name: "pushes", Host: "vm", API: "10.0.0.1:80", State: api.ProcessMissing}}}
		close(tail.events)
		s := newWorld().start(t, Config{}, func(d *Deps) { d.Tail = tail })
		got := ask(s, "GET", "/v1/tail", token(t, "shop", scopes...), "")
		for line := range strings.Lines(got.body) {
			var e api.Event
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatal(err)
			}
			lines = append(lines, e)
		}
		if len(lines) != 4 || lines[1].NotificationID != "ntf_1" || lines[2].Dropped != 3 || len(lines[3].Missing) != 1 {
			t.Fatalf("%s: %s", name, got.body)
		}
		if shown := strings.Contains(got.body, "mails") || strings.Contains(got.body, "pushes") || strings.Contains(got.body, "vm") || strings.Contains(got.body, "10.0.0.1"); shown != (len(scopes) > 1) {
			t.Errorf("%s: %s", name, got.body)
		}
		return lines
	}
	if e := f("a caller", api.ScopeRead); e[2].Process == "" || !e[3].Missing[0].Missing() {
		t.Errorf("%+v", e)
	}
	for _, scope := range []string{api.ScopeOperate, api.ScopeObserve} {
		if e := f(scope, api.ScopeRead, scope); e[1].Process != "mails" || e[2].Process != "mails" || e[3].Processes[0] != "mails" || e[3].Missing[0].Host != "vm" {
			t.Errorf("%s: %+v", scope, e)
		}
	}
}

func TestTailOfOthersIsForOperators(t *testing.T) {
	t.Parallel()
	tail := &oneTail{events: make(chan api.Event), asked: make(chan api.TailFilter, 1), missed: func() int64 { return 0 }}
	close(tail.events) // each stream ends at once
	s := newWorld().start(t, Config{}, func(d *Deps) { d.Tail = tail })
	f := func(query, want string, scopes ...string) {
		t.Helper()
		got := ask(s, "GET", "/v1/tail"+query, token(t, "shop", scopes...), "")
		if want == "refused" {
			if got.status != 422 {
				t.Errorf("%s: %d", query, got.status)
			}
			return
		}
		if asked := <-tail.asked; got.status != 200 || strings.TrimSpace(asked.Caller+" "+asked.Channel+" "+asked.Category+" "+asked.Status) != want {
			t.Errorf("%s: %d, subscribed to %+v", query, got.status, asked)
		}
	}
	f("", "shop", api.ScopeRead)
	f("?caller=bank", "refused", api.ScopeRead)
	f("?caller=*", "refused", api.ScopeRead)
	f("", "shop", api.ScopeRead, api.ScopeOperate)
	f("?caller=bank", "bank", api.ScopeRead, api.ScopeOperate)
	f("?caller=*", "", api.ScopeRead, api.ScopeOperate)
	f("?channel=sms&category=otp&status=FAILED", "shop sms otp FAILED", api.ScopeRead)
	f("?channel=fax", "refused", api.ScopeRead)
	f("?category=promo", "refused", api.ScopeRead)
	f("?status=GONE", "refused", api.ScopeRead)
}
