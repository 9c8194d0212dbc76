package app

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/simulator"
	"github.com/notifyd/notifyd/pkg/trace/tracetest"
	"github.com/notifyd/notifyd/pkg/worker"
)

const (
	traceID     = "4bf92f3577b34da6a3ce929d0e0e4736"
	callersSpan = "00f067aa0ba902b7"
	traceparent = "00-" + traceID + "-" + callersSpan + "-01"
	tracestate  = "vendor=t61rcWkgMzE"
)

// carrying sends a trace context with every request.
type carrying struct{ http.RoundTripper }

func (c carrying) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Traceparent", traceparent)
	r.Header.Set("Tracestate", tracestate)
	return c.RoundTripper.RoundTrip(r)
}

func (l *life) carryTrace() {
	l.client.HTTPClient.Transport = carrying{l.client.HTTPClient.Transport}
}

// script is a provider that gives the listed answers, the last one for ever, and records the
// contexts of its calls.
type script struct {
	mu      sync.Mutex
	answers []notify.Result
	parents []string
	states  []string
}

func (s *script) Send(_ context.Context, call *notify.Call, report notify.Report) {
	s.mu.Lock()
	s.parents, s.states = append(s.parents, strings.Clone(call.Trace)), append(s.states, strings.Clone(call.TraceState))
	answer := s.answers[0]
	if len(s.answers) > 1 {
		s.answers = s.answers[1:]
	}
	s.mu.Unlock()
	for i := range call.Items {
		report.One(i, answer)
	}
}

func (s *script) seen() (parents, states []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.parents...), append([]string(nil), s.states...)
}

func (s *script) seams() seams {
	return seams{provider: func(worker.Provider) worker.Provider { return s }}
}

// callbacks is a receiver of callbacks that records their trace contexts.
type callbacks struct {
	*httptest.Server
	mu              sync.Mutex
	parents, states []string
}

func newCallbacks(t *testing.T) *callbacks {
	t.Helper()
	c := &callbacks{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.parents, c.states = append(c.parents, r.Header.Get("Traceparent")), append(c.states, r.Header.Get("Tracestate"))
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *callbacks) seen() (parents, states []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.parents...), append([]string(nil), c.states...)
}

func (c *callbacks) admit(cfg *Config) {
	cfg.Triggers.Plain, cfg.Triggers.Allow, cfg.Triggers.Ports = true, []string{"127.0.0.0/8"}, []int{0}
}

func (c *callbacks) seed(t *testing.T) func(*Node) {
	return func(n *Node) {
		if err := n.SeedCaller(t.Context(), "test", []string{c.URL}, "whsec_"+strings.Repeat("A", 32)); err != nil {
			t.Fatal(err)
		}
	}
}

func startCollector(t *testing.T) *tracetest.Collector {
	t.Helper()
	c, err := tracetest.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

var accepted = notify.Result{Class: notify.ClassAccepted, Confirmed: true, Provider: "apns"}

// TestOneTrace follows a notification from its request through a retry, its failure, the callback
// that reports it, and a replay. All of this is one trace.
func TestOneTrace(t *testing.T) {
	t.Parallel()
	col, back := startCollector(t), newCallbacks(t)
	cfg := testConfig(t, t.TempDir())
	cfg.Tracing.Endpoint, cfg.Tracing.Sample = col.URL(), 0
	cfg.Tracing.HeadersFile = filepath.Join(t.TempDir(), "headers")
	if err := os.WriteFile(cfg.Tracing.HeadersFile, []byte("# of the collector\nAuthorization: Bearer s3cret\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	back.admit(&cfg)
	s := &script{answers: []notify.Result{
		{Class: notify.ClassRetry, Code: "apns_busy", Provider: "apns"},
		{Class: notify.ClassPermanent, Code: "apns_bad_topic", Provider: "apns"},
		accepted,
	}}
	l := run(t, cfg, s.seams(), back.seed(t))
	caller, err := l.client.Caller(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	caller.OutcomesURL = back.URL + "/failed"
	if _, err := l.client.PutCaller(t.Context(), caller); err != nil {
		t.Fatal(err)
	}
	l.carryTrace()
	sent, err := l.client.Send(t.Context(), push("ann", "traced"), "")
	if err != nil {
		t.Fatal(err)
	}
	l.becomes(t, sent.NotificationID, "FAILED")
	eventually(t, "the callback", func() bool { parents, _ := back.seen(); return len(parents) > 0 })
	var ds api.DeadLetterPage
	eventually(t, "the dead letter", func() bool {
		ds, err = l.client.DeadLetters(t.Context(), api.LetterFilter{Channel: "push"}, "", 0)
		return err == nil && len(ds.Items) == 1
	})
	if ds.Items[0].TraceID != traceID {
		t.Errorf("the dead letter: %+v", ds.Items[0])
	}
	plan, err := l.client.Plan(t.Context(), api.JobSpec{Kind: "replay", Filter: api.LetterFilter{IDs: []string{sent.NotificationID}}})
	if err != nil || plan.Entries != 1 {
		t.Fatal(plan, err)
	}
	if _, err := l.client.StartJob(t.Context(), api.JobRequest{Spec: plan.Spec, Digest: plan.Digest}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the replay is delivered", func() bool {
		st, err := l.client.Notification(t.Context(), sent.NotificationID)
		return err == nil && st.Status == "DELIVERED" && st.TraceID == traceID
	})
	why, err := l.client.Timeline(t.Context(), sent.NotificationID)
	if err != nil || why.TraceID != traceID {
		t.Errorf("%q, %v", why.TraceID, err)
	}
	if err := l.stop(); err != nil { // exports what waits
		t.Fatal(err)
	}

	spans, _ := col.Spans()
	byID, names := map[string]tracetest.Span{}, map[string]int{}
	for _, sp := range spans {
		byID[sp.ID] = sp
		names[sp.Name]++
		if sp.Trace != traceID {
			t.Errorf("a span of another trace: %+v", sp)
		}
	}
	for _, sp := range spans {
		if _, ok := byID[sp.Parent]; !ok && sp.Parent != callersSpan {
			t.Errorf("a span whose parent is not there: %+v", sp)
		}
		if sp.Parent == callersSpan && sp.Name != "POST /v1/notifications" {
			t.Errorf("%s is a child of the caller's own span", sp.Name)
		}
	}
	for name, want := range map[string]int{
		"POST /v1/notifications": 1, "append": 1, "deliver": 3, "provider call": 3,
	} {
		if names[name] != want {
			t.Errorf("%d spans %q, want %d: %v", names[name], name, want, names)
		}
	}
	if names["hand on"] < 2 || names["callback"] < 1 { // the retry and the failure; a call may be made twice
		t.Errorf("%v", names)
	}
	// The requests to providers and receivers name the span of their call.
	parents, states := s.seen()
	for i, p := range append(parents, first(back.seen())) {
		sp := byID[strings.Split(p+"--", "-")[2]]
		want := "provider call"
		if i == len(parents) {
			want = "callback"
		}
		if notify.TraceID(p) != traceID || sp.Name != want {
			t.Errorf("call %d went out with %q, of %+v", i, p, sp)
		}
	}
	for _, s := range states {
		if s != tracestate {
			t.Errorf("tracestate %q", s)
		}
	}
	hs, bad := col.Headers()
	if len(bad) > 0 || len(hs) == 0 || hs[0].Get("Authorization") != "Bearer s3cret" {
		t.Errorf("%v, %v", hs, bad)
	}
	if strings.Contains(l.log.String(), "s3cret") {
		t.Error("the log has the collector's secret")
	}
}

func first(list, _ []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// TestTraceOfWhatHappensLater: a scheduled notification is parked and released within its trace,
// and a trigger is called within its trace. A fan-out makes one span for each window.
func TestTraceOfWhatHappensLater(t *testing.T) {
	t.Parallel()
	col, back := startCollector(t), newCallbacks(t)
	cfg := testConfig(t, t.TempDir())
	cfg.Tracing.Endpoint, cfg.Tracing.Sample = col.URL(), 0
	back.admit(&cfg)
	s := &script{answers: []notify.Result{accepted}}
	l := run(t, cfg, s.seams(), back.seed(t))
	l.carryTrace()
	// The notification is scheduled far ahead, and moved near when it is stored. Otherwise it could
	// be due on a slow machine before it is accepted.
	far := time.Now().Add(time.Hour)
	n := push("ann", "later")
	n.ScheduledAt = &far
	sent, err := l.client.Send(t.Context(), n, "")
	if err != nil {
		t.Fatal(err)
	}
	if st, err := l.client.Notification(t.Context(), sent.NotificationID); err != nil || st.TraceID != traceID {
		t.Errorf("while it waits: %+v, %v", st, err)
	}
	trg, err := l.client.Trigger(t.Context(), api.Trigger{CallbackURL: back.URL + "/x", FireAt: &far, Exact: true}, "")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the notification is moved", func() bool {
		_, err := l.client.Reschedule(t.Context(), sent.NotificationID, time.Now().Add(time.Second))
		return err == nil
	})
	eventually(t, "the trigger is moved", func() bool {
		_, err := l.client.RescheduleTrigger(t.Context(), trg.TriggerID, time.Now().Add(time.Second))
		return err == nil
	})
	l.becomes(t, sent.NotificationID, "DELIVERED")
	eventually(t, "it fires", func() bool {
		st, err := l.client.TriggerStatus(t.Context(), trg.TriggerID)
		return err == nil && st.Status == "FIRED" && st.TraceID == traceID
	})
	const receivers = 3000
	to := make([]api.Receiver, receivers)
	for i := range to {
		to[i] = api.Receiver{UserID: fmt.Sprint("user-", i), Address: "apns:" + device}
	}
	before, _ := s.seen()
	fan, err := l.client.Fanout(t.Context(), api.Fanout{Channel: "push", Category: "marketing", Content: push("", "all").Content, Receivers: to}, "")
	if err != nil {
		t.Fatal(err)
	}
	last := strings.TrimSuffix(fan.FirstID, "-0")
	eventually(t, "all are delivered", func() bool {
		sum, err := l.client.Summary(t.Context(), last, api.Page{})
		return err == nil && sum.Counts["DELIVERED"] == receivers && sum.TraceID == traceID
	})
	if err := l.stop(); err != nil {
		t.Fatal(err)
	}
	names := map[string]int{}
	spans, _ := col.Spans()
	for _, sp := range spans {
		names[sp.Name]++
		if sp.Trace != traceID {
			t.Errorf("%+v", sp)
		}
	}
	for _, name := range []string{"POST /v1/notifications", "POST /v1/triggers", "POST /v1/notifications:fanout", "release"} {
		if names[name] != 1 {
			t.Errorf("%d spans %q: %v", names[name], name, names)
		}
	}
	if names["park"] != 2 || names["callback"] < 1 {
		t.Errorf("parked: %v", names)
	}
	after, _ := s.seen()
	if windows := len(after) - len(before); names["deliver"] != windows+1 || windows > 8 {
		t.Errorf("%d windows of %d receivers, %d spans", windows, receivers, names["deliver"])
	}
	if parents, states := back.seen(); notify.TraceID(parents[0]) != traceID || states[0] != tracestate {
		t.Errorf("%v, %v", parents, states)
	}
}

// TestTraceWithoutExport: if no collector is configured, a caller's context is passed on unchanged.
// No trace is begun for a caller that sends no context.
func TestTraceWithoutExport(t *testing.T) {
	t.Parallel()
	back := newCallbacks(t)
	cfg := testConfig(t, t.TempDir())
	back.admit(&cfg)
	s := &script{answers: []notify.Result{{Class: notify.ClassRetry, Code: "apns_busy", Provider: "apns"}, accepted}}
	l := run(t, cfg, s.seams(), back.seed(t))
	if l.tracer != nil {
		t.Fatal("there is a tracer")
	}
	plain := l.client.HTTPClient.Transport
	l.carryTrace()
	soon := time.Now().Add(50 * time.Millisecond)
	call := api.Trigger{CallbackURL: back.URL + "/x", FireAt: &soon, Exact: true}
	sent, err := l.client.Send(t.Context(), push("ann", "traced"), "")
	if err == nil {
		_, err = l.client.TriggerBatch(t.Context(), []api.Trigger{call}, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	l.becomes(t, sent.NotificationID, "DELIVERED")
	eventually(t, "the callback", func() bool { parents, _ := back.seen(); return len(parents) == 1 })
	l.client.HTTPClient.Transport = plain
	other, err := l.client.Send(t.Context(), push("bob", "untraced"), "")
	if err == nil {
		_, err = l.client.Trigger(t.Context(), call, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	l.becomes(t, other.NotificationID, "DELIVERED")
	eventually(t, "the other callback", func() bool { parents, _ := back.seen(); return len(parents) == 2 })
	st, err := l.client.Notification(t.Context(), other.NotificationID)
	if err != nil || st.TraceID != "" {
		t.Errorf("%+v, %v", st, err)
	}
	parents, states := s.seen()
	if fmt.Sprint(parents) != fmt.Sprint([]string{traceparent, traceparent, ""}) || fmt.Sprint(states) != fmt.Sprint([]string{tracestate, tracestate, ""}) {
		t.Errorf("%q, %q", parents, states)
	}
	parents, states = back.seen()
	if fmt.Sprint(parents) != fmt.Sprint([]string{traceparent, ""}) || fmt.Sprint(states) != fmt.Sprint([]string{tracestate, ""}) {
		t.Errorf("%q, %q", parents, states)
	}
}

// TestTraceWithoutCollector: if the collector is away, nothing changes except a count.
func TestTraceWithoutCollector(t *testing.T) {
	t.Parallel()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	cfg := testConfig(t, t.TempDir())
	cfg.Tracing.Endpoint, cfg.Tracing.Sample = "http://"+gone.Addr().String(), 1
	l := run(t, cfg, seams{traceEvery: time.Millisecond})
	sent, err := l.client.Send(t.Context(), push("ann", "hello"), "")
	if err != nil {
		t.Fatal(err)
	}
	l.becomes(t, sent.NotificationID, "DELIVERED")
	if st, err := l.client.Notification(t.Context(), sent.NotificationID); err != nil || len(st.TraceID) != 32 {
		t.Errorf("the trace that was begun: %+v, %v", st, err)
	}
	eventually(t, "spans are counted as dropped", func() bool {
		families, err := l.metrics.Registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "notifyd_trace_spans_dropped_total" {
				return f.Metric[0].Counter.GetValue() >= 3
			}
		}
		return false
	})
	if err := l.stop(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(l.log.String(), "the collector does not accept spans"); n != 1 {
		t.Errorf("it is told %d times", n)
	}
}

// TestTraceReachesProviders: the requests to providers have the trace header.
func TestTraceReachesProviders(t *testing.T) {
	t.Parallel()
	l, sim := simulated(t, simulator.Receipts{Off: true})
	l.carryTrace()
	for _, n := range []api.Notification{sms("ann", simulator.Phone(1)), email("ann", simulator.Mailbox(1))} {
		sent, err := l.client.Send(t.Context(), n, "")
		if err != nil {
			t.Fatal(err)
		}
		l.becomes(t, sent.NotificationID, "SENT")
	}
	got := sim.Inbox()
	if len(got) != 2 {
		t.Fatalf("%+v", got)
	}
	for _, m := range got {
		if m.Traceparent != traceparent || m.Tracestate != tracestate {
			t.Errorf("%+v", m)
		}
	}
}

func TestCollectorHeaders(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                          "map[]",
		"Authorization: Bearer x\n": "map[Authorization:Bearer x]",
		"# c\n\n a: b \nc:d":        "map[a:b c:d]",
		"a b: c":                    "line 1",
		"a: b\nno colon, a secret":  "line 2",
		"a: \x01":                   "line 1",
	} {
		file := filepath.Join(t.TempDir(), "headers")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		hs, err := collectorHeaders(file)
		got := fmt.Sprint(hs)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) || strings.Contains(got, "secret") {
			t.Errorf("%q: %s", text, got)
		}
	}
}
