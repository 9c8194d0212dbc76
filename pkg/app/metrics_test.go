package app

import (
	"context"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/dashboards"
	"github.com/notifyd/notifyd/docs"
	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/conserve"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/metrics"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/server"
	"github.com/notifyd/notifyd/pkg/timer"
	"github.com/notifyd/notifyd/pkg/tool/promcheck"
	"github.com/notifyd/notifyd/pkg/trace"
	"github.com/notifyd/notifyd/pkg/trigger"
	"github.com/notifyd/notifyd/pkg/worker"
)

// entry is what the catalogue or the registry says about a metric.
type entry struct{ kind, labels string }

// TestMetricsCatalogue compares the tables of docs/metrics-*.md with the registry of a
// running node, in both directions.
func TestMetricsCatalogue(t *testing.T) {
	at := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, at) }) // after the node has stopped
	want := catalogue(t)
	n := runNode(t)
	feed(n.metrics)
	n.deferred = countedDeferral(t)
	if _, err := n.Audit(t.Context(), time.Time{}); err != nil {
		t.Fatal(err)
	}

	got := map[string]entry{}
	for name, labels := range described(n.metrics.Registry) {
		got[name] = entry{labels: labels}
	}
	families, err := n.metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if e, ok := got[f.GetName()]; ok {
			e.kind = strings.ToLower(f.GetType().String())
			got[f.GetName()] = e
		}
	}
	for name, e := range got {
		switch w, ok := want[name]; {
		case e.kind == "":
			t.Errorf("%s is registered, but nothing feeds it", name)
		case !ok:
			t.Errorf("%s (%s, labels %q) is not in docs/metrics-*.md", name, e.kind, e.labels)
		case w != e:
			t.Errorf("%s: docs/metrics-*.md says %+v, the registry %+v", name, w, e)
		case strings.HasSuffix(name, "_total") != (e.kind == "counter"):
			t.Errorf("%s: counters, and only they, end in _total", name)
		}
	}
	for name := range want {
		if _, ok := got[name]; !ok {
			t.Errorf("docs/metrics-*.md lists %s, which does not exist", name)
		}
	}

	served := scrape(t, n)
	checkDashboards(t, served)
	for name := range got {
		if !strings.Contains(served, "\n# TYPE "+name+" ") {
			t.Errorf("/metrics does not serve %s", name)
		}
	}
}

// checkDashboards compares the shipped dashboards and rules with what the node serves. Every
// metric, label and bucket must exist, and every label value from a closed set must be possible.
func checkDashboards(t *testing.T, served string) {
	metrics, err := promcheck.ParseExposition(strings.NewReader(served))
	if err != nil {
		t.Fatal(err)
	}
	var files []promcheck.File
	for _, pattern := range []string{"grafana/*.json", "rules/*.yml"} {
		names, err := fs.Glob(dashboards.Files(), pattern)
		if err != nil || len(names) == 0 {
			t.Fatalf("%d of %s, %v", len(names), pattern, err)
		}
		for _, name := range names {
			b, err := fs.ReadFile(dashboards.Files(), name)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, promcheck.File{Name: name, Data: b})
		}
	}
	var lanes, channels, categories, states []string
	for _, l := range notify.Lanes() {
		lanes = append(lanes, l.String())
	}
	for _, c := range notify.Channels {
		channels = append(channels, c.String())
	}
	for _, c := range notify.Categories {
		categories = append(categories, c.String())
	}
	for s := range len(worker.SettledInfo{}.States) {
		states = append(states, notify.State(s).String())
	}
	res := promcheck.Check(files, promcheck.Options{Metrics: metrics, Values: map[string][]string{
		"notifyd_outcomes_total lane": lanes, "notifyd_outcomes_total state": states,
		"notifyd_acceptance_to_call_seconds lane": lanes, "notifyd_acceptance_to_call_seconds category": categories,
		"notifyd_accepted_receivers_total channel": channels, "notifyd_trigger_queue_messages state": {"ready", "delayed", "in_flight", "dead"},
		"notifyd_log_lost_records consumed": {"yes", "no"},
	}})
	for _, p := range res.Problems {
		t.Error(p)
	}
	if res.Queries < 200 {
		t.Errorf("only %d queries were looked at", res.Queries)
	}
}

// catalogue reads the tables of docs/metrics-*.md.
func catalogue(t *testing.T) map[string]entry {
	row := regexp.MustCompile("(?m)^\\| `(notifyd_[a-z_]+)` \\| ([a-z]+) \\| ([^|]*?) ?\\| [^|]+ \\| [^|]*\\|$")
	out := map[string]entry{}
	for _, m := range row.FindAllStringSubmatch(docs.Metrics, -1) {
		if _, ok := out[m[1]]; ok {
			t.Errorf("docs/metrics-*.md lists %s twice", m[1])
		}
		labels := strings.Fields(strings.ReplaceAll(m[3], "`", ""))
		slices.Sort(labels)
		out[m[1]] = entry{m[2], strings.Join(labels, " ")}
	}
	if rows := strings.Count(docs.Metrics, "\n| `"); rows != len(out) {
		t.Errorf("docs/metrics-*.md has %d rows, of which %d read as metrics", rows, len(out))
	}
	return out
}

// described returns the labels of every metric of ours, also of those that have
// no value yet.
func described(r *prometheus.Registry) map[string]string {
	ch := make(chan *prometheus.Desc)
	go func() {
		defer close(ch)
		r.Describe(ch)
	}()
	text := regexp.MustCompile(`fqName: "(notifyd_[a-z_]+)".*variableLabels: \{([^}]*)\}`)
	out := map[string]string{}
	for d := range ch {
		if m := text.FindStringSubmatch(d.String()); m != nil {
			labels := strings.FieldsFunc(m[2], func(r rune) bool { return r == ',' || r == ' ' })
			slices.Sort(labels)
			out[m[1]] = strings.Join(labels, " ")
		}
	}
	return out
}

// countedDeferral returns a count with one receiver that waits for the end of quiet hours.
func countedDeferral(t *testing.T) *worker.DeferredCounter {
	t.Helper()
	var w notify.ReceiverWriter
	w.Append(notify.Receiver{User: []byte("ann")})
	e := notify.Envelope{
		Chunk: notify.Chunk{Base: notify.NewBase(time.Now())}, Channel: notify.Push, Category: notify.Alert, Caller: "shop", Accepted: time.Now().UnixMilli(),
		Attempt: 1, Cause: "quiet_hours", Count: 1, Receivers: w.Bytes(),
	}
	c := &worker.DeferredCounter{Timers: memory.New().Timers(), Shards: engine.FixedShards(1)}
	err := c.Timers.Put(t.Context(), notify.SpreadOver(1), []engine.Timer{{
		FireAt: time.Now().Add(time.Minute).UnixMilli(), ID: []byte("row"), Kind: timer.KindEnvelope,
		Target: notify.Lane{Channel: notify.Push}.DLQTopic(), Payload: notify.AppendEnvelope(nil, &e),
	}})
	if err == nil {
		_, err = c.Count(t.Context(), time.Now())
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// feed gives each hook an event, as the stages would. So there is a metric also for what the node
// did not happen to do.
func feed(m *metrics.Metrics) {
	metrics.Add(m.ArchiveLines, 1, "outcomes")
	metrics.Add(m.OutcomesRefused, 1, "too_many_pending")
	in, h := m.Intake(), m.HTTP()
	in.Accepted(notify.Push, notify.Alert, "caller", 1)
	in.Rejected("caller", "code", 1)
	in.Refused("caller", "code")
	in.Replayed("caller")
	in.TakenOver("caller")
	in.Spilled(1)
	metrics.Add(m.NewEnvelopes, 1, "push")
	h.Request("/v1/notifications", http.MethodPost, http.StatusCreated, time.Millisecond, 1, 1)
	h.InFlight(1)
	h.InFlight(-1)
	h.Refused("reason")
	h.Unguarded("POST /v1/notifications")
	lane := notify.Lane{Channel: notify.Push}
	w := m.Worker(&deadletter.Tail{}, func(*notify.Envelope) {})
	info := worker.SettledInfo{Lane: lane, Envelope: &notify.Envelope{}, Codes: map[string]int{"code": 1}, Called: time.Millisecond}
	info.States[notify.Sent] = 1
	w.Settled(info)
	w.Finished(lane, &notify.Envelope{})
	w.Resumed(lane, 1)
	w.Duplicate(lane, 1)
	w.Parked(lane, 1)
	w.Poison("topic")
	w.Damaged(lane)
	w.Panic(lane, "value")
	g := m.Group(slog.New(slog.DiscardHandler))
	g.Failed(log.TopicPartition{Topic: "topic"}, io.ErrUnexpectedEOF)
	g.Reset(log.Reset{TP: log.TopicPartition{Topic: "topic"}})
	tr := m.Triggers()
	tr.Created("c", 1)
	tr.Ended("c", engine.TriggerFired, "")
	tr.Attempt("c", "ok", time.Second)
	tr.Late("c", time.Second)
	tr.Deferred(trigger.CauseBreaker, 1)
	m.Released(timer.OnTime, make([]engine.Timer, 1), time.Now())
	m.Stalled(0)
	m.Reconciled(map[string]int{conserve.Late: 1}, nil)
	m.ReceiptsStored(notify.SMS, 1)
	metrics.Add(m.SpansDropped, 1, trace.QueueFull)
}

// runNode runs an embedded node whose providers accept everything, and sends
// one push through it, so that its route has a circuit.
func runNode(t *testing.T) *Node {
	dir := t.TempDir()
	cfg := Default()
	cfg.DataDir = filepath.Join(dir, "data")
	cfg.API.Listen, cfg.API.Admin, cfg.Log.Listen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	cfg.Log.Sync, cfg.Providers.Stub = false, true
	cfg.Auth.KeyFile = filepath.Join(dir, "key.pem")
	key, err := server.NewSigningKey()
	if err == nil {
		err = os.WriteFile(cfg.Auth.KeyFile, key, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	signer, err := server.OpenSigner(cfg.Auth.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	token, err := signer.Sign(server.TokenSpec{
		Caller: "test", Scopes: api.Scopes[:], Issuer: cfg.Auth.Issuer, Audience: cfg.Auth.Audience, TTL: time.Hour, Now: time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	n, err := New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	settled := make(chan struct{}, 1)
	n.Observe(func(*notify.Envelope) {
		select {
		case settled <- struct{}{}:
		default:
		}
	})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	transport := api.NewTransport(0)
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("the node ended with %v", err)
		}
		transport.CloseIdleConnections()
	})
	cl := &api.Client{
		BaseURL: "http://" + n.Addr(), HTTPClient: &http.Client{Transport: transport}, Retries: 100, Backoff: 10 * time.Millisecond,
		Token: func(context.Context) (string, error) { return token, nil },
	}
	if err := started(t.Context(), cl); err != nil {
		t.Fatal(err)
	}
	_, err = cl.Send(t.Context(), api.Notification{
		Channel: "push", Category: "transactional", To: api.Receiver{UserID: "ann", Address: "apns:" + strings.Repeat("ab", 32)},
		Content: api.Content{Title: "Hello", Body: "It works"},
	}, "")
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-settled:
	case <-time.After(3 * time.Minute):
		t.Fatal("the push was not delivered")
	}
	return n
}

// scrape reads /metrics of the admin listener.
func scrape(t *testing.T, n *Node) string {
	transport := api.NewTransport(0)
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+n.Admin()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("/metrics: %s, %v", resp.Status, err)
	}
	return "\n" + string(b)
}
