package deadletter

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// rig is a manager over stores in memory, and a log behind which a worker of few
// lines writes outcomes: as the real one it takes a second envelope of one key
// for a copy.
type rig struct {
	t     *testing.T
	store *memory.Store
	cfg   ManagerConfig
	m     *Manager
	stop  context.CancelFunc
	ended chan struct{}

	mu     sync.Mutex
	gone   map[notify.ID]bool
	kept   map[notify.ID]engine.Found
	sent   map[notify.ID]int                     // calls of the provider: once a key
	copies int                                   // envelopes of a key met before
	state  func(e *notify.Envelope) notify.State // of an outcome; default Delivered
	refuse func() error                          // of an append
	recs   []log.Record
	order  []notify.ID
}

func newRig(t *testing.T, change func(*ManagerConfig)) *rig {
	t.Helper()
	r := &rig{t: t, store: memory.New(), gone: map[notify.ID]bool{}, kept: map[notify.ID]engine.Found{}, sent: map[notify.ID]int{}}
	r.cfg = ManagerConfig{
		Jobs: r.store.Jobs(), Letters: r.store.DeadLetters(), Status: r.store.Status(), History: r, Log: r,
		Lease: memory.NewLease(), Owner: "me", Audit: &AuditLog{Store: r.store.Audit()}, Logger: slog.New(slog.DiscardHandler),
		Poll: 50 * time.Millisecond,
	}
	if change != nil {
		change(&r.cfg)
	}
	r.manager()
	return r
}

// manager makes a manager anew, as a start of the process does.
func (r *rig) manager() *Manager {
	m, err := NewManager(r.cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.m = m
	return m
}

// run runs the manager until the test ends or halt is called.
func (r *rig) run() {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	m := r.m
	r.stop, r.ended = stop, ended
	go func() {
		defer close(ended)
		if err := m.Run(ctx); err != nil {
			r.t.Error(err)
		}
	}()
	r.t.Cleanup(func() { stop(); <-ended })
}

func (r *rig) halt() { r.stop(); <-r.ended }

// dies ends the process at a named point: its runner's goroutine does nothing
// more, and its manager ends.
func (r *rig) dies(at string, nth int) (dead chan struct{}) {
	dead = make(chan struct{})
	n := 0
	r.m.cfg.Hit = func(name string) { // of one runner
		if name != at {
			return
		}
		if n++; n == nth {
			r.stop()
			close(dead)
			runtime.Goexit()
		}
	}
	return dead
}

func (r *rig) Find(_ context.Context, id notify.ID) (engine.Found, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, ok := r.kept[id]
	switch {
	case r.gone[id]:
		return f, &notify.Error{Kind: notify.KindGone, Code: "notification_gone"}
	case !ok:
		return f, notify.NotFound("notification")
	}
	return f, nil
}

func (r *rig) Append(ctx context.Context, recs []log.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse != nil {
		if err := r.refuse(); err != nil {
			return err
		}
	}
	var rows []notify.Row
	var failed []engine.DeadLetter
	for _, rec := range recs {
		var e notify.Envelope
		if err := notify.DecodeEnvelope(rec.Value, &e); err != nil {
			r.t.Error(err)
			continue
		}
		r.recs = append(r.recs, rec)
		old, err := r.store.Status().Get(ctx, []notify.RowKey{e.Key()})
		if err != nil {
			return err
		}
		if old[0].Done {
			r.copies++
			continue
		}
		id := e.ID(e.First)
		r.sent[id]++
		r.order = append(r.order, id)
		state := notify.Delivered
		if r.state != nil {
			state = r.state(&e)
		}
		if state == notify.None {
			continue // no outcome yet
		}
		rows = append(rows, row(&e, state))
		if state == notify.Failed {
			d := r.letter(0)
			d.ID, d.Epoch, d.Chunk = id, e.Epoch, e.Chunk
			failed = append(failed, d)
		}
	}
	if err := r.store.Status().Put(ctx, rows); err != nil {
		return err
	}
	return r.store.DeadLetters().Put(ctx, failed)
}

func row(e *notify.Envelope, state notify.State) notify.Row {
	return notify.Row{
		Key: e.Key(), Count: e.Count, Index: []uint32{e.First}, DoneUpTo: e.Count, StartedUpTo: e.Count, Done: true,
		Default: notify.Exception{State: state, Code: "c"}, Updated: time.Now().UnixMilli(),
	}
}

func (r *rig) letter(n int) engine.DeadLetter {
	base := notify.Base{0, 1, 2, 3, 4, 5, byte(n >> 16), byte(n >> 8), byte(n)}
	now := time.Now()
	return engine.DeadLetter{
		ID: notify.ID{Base: base}, Caller: "shop", Channel: "sms", Category: "otp", User: "u" + strconv.Itoa(n), Template: "t1",
		Class: "permanent", Code: "refused", Provider: "twilio", Attempts: 1 + n%4, FirstFailed: now.UnixMilli(), LastFailed: now.UnixMilli(),
		Chunk: notify.Chunk{Base: base, Partition: 1}, Topic: "notifications-sms", Partition: 1, Offset: int64(n), State: engine.LetterDead,
		Until: now.Add(30 * 24 * time.Hour).UnixMilli(),
	}
}

// fail makes n dead letters, and what they are about; change may alter each.
func (r *rig) fail(n int, change func(i int, d *engine.DeadLetter)) []engine.DeadLetter {
	r.t.Helper()
	ds := make([]engine.DeadLetter, n)
	var rows []notify.Row
	for i := range ds {
		ds[i] = r.letter(i)
		if change != nil {
			change(i, &ds[i])
		}
		d := &ds[i]
		ch, _ := notify.ParseChannel(d.Channel)
		cat, _ := notify.ParseCategory(d.Category)
		var w notify.ReceiverWriter
		w.Append(notify.Receiver{Index: d.ID.Index, User: []byte(d.User), Address: []byte("+1555"), Variables: []byte(`{"a":"b"}`)})
		e := notify.Envelope{
			Chunk: d.Chunk, Channel: ch, Category: cat, Caller: d.Caller, Expires: d.Expires, Count: 1, Receivers: w.Bytes(),
			Content: notify.Content{Body: "hello"}, Accepted: 1,
		}
		r.mu.Lock()
		r.kept[d.ID] = engine.Found{ID: d.ID, Envelope: e, User: []byte(d.User), LogPart: 1}
		r.mu.Unlock()
		out := row(&e, notify.Failed)
		out.Index = nil
		rows = append(rows, out)
	}
	if err := r.store.Status().Put(r.t.Context(), rows); err != nil {
		r.t.Fatal(err)
	}
	if err := r.store.DeadLetters().Put(r.t.Context(), ds); err != nil {
		r.t.Fatal(err)
	}
	return ds
}

func (r *rig) plan(s api.JobSpec) api.Plan {
	r.t.Helper()
	p, err := r.m.Plan(r.t.Context(), s)
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

func (r *rig) apply(p api.Plan, name string) api.Job {
	r.t.Helper()
	j, _, err := r.m.Apply(r.t.Context(), api.JobRequest{Spec: p.Spec, Digest: p.Digest, Entries: p.Entries, Name: name}, By{Caller: "ann"})
	if err != nil {
		r.t.Fatal(err)
	}
	return j
}

// until waits, in the bubble's time, for a job to be in one of the states.
func (r *rig) until(id string, states ...string) api.Job {
	r.t.Helper()
	for range 1_000_000 {
		j, err := r.m.Get(context.Background(), id)
		if err != nil {
			r.t.Fatal(err)
		}
		if slices.Contains(states, j.State) {
			return j
		}
		time.Sleep(10 * time.Millisecond)
	}
	r.t.Fatalf("the job is never %v", states)
	return api.Job{}
}

// sums checks that a job accounts for each entry of its plan, once.
func (r *rig) sums(j api.Job) {
	r.t.Helper()
	n := j.Done + j.Exhausted + j.Failed
	for _, k := range j.Skipped {
		n += k
	}
	if n != j.Planned || j.Position != j.Planned {
		r.t.Errorf("%d of %d planned are accounted for: %+v", n, j.Planned, j)
	}
	lines, _, err := r.m.Report(context.Background(), j.ID, 0, math.MaxInt)
	if err != nil || len(lines) != j.Planned-j.Done && j.Kind != KindExport {
		r.t.Errorf("%d lines for %d that were not replayed: %v", len(lines), j.Planned-j.Done, err)
	}
}

func (r *rig) states() map[string]int {
	r.t.Helper()
	out := map[string]int{}
	if err := r.store.DeadLetters().Walk(context.Background(), 0, math.MaxUint64, func(d *engine.DeadLetter) error {
		out[fmt.Sprintf("%s/%d", d.State, d.Epoch)]++
		return nil
	}); err != nil {
		r.t.Fatal(err)
	}
	return out
}

func (r *rig) once(n int) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, k := range r.sent {
		if k != 1 {
			r.t.Errorf("%s was sent %d times", id, k)
		}
	}
	if len(r.sent) != n {
		r.t.Errorf("%d were sent, want %d", len(r.sent), n)
	}
}

func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, f)
}

var all = api.LetterFilter{All: true}

// calls is how many letters the provider was called for, copied how many envelopes
// came a second time.
func (r *rig) calls() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.sent)
}

func (r *rig) copied() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.copies
}
