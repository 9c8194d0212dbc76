package load

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/simulator"
)

// TestPromisesModel matches promises and arrivals in random order and compares the counts with a simple
// model. It uses one or two ledgers, and memory for all promises or for almost none of them.
func TestPromisesModel(t *testing.T) {
	t.Parallel()
	d := dataOf(t, Step{Target: Batch, Rate: 1}, 0)
	steps := []*stepRun{{Step: d.step, data: d}, {Step: d.step, data: d}}
	rapid.Check(t, func(t *rapid.T) {
		p := &promises{keepIDs: true, memory: rapid.SampledFrom([]int{1, 10 * promiseBytes, promiseMemory}).Draw(t, "memory")}
		defer p.closeFiles()
		p.shards = rapid.IntRange(1, 2).Draw(t, "ledgers")
		n := rapid.IntRange(1, 40).Draw(t, "bases")
		bases := make([]notify.Base, n)
		size := make([]uint32, n) // receivers of a fan-out; 0: a single message
		came := make([]uint32, n)
		promised := make([]bool, n)
		for i := range bases {
			bases[i] = notify.NewBase(time.Unix(int64(i), 0))
			size[i] = uint32(rapid.SampledFrom([]int{0, 0, 3}).Draw(t, "size"))
		}
		timed := map[int]int64{} // index of a base -> number of times; the due time contains the index
		took := func(d *dueMoment, at time.Time, n int64) {
			if i := int(d.intended); at.Unix() != int64(i) || d.step != steps[i%2] {
				t.Fatalf("base %d got the time of %d", i, at.Unix())
			}
			timed[int(d.intended)] += n
		}
		repeated := int64(0)
		for range rapid.IntRange(0, 150).Draw(t, "events") {
			i := rapid.IntRange(0, n-1).Draw(t, "base")
			if !promised[i] && rapid.Bool().Draw(t, "promise") {
				promised[i] = true
				ack := &Ack{Accepted: int(max(size[i], 1)), Base: bases[i], Count: int(size[i])}
				if size[i] == 0 {
					ack.IDs = []string{notify.ID{Base: bases[i]}.String()}
				}
				p.addAck(steps[i%2], &Request{Intended: time.Duration(i), kind: kindBatch}, ack)
				continue
			}
			from := uint8(0)
			switch {
			case came[i] < max(size[i], 1):
				came[i]++
			case size[i] == 0 && p.shards == 2 && came[i] == 1: // a single message arrives again, at the second ledger
				came[i]++
				from = 1
			default:
				continue
			}
			if err := p.join([]arrival{{base: bases[i], at: int64(i) * 1e9, n: 1, ledger: from}}, took); err != nil {
				t.Fatal(err)
			}
			if rapid.IntRange(0, 30).Draw(t, "join files") == 0 {
				if err := p.joinFiles(took); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := p.join(nil, took); err != nil {
			t.Fatal(err)
		}
		if err := p.joinFiles(took); err != nil {
			t.Fatal(err)
		}
		delivered, open := int64(0), map[notify.Base]bool{}
		for i := range bases {
			switch {
			case !promised[i] && timed[i] != 0:
				t.Fatalf("base %d was not promised", i)
			case !promised[i]:
				continue
			case size[i] == 0 && came[i] == 2:
				repeated++
			}
			first := min(came[i], max(size[i], 1))
			delivered += int64(first)
			if timed[i] != int64(first) {
				t.Fatalf("%d times of base %d, want %d", timed[i], i, first)
			}
			if first < max(size[i], 1) {
				open[bases[i]] = true
			}
		}
		if got, again, _ := p.countJoined(); got != delivered || again != repeated {
			t.Fatalf("%d joined, %d twice; want %d, %d", got, again, delivered, repeated)
		}
		err := p.eachUnfinished(func(b notify.Base, _ *promise) bool {
			if !open[b] {
				t.Fatalf("%s is not unfinished", b)
			}
			delete(open, b)
			return true
		})
		if err != nil || len(open) > 0 {
			t.Fatalf("%d more are unfinished, %v", len(open), err)
		}
	})
}

// TestPromisesForget checks that a promise uses no memory after all its messages have arrived.
func TestPromisesForget(t *testing.T) {
	t.Parallel()
	p := &promises{keepIDs: true, shards: 1}
	d := dataOf(t, Step{Target: Fanout, Rate: 1, Size: 3}, 0)
	st := &stepRun{Step: d.step, data: d}
	for range 100 {
		b := notify.NewBase(time.Now())
		p.addAck(st, &Request{}, &Ack{Accepted: 3, Base: b, Count: 3})
		if err := p.join([]arrival{{base: b, n: 2}, {base: b, n: 1}}, func(*dueMoment, time.Time, int64) {}); err != nil {
			t.Fatal(err)
		}
	}
	if got, _, _ := p.countJoined(); got != 300 || len(p.open)+len(p.early) != 0 {
		t.Errorf("%d joined, %d and %d are kept", got, len(p.open), len(p.early))
	}
}

// handled is an http.RoundTripper that calls a handler instead of a server.
type handled struct{ http.Handler }

func (h handled) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	res := w.Result()
	res.Request = r
	return res, nil
}

// TestShards checks that two simulators count as one ledger. A message that arrived at both simulators
// counts once and is a duplicate, for fan-outs and for single messages. A message that arrived at no
// simulator is missing.
func TestShards(t *testing.T) {
	t.Parallel()
	ledgers := []*simulator.Ledger{simulator.NewLedger(t.TempDir(), 1<<14), simulator.NewLedger(t.TempDir(), 1<<14)}
	var sims []*Simulators
	take := func(i int, id notify.ID) {
		ledgers[i].Count(&simulator.Receiver{ID: id.String(), Provider: simulator.APNs, Outcome: simulator.Accepted, Address: "a", At: time.Now()})
	}
	for i, l := range ledgers {
		sims = append(sims, &Simulators{URL: fmt.Sprintf("http://%d", i), Client: &http.Client{Transport: handled{l.Handler()}}})
		take(i, notify.ID{Base: notify.NewBase(time.Now())}) // arrives before the run
	}
	s := NewShards(sims...)
	if err := s.markStart(t.Context()); err != nil {
		t.Fatal(err)
	}
	const size = 1000
	fan, both, gone := notify.NewBase(time.Now()), notify.NewBase(time.Now()), notify.NewBase(time.Now())
	for i := range uint32(size) {
		switch i {
		case 700: // lost
		case 50, 900: // arrives at both simulators
			take(0, notify.ID{Base: fan, Index: i, FanOut: true})
			take(1, notify.ID{Base: fan, Index: i, FanOut: true})
		default:
			take(int(i/500), notify.ID{Base: fan, Index: i, FanOut: true})
		}
	}
	take(0, notify.ID{Base: both})
	take(1, notify.ID{Base: both})
	take(1, notify.ID{Base: both}) // arrives at the second simulator again
	p := &promises{keepIDs: true, shards: 2}
	d := dataOf(t, Step{Target: Fanout, Rate: 1, Size: size}, 0)
	st := &stepRun{Step: d.step, data: d}
	p.addAck(st, &Request{}, &Ack{Accepted: size, Base: fan, Count: size})
	p.addAck(st, &Request{}, &Ack{Accepted: 2, IDs: []string{notify.ID{Base: both}.String(), notify.ID{Base: gone}.String()}})
	if err := s.joinArrivals(t.Context(), p, func(*dueMoment, time.Time, int64) {}); err != nil {
		t.Fatal(err)
	}
	delivered, ids, err := s.listMissing(t.Context(), p, 10)
	slices.Sort(ids)
	want := []string{notify.ID{Base: fan, Index: 700, FanOut: true}.String(), notify.ID{Base: gone}.String()}
	slices.Sort(want)
	if err != nil || delivered != size || !slices.Equal(ids, want) {
		t.Errorf("%d delivered, missing %v, %v; want %d, %v", delivered, ids, err, size, want)
	}
	c, err := s.countArrivals(t.Context(), true)
	if err != nil || c.ids != size || c.duplicates != 4 || len(c.examples) != 3 {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestLedgerIncomplete checks that a run fails if the disk of the ledger failed.
func TestLedgerIncomplete(t *testing.T) {
	t.Parallel()
	s := NewShards(&Simulators{URL: "http://ledger", Client: &http.Client{Transport: handled{http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"ids":1,"disk_error":"no space left on device"}`)
	})}}})
	err := s.markStart(t.Context())
	if e, ok := errors.AsType[*notify.Error](err); !ok || e.Code != "ledger_incomplete" {
		t.Error(err)
	}
}

func TestParseSimulators(t *testing.T) {
	t.Parallel()
	list, err := ParseSimulators("http://127.0.0.1:1/, http://127.0.0.1:2", nil)
	if err != nil || len(list) != 2 || list[0].URL != "http://127.0.0.1:1" || list[1].URL != "http://127.0.0.1:2" {
		t.Errorf("%v, %v", list, err)
	}
	for _, text := range []string{"", "127.0.0.1:1", "http://a,", "http://a,http://a", "ftp://a"} {
		if _, err := ParseSimulators(text, nil); notify.KindOf(err) != notify.KindInvalid {
			t.Errorf("%q: %v", text, err)
		}
	}
}
