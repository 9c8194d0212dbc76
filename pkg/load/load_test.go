package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/notify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func scenario(target string, change func(*Scenario)) Scenario {
	s := Scenario{Name: "t", Target: target, Rate: 1000, Duration: time.Second, Users: 10_007}
	if change != nil {
		change(&s)
	}
	return s.WithDefaults()
}

// target answers like the API and remembers bodies and when they came.
type target struct {
	mu      sync.Mutex
	bodies  []string
	at      []time.Time
	latency time.Duration
	fail    func(n int) error
	reply   func(body []byte) string
}

func (t *target) Send(_ context.Context, body []byte, _ string) (Reply, error) {
	t.mu.Lock()
	t.bodies = append(t.bodies, string(body))
	t.at = append(t.at, time.Now())
	n := len(t.bodies)
	t.mu.Unlock()
	time.Sleep(t.latency) // of the bubble
	if t.fail != nil {
		if err := t.fail(n); err != nil {
			return nil, err
		}
	}
	return Reply(t.reply(body)), nil
}

func single([]byte) string {
	return fmt.Sprintf(`{"notification_id":%q,"status":"ACCEPTED"}`, notify.ID{Base: notify.NewBase(time.Now())})
}

// A slow server does not slow the schedule: latency counts from when a request
// was due.
func TestOpenLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tg := &target{latency: 100 * time.Millisecond, reply: single}
		res, err := Run(t.Context(), scenario(Single, func(s *Scenario) { s.Rate, s.Workers = 100, 5 }), Config{Target: tg})
		if err != nil {
			t.Fatal(err)
		}
		f := res.Figures
		if f.Requests != 100 || f.Accepted != 100 {
			t.Fatalf("%d requests, %d accepted", f.Requests, f.Accepted)
		}
		// Five workers serve 50 a second of 100: the last one is due after 1 s
		// and done after 2.
		if got := time.Duration(f.Response.Max()); got < 950*time.Millisecond {
			t.Errorf("response max %v hides the wait", got)
		}
		if got := time.Duration(f.Service.Max()); got > 110*time.Millisecond {
			t.Errorf("service max %v", got)
		}
		if lag := time.Duration(f.Lag.Max()); lag < 850*time.Millisecond {
			t.Errorf("lag max %v", lag)
		}
	})
}

func TestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tg := &target{reply: single}
		began := time.Now()
		if _, err := Run(t.Context(), scenario(Single, func(s *Scenario) { s.Rate = 10 }), Config{Target: tg}); err != nil {
			t.Fatal(err)
		}
		for i, at := range tg.at {
			if want := time.Duration(i) * 100 * time.Millisecond; at.Sub(began) != want {
				t.Errorf("request %d came at %v, want %v", i, at.Sub(began), want)
			}
		}
	})
}

// The data of a run is a pure function of seed and sequence, and a fan-out has
// no user twice.
func TestData(t *testing.T) {
	t.Parallel()
	s := scenario(Fanout, func(s *Scenario) { s.Size, s.Address = 10_007, true })
	body := newData(s).request(nil, 5, s.Size)
	if !bytes.Equal(body, newData(s).request(nil, 5, s.Size)) {
		t.Fatal("not reproducible")
	}
	other := s
	other.Seed++
	if bytes.Equal(body, newData(other).request(nil, 5, s.Size)) {
		t.Fatal("the seed does not matter")
	}
	var doc struct {
		Receivers []struct {
			User    string `json:"user_id"`
			Address string `json:"address"`
		} `json:"receivers"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, r := range doc.Receivers {
		if seen[r.User] || len(r.Address) != len("apns:")+64 {
			t.Fatalf("%+v", r)
		}
		seen[r.User] = true
	}
	if len(seen) != 10_007 {
		t.Fatalf("%d users", len(seen))
	}
	for _, ch := range []string{"push", "sms", "email"} {
		for _, target := range []string{Single, Batch} {
			s := scenario(target, func(s *Scenario) { s.Channel, s.Address, s.Ordered = ch, true, target == Single })
			if b := newData(s).request(nil, 0, s.Size); !json.Valid(b) {
				t.Fatalf("%s %s: %s", ch, target, b)
			}
		}
	}
}

// With keys a request that failed is repeated until it is answered.
func TestRepeatsUnderItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tg := &target{reply: single, fail: func(n int) error {
			if n <= 3 {
				return notify.Unavailable("log", time.Second, nil)
			}
			return nil
		}}
		res, err := Run(t.Context(), scenario(Single, func(s *Scenario) { s.Count, s.Workers = 1, 1 }),
			Config{Target: tg, Keys: func(n int64) string { return fmt.Sprint(n) }})
		if err != nil || res.Figures.Accepted != 1 || len(tg.bodies) != 4 {
			t.Fatalf("%v, %+v, %d requests", err, res.Figures, len(tg.bodies))
		}
	})
}

func TestLedger(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	sent := map[string]bool{}
	lose := ""
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ledger/totals", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		n := len(sent)
		if lose != "" {
			n-- // so that the drain has to wait for its limit
		}
		fmt.Fprintf(w, `{"ids":%d,"duplicates":2,"order":{"reordered":1}}`, n)
	})
	mux.HandleFunc("POST /ledger/check", func(w http.ResponseWriter, r *http.Request) {
		var b bytes.Buffer
		_, _ = b.ReadFrom(r.Body)
		mu.Lock()
		defer mu.Unlock()
		ids := strings.Fields(b.String())
		missing := []string{}
		for _, id := range ids {
			if !sent[id] || id == lose {
				missing = append(missing, id)
			}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"checked": len(ids), "missing_count": len(missing), "missing": missing})
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	defer http.DefaultClient.CloseIdleConnections()
	tg := &target{reply: func([]byte) string {
		id := notify.ID{Base: notify.NewBase(time.Now())}.String()
		mu.Lock()
		sent[id] = true
		if len(sent) == 7 {
			lose = id
		}
		mu.Unlock()
		return fmt.Sprintf(`{"notification_id":%q}`, id)
	}}
	s := scenario(Single, func(s *Scenario) { s.Rate, s.Count, s.Drain = 0, 20, 300*time.Millisecond })
	res, err := Run(t.Context(), s, Config{Target: tg, Ledger: &Ledger{URL: srv.URL}})
	if err != nil {
		t.Fatal(err)
	}
	c := res.Check
	if c.Expected != 20 || c.Delivered != 19 || c.Pending+c.Lost != 1 || c.Duplicates != 0 || len(c.Examples) != 1 {
		t.Fatalf("%+v", c)
	}
	var text bytes.Buffer
	sum := res.Summary()
	sum.WriteText(&text)
	if !strings.Contains(text.String(), "delivered   19 of 20") {
		t.Fatal(text.String())
	}
}

// providers are a ledger that is empty until a time, and full from then on.
type providers struct {
	full time.Time // zero: never
	n    int
}

func (p providers) RoundTrip(r *http.Request) (*http.Response, error) {
	got := 0
	if !p.full.IsZero() && !time.Now().Before(p.full) {
		got = p.n
	}
	body := fmt.Sprintf(`{"ids":%d}`, got)
	if r.URL.Path == "/ledger/check" {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		ids := strings.Fields(string(b))
		missing, err := json.Marshal(ids[min(got, len(ids)):])
		if err != nil {
			return nil, err
		}
		body = fmt.Sprintf(`{"checked":%d,"missing_count":%d,"missing":%s}`, len(ids), len(ids)-min(got, len(ids)), missing)
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// TestDrain: what waits for a provider that is away is on its way, and waited for;
// what nobody knows of is lost, and not waited for to the end.
func TestDrain(t *testing.T) {
	t.Parallel()
	const n, limit = 1500, time.Minute // more than the server is asked of
	says := func(s notify.State) StateOf {
		return func(context.Context, string) (notify.State, error) { return s, nil }
	}
	f := func(name string, comesAfter time.Duration, state StateOf, want Check, least, most time.Duration) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var at time.Time
				if comesAfter > 0 {
					at = began.Add(comesAfter)
				}
				l := &Ledger{URL: "http://ledger", Client: &http.Client{Transport: providers{at, n}}}
				s := scenario(Single, func(s *Scenario) { s.Rate, s.Count, s.Drain = 0, n, limit })
				res, err := Run(t.Context(), s, Config{Target: &target{reply: single}, Ledger: l, State: state})
				if err != nil {
					t.Fatal(err)
				}
				want.Expected = n
				got := *res.Check
				if want.Delivered < n && len(got.Examples) != 10 {
					t.Errorf("%d examples", len(got.Examples))
				}
				got.Took, got.Examples = 0, nil
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%+v, want %+v", got, want)
				}
				if took := time.Since(began); took < least || took > most {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
	f("comes late", 50*time.Second, says(notify.Deferred), Check{Delivered: n}, 50*time.Second, limit)
	f("waits", 0, says(notify.Deferred), Check{Pending: n}, limit, limit+time.Second)
	f("is lost", 0, says(notify.None), Check{Lost: n}, limit/2, limit/2+time.Second)
	f("is lost, and nobody asked", 0, nil, Check{Lost: n}, limit/2, limit/2+time.Second)
	f("is said to be delivered", 0, says(notify.Delivered), Check{Lost: n}, limit/2, limit/2+time.Second)
	f("failed", 0, says(notify.Failed), Check{Ended: n}, limit/2, limit/2+time.Second)
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	f := func(field string, change func(*Scenario)) {
		t.Helper()
		s := scenario(Batch, change)
		err := s.Validate()
		if e, ok := errors.AsType[*notify.Error](err); !ok || e.Field != field {
			t.Errorf("want an error about %s, got %v", field, err)
		}
	}
	f("target", func(s *Scenario) { s.Target = "smtp" })
	f("channel", func(s *Scenario) { s.Channel = "fax" })
	f("size", func(s *Scenario) { s.Size = 1001 })
	f("rate", func(s *Scenario) { s.Rate = -1 })
	f("duration", func(s *Scenario) { s.Duration = 0 })
	f("ordered", func(s *Scenario) { s.Ordered = true })
	f("users", func(s *Scenario) { s.Users = 3 })
}

// BenchmarkNull is the generator alone: bodies, clock, histograms.
func BenchmarkNull(b *testing.B) {
	for _, address := range []bool{false, true} {
		b.Run(fmt.Sprintf("addresses=%v", address), func(b *testing.B) {
			d := newData(scenario(Fanout, func(s *Scenario) { s.Users, s.Address = 5_000_000, address }))
			body := d.request(nil, 0, 50_000)
			b.SetBytes(int64(len(body)))
			n := uint64(0)
			for b.Loop() {
				body = d.request(body[:0], n, 50_000)
				n += 50_000
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/receiver")
		})
	}
}
