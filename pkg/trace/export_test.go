package trace

import (
	"errors"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/trace/tracetest"
)

// tally counts the spans that a tracer reports as exported or dropped.
type tally struct {
	mu       sync.Mutex
	exported int
	dropped  map[string]int
}

func (c *tally) into(cfg *Config) {
	c.dropped = map[string]int{}
	cfg.Exported = func(n int) { c.mu.Lock(); defer c.mu.Unlock(); c.exported += n }
	cfg.Dropped = func(why string, n int) { c.mu.Lock(); defer c.mu.Unlock(); c.dropped[why] += n }
}

func (c *tally) get() (exported, failed, full int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.exported, c.dropped[ExportFailed], c.dropped[QueueFull]
}

func start(t *testing.T, cfg Config) (*Tracer, *tracetest.Collector, *tally) {
	t.Helper()
	col, err := tracetest.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(col.Close)
	cfg.Endpoint = col.URL()
	var c tally
	c.into(&cfg)
	tr, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return tr, col, &c
}

func TestSpansReachTheCollector(t *testing.T) {
	t.Parallel()
	tr, col, c := start(t, Config{Service: "shop-notifyd", Headers: map[string]string{"Authorization": "Bearer s3cret"}, Flush: time.Minute})
	in := Context{Parent: good, State: "vendor=1"}
	req := tr.Request("POST /v1/notifications", in, time.Now())
	if !req.Recording() || req.Context().State != "vendor=1" || req.Context().Parent[:36] != good[:36] || req.Context().Parent == good {
		t.Fatalf("%+v", req.Context())
	}
	call := tr.Call("provider call", req.Context())
	call.Int("notifyd.items", 7)
	call.Link(Context{Parent: "00-" + id[1:] + "a-00f067aa0ba902b7-01"})
	call.Fail("http_503")
	call.End()
	req.End()
	// A context that its caller did not sample is not recorded and travels unchanged.
	not := Context{Parent: good[:53] + "00"}
	for _, s := range []Span{tr.Request("r", not, time.Now()), tr.Start("s", not), tr.Start("s", Context{})} {
		if s.Recording() {
			t.Error("a span of what is not sampled")
		}
	}
	// Without a traceparent and with a share of 0 none is begun.
	if s := tr.Request("r", Context{}, time.Now()); s.Recording() || !s.Context().None() {
		t.Errorf("%+v", s.Context())
	}
	tr.Close()
	spans, _ := col.Spans()
	if len(spans) != 2 {
		t.Fatalf("%+v", spans)
	}
	child, root := spans[0], spans[1]
	if root.Trace != id || root.Parent != "00f067aa0ba902b7" || root.Name != "POST /v1/notifications" || root.Service != "shop-notifyd" || root.Kind != "SPAN_KIND_SERVER" {
		t.Errorf("%+v", root)
	}
	if child.Trace != id || child.Parent != root.ID || child.Attrs["notifyd.items"] != "7" || child.Failed != "http_503" || len(child.Links) != 1 || child.Kind != "SPAN_KIND_CLIENT" {
		t.Errorf("%+v", child)
	}
	hs, bad := col.Headers()
	if len(bad) != 0 || len(hs) != 1 || hs[0].Get("Authorization") != "Bearer s3cret" {
		t.Errorf("%v, %v", hs, bad)
	}
	if n, failed, full := c.get(); n != 2 || failed+full != 0 {
		t.Errorf("%d exported, %d failed, %d too many", n, failed, full)
	}
}

func TestShareOfRequests(t *testing.T) {
	t.Parallel()
	tr, col, _ := start(t, Config{Sample: 1, Flush: time.Minute})
	s := tr.Request("r", Context{}, time.Now())
	got := s.Context()
	s.End()
	tr.Close()
	if p, ok := parseParent(got.Parent); !ok || p != got.Parent || !got.Sampled() {
		t.Fatalf("%q", got.Parent)
	}
	if spans, _ := col.Spans(); len(spans) != 1 || spans[0].Parent != "" || spans[0].Trace != got.Parent[3:35] {
		t.Errorf("%+v", spans)
	}
}

// TestCollectorIsDown checks that nothing waits for the collector, and that lost spans are
// counted.
func TestCollectorIsDown(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // nobody is there
	cfg := Config{Endpoint: "http://" + l.Addr().String(), Flush: time.Minute}
	var c tally
	c.into(&cfg)
	tr, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		s := tr.Start("s", Context{Parent: good})
		s.End()
	}
	tr.Close()
	if n, failed, full := c.get(); n != 0 || failed != 10 || full != 0 {
		t.Errorf("%d exported, %d failed, %d too many", n, failed, full)
	}
}

// TestCollectorRefuses: an answer that is no success counts as lost too.
func TestCollectorRefuses(t *testing.T) {
	t.Parallel()
	srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	cfg := Config{Endpoint: srv, Flush: time.Minute}
	var c tally
	c.into(&cfg)
	tr, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := tr.Start("s", Context{Parent: good})
	s.End()
	tr.Close()
	if n, failed, _ := c.get(); n != 0 || failed != 1 {
		t.Errorf("%d exported, %d failed", n, failed)
	}
}

// TestCollectorHangs: spans beyond the queue are dropped and counted while an
// export hangs, and Close ends it.
func TestCollectorHangs(t *testing.T) {
	t.Parallel()
	came, stop := make(chan struct{}, 16), make(chan struct{})
	srv := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		came <- struct{}{}
		select {
		case <-r.Context().Done():
		case <-stop:
		}
	}))
	defer close(stop)
	cfg := Config{Endpoint: srv, MaxQueue: 4, Timeout: time.Hour, Every: time.Hour, Flush: time.Millisecond}
	var c tally
	c.into(&cfg)
	tr, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 104 {
		s := tr.Start("s", Context{Parent: good})
		s.End()
		if i == 3 {
			<-came // a full batch is on its way, and hangs
		}
	}
	if _, _, full := c.get(); full != 100 {
		t.Errorf("%d spans were too many, want 100", full)
	}
	tr.Close()
	if n, failed, full := c.get(); n != 0 || failed != 4 || full != 100 {
		t.Errorf("%d exported, %d failed, %d too many", n, failed, full)
	}
}

// serve runs a handler on loopback until the test is over.
func serve(t *testing.T, h http.Handler) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv, done := &http.Server{Handler: h}, make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String()
}
