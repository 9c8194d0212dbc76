package deadletter

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// broken is a reconciler of n findings, of which every tenth is left for people.
type broken struct {
	n        int
	rounds   time.Duration // an apply takes
	mu       sync.Mutex
	mended   []int // how often each was
	at, most int   // applies at a time
	applies  int
	since    time.Time
	away     int // applies that fail first
}

func (b *broken) findings() Findings {
	return Findings{Report: json.RawMessage(`{"r":1}`), Digest: fmt.Sprint("d", b.n), Counts: map[string]int{"late": b.n}, Listed: b.n, Mend: b.n - (b.n+9)/10}
}

func (b *broken) Report(_ context.Context, since time.Time) (Findings, error) {
	b.since = since
	return b.findings(), nil
}

func (b *broken) Check(report json.RawMessage) (Findings, error) {
	if string(report) != `{"r":1}` {
		return Findings{}, notify.Invalid("bad_report", "report", "")
	}
	return b.findings(), nil
}

func (b *broken) Apply(ctx context.Context, _ json.RawMessage, from, n int) ([]Repair, error) {
	b.mu.Lock()
	b.applies++
	b.at++
	b.most = max(b.most, b.at)
	away := b.away > 0
	b.away--
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.at--
		b.mu.Unlock()
	}()
	if err := pause(ctx, b.rounds); err != nil {
		return nil, err
	}
	if away {
		return nil, notify.Unavailable("status_store", 0, nil)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]Repair, 0, n)
	for i := from; i < from+n; i++ {
		one := Repair{Kind: "trigger", Class: "late", ID: fmt.Sprint(i)}
		switch {
		case i%10 == 0:
			one.Why = SkipPeople
		case b.mended[i] > 0:
			one.Why = SkipChanged
		default:
			b.mended[i]++
		}
		out = append(out, one)
	}
	return out, nil
}

// TestReconcileJob: page by page, through a store that is away and through deaths
// behind a page that is not saved; each finding is repaired once and has its line.
func TestReconcileJob(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const n = 2*repairPage + 1000
		b := &broken{n: n, rounds: 2 * leaseTime, mended: make([]int, n), away: 1}
		r := newRig(t, func(c *ManagerConfig) { c.Reconcile = b })
		since := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
		p := r.plan(api.JobSpec{Kind: KindReconcile, Filter: api.LetterFilter{Since: since.UnixMilli()}})
		if p.Entries != n || p.Send != b.findings().Mend || p.Skip[SkipPeople] != n/10 || !b.since.Equal(since) || p.Counts["class"]["late"] != n {
			t.Fatalf("%+v", p)
		}
		j, _, err := r.m.Apply(t.Context(), api.JobRequest{Spec: p.Spec, Digest: p.Digest, Report: p.Reconcile}, By{Caller: "ann"})
		if err != nil {
			t.Fatal(err)
		}
		dead := r.dies("job-repaired-before-cursor", 2)
		r.run()
		<-dead
		<-r.ended
		if got, err := r.m.Get(t.Context(), j.ID); err != nil || got.Position != repairPage {
			t.Fatalf("%+v, %v", got, err)
		}
		r.cfg.Owner = "next"
		r.manager()
		r.run()
		j = r.until(j.ID, JobDone)
		// The page before the death was repaired, and found repaired.
		if j.Position != n || j.Done != b.findings().Mend-repairPage*9/10 || j.Skipped[SkipChanged] != repairPage*9/10 || j.Skipped[SkipPeople] != n/10 {
			t.Errorf("%+v", j)
		}
		for i, k := range b.mended {
			if want := min(i%10, 1); k != want {
				t.Fatalf("finding %d was repaired %d times, want %d", i, k, want)
			}
		}
		if b.applies != 5 { // one was away, one died
			t.Errorf("%d applies", b.applies)
		}
		lines, _, err := r.m.Report(t.Context(), j.ID, 0, n+1)
		if err != nil || len(lines) != n {
			t.Errorf("%d lines, %v", len(lines), err)
		}
		r.halt()
	})
}

// TestOneReconcileAtATime: what two operators begin runs one behind the other, and
// a lease outlives an apply that takes longer than it.
func TestOneReconcileAtATime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := &broken{n: 50, rounds: 3 * leaseTime, mended: make([]int, 50)}
		r := newRig(t, func(c *ManagerConfig) { c.Reconcile = b })
		p := r.plan(api.JobSpec{Kind: KindReconcile})
		var ids []string
		for _, by := range []string{"ann", "bob"} {
			j, created, err := r.m.Apply(t.Context(), api.JobRequest{Spec: p.Spec, Digest: p.Digest, Name: by, Report: p.Reconcile}, By{Caller: by})
			if err != nil || !created {
				t.Fatal(created, err)
			}
			ids = append(ids, j.ID)
		}
		other := r.cfg
		other.Owner = "another process"
		m, err := NewManager(other)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- m.Run(ctx) }()
		r.run()
		var done []int
		for _, id := range ids {
			done = append(done, r.until(id, JobDone).Done)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if slices.Sort(done); b.most != 1 || done[0] != 0 || done[1] != 45 || b.applies != 2 {
			t.Errorf("%d at a time, %d applies, repaired %v", b.most, b.applies, done)
		}
		// The same plan without a name is one job, whoever asks.
		first, created, err := r.m.Apply(t.Context(), api.JobRequest{Spec: p.Spec, Digest: p.Digest, Report: p.Reconcile}, By{Caller: "ann"})
		if err != nil || !created {
			t.Fatal(created, err)
		}
		again, created, err := r.m.Apply(t.Context(), api.JobRequest{Spec: p.Spec, Digest: p.Digest, Report: p.Reconcile}, By{Caller: "bob"})
		if err != nil || created || again.ID != first.ID || again.By != "ann" {
			t.Errorf("%v %+v, %v", created, again, err)
		}
		r.until(first.ID, JobDone)
		r.halt()
	})
}

func TestReconcileRefuses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		_, err := r.m.Plan(t.Context(), api.JobSpec{Kind: KindReconcile})
		wantCode(t, err, notify.KindUnavailable, "reconcile")
		b := &broken{n: 3, mended: make([]int, 3)}
		r = newRig(t, func(c *ManagerConfig) { c.Reconcile = b })
		ask := func(digest string, report string) error {
			_, _, err := r.m.Apply(t.Context(), api.JobRequest{Spec: api.JobSpec{Kind: KindReconcile}, Digest: digest, Report: json.RawMessage(report)}, By{Caller: "ann"})
			return err
		}
		wantCode(t, ask("d3", ""), notify.KindInvalid, "no_report")
		wantCode(t, ask("d3", `{"r":2}`), notify.KindInvalid, "bad_report")
		wantCode(t, ask("d4", `{"r":1}`), notify.KindConflict, "stale_plan")
		wantCode(t, ask("", `{"r":1}`), notify.KindInvalid, "no_digest")
		if jobs, err := r.m.List(t.Context(), 10); err != nil || len(jobs) != 0 {
			t.Errorf("%+v, %v", jobs, err)
		}
	})
}
