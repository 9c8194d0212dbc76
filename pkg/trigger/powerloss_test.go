package trigger

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/pebble"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
)

// disk has a store on a disk that forgets what was not synced. It also has a record of what
// happened to the triggers in the outside world; nothing of this record is forgotten.
type disk struct {
	t   *testing.T
	rng *rand.Rand
	fs  *vfs.MemFS

	mu        sync.Mutex
	down      bool // between a loss of power and the next life
	due       map[string]int64
	calls     map[string][]time.Time
	cancelled map[string]time.Time
	refused   map[string]bool // a cancel was answered: too late
	led       map[string]bool // index rows whose message is durable: the timer engine may forget them
	open      map[openClaim]struct{}
	most      int // claims that one loss of power found open
}

// life is a process on the disk.
type life struct {
	d     *disk
	store *pebble.Store
	svc   *Service
	stop  func()
	calls sync.WaitGroup
}

// Put stores index rows, and puts each row into the queue at its time if this life still runs then.
func (l *life) Put(ctx context.Context, ts []engine.Timer) error {
	if err := l.store.Timers().Put(ctx, notify.SpreadOver(testShards), ts); err != nil {
		return err
	}
	l.lead(ts)
	return nil
}

func (l *life) lead(ts []engine.Timer) {
	publish := ToQueue(l.store.Queue("triggers", 1000))
	for _, x := range ts {
		id := string(x.ID)
		time.AfterFunc(time.Until(time.UnixMilli(x.FireAt)), func() {
			l.d.mu.Lock()
			skip := l.d.down || l.d.led[id]
			l.d.mu.Unlock()
			if skip || publish(context.Background(), []engine.Timer{x}) != nil {
				return
			}
			l.d.mu.Lock()
			defer l.d.mu.Unlock()
			if !l.d.down { // otherwise the power went during publish, and the message may be lost
				l.d.led[id] = true
			}
		})
	}
}

// post is the receiver. It accepts every call, unless the power is gone.
func (l *life) post(_ context.Context, _ *url.URL, h http.Header, _ []byte) result {
	l.d.mu.Lock()
	if l.d.down {
		l.d.mu.Unlock()
		return result{class: ClassConnect}
	}
	id := h.Get("X-Trigger-Id")
	l.d.calls[id] = append(l.d.calls[id], time.Now())
	took := time.Duration(1+l.d.rng.IntN(20)) * time.Millisecond
	l.d.mu.Unlock()
	time.Sleep(took)
	return ok
}

func (d *disk) pause() { time.Sleep(time.Duration(d.draw(5000)) * time.Microsecond) }

// draw returns a number below n.
func (d *disk) draw(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rng.IntN(n)
}

const onDisk = 24 // calls at a time

func (d *disk) live() *life {
	d.t.Helper()
	l := &life{d: d}
	var err error
	if l.store, err = pebble.Open(pebble.Config{Dir: "data", FS: d.fs, CacheBytes: 1 << 20, MemTableBytes: 1 << 20}); err != nil {
		d.t.Fatal(err)
	}
	c, _, err := l.store.Callers().Get(d.t.Context(), "shop")
	if err == nil && c.ID == "" {
		err = l.store.Callers().Put(d.t.Context(), engine.Caller{ID: "shop", CallbackURLs: []string{base("shop")}, Secrets: []engine.CallerSecret{{Secret: testSecret}}})
	}
	if err != nil {
		d.t.Fatal(err)
	}
	census := NewCensus(l.store.Triggers(), false)
	if l.svc, err = New(Config{Triggers: l.store.Triggers(), Callers: l.store.Callers(), Idem: l.store.Idem(), Later: l, Egress: testEgress(d.t), Census: census}); err != nil {
		d.t.Fatal(err)
	}
	// Swaps take some time before and after they become durable. So when the power goes, claims and
	// outcomes are under way, or done and not answered.
	slow := &shaky{Triggers: l.store.Triggers(), on: func(method string, _ []string) slip {
		if method != "Swap" {
			return slip{}
		}
		d.pause()
		return slip{after: d.pause}
	}}
	run, err := NewDispatcher(DispatcherConfig{
		Triggers: slow, Callers: l.store.Callers(), Queue: l.store.Queue("triggers", 1000), Later: l, Dead: &graveyard{},
		Egress: testEgress(d.t), Census: census, CallerInFlight: onDisk, post: l.post,
	})
	if err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = run.Run(ctx)
	}()
	l.stop = func() {
		cancel()
		<-done
		l.calls.Wait()
		if err := l.store.Close(); err != nil {
			d.t.Error(err)
		}
	}
	d.mu.Lock()
	d.down = false
	d.mu.Unlock()
	// The timer engine of the next life reads the rows of open minutes again.
	for shard := range uint16(testShards) {
		minutes, err := l.store.Timers().Buckets(d.t.Context(), shard, 0, 1<<40)
		if err != nil {
			d.t.Fatal(err)
		}
		for _, m := range minutes {
			ts, err := l.store.Timers().Scan(d.t.Context(), engine.TimerPartition{Bucket: m, Shard: shard}, engine.TimerCursor{}, 1<<50, 10_000)
			if err != nil {
				d.t.Fatal(err)
			}
			l.lead(ts)
		}
	}
	return l
}

// cut takes the power away: what the process does from here on has no effect.
func (l *life) cut() {
	d := l.d
	d.mu.Lock()
	d.down = true
	d.fs = d.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: d.rng.IntN(101), RNG: rand.New(rand.NewPCG(d.rng.Uint64(), 1))})
	d.mu.Unlock()
	l.stop()
}

// count records the claims that the last life left.
func (l *life) count() {
	rows, err := l.svc.ListAll(l.d.t.Context(), engine.TriggerInFlight, "", MaxPage)
	if err != nil {
		l.d.t.Fatal(err)
	}
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	l.d.most = max(l.d.most, len(rows))
	for i := range rows {
		l.d.open[openClaim{rows[i].ID, rows[i].Epoch}] = struct{}{}
	}
}

func (l *life) register(n int) {
	body := []byte("[")
	for i := range n {
		if i > 0 {
			body = append(body, ',')
		}
		body = fmt.Appendf(body, `{"callback_url":"%sx","delay_seconds":%.3f,"payload":"%0*d"}`, base("shop"), 1+float64(l.d.draw(500))/1000, 1+l.d.draw(1000), 1)
	}
	a, err := l.svc.RegisterBatch(context.Background(), request.Meta{Caller: "shop", Route: "batch"}, append(body, ']'))
	if err != nil {
		l.d.t.Fatal(err)
	}
	ids := idsIn(l.d.t, a.Body)
	rows, err := l.store.Triggers().Get(context.Background(), ids)
	if err != nil || len(rows) != n {
		l.d.t.Fatal(len(rows), err)
	}
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	for i := range rows {
		l.d.due[rows[i].ID] = rows[i].FireAt
	}
}

// cancelSome cancels triggers one after the other, until the power goes.
func (l *life) cancelSome(ids []string) {
	for _, id := range ids {
		time.Sleep(10 * time.Millisecond)
		_, err := l.svc.Cancel(context.Background(), "shop", id)
		l.d.mu.Lock()
		down := l.d.down
		e, _ := err.(*notify.Error)
		switch {
		case down: // no caller was answered
		case err == nil:
			l.d.cancelled[id] = time.Now()
		case e != nil && e.Code == "too_late":
			l.d.refused[id] = true
		}
		l.d.mu.Unlock()
		if down {
			return
		}
	}
}

// TestPowerLossWithBatchesOpen cuts the power while triggers are claimed ahead and called, and
// their outcomes are written in batches. No trigger is lost or early. None is called more often
// than it was claimed, and no more triggers are called again than had open claims. A trigger whose
// cancel was answered is not called, and every other trigger is called.
func TestPowerLossWithBatchesOpen(t *testing.T) {
	most, repeated, cancels, late := 0, 0, 0, 0
	for seed := range uint64(6) {
		synctest.Test(t, func(t *testing.T) {
			d := &disk{
				t: t, rng: rand.New(rand.NewPCG(seed, 8)), fs: vfs.NewCrashableMem(), due: map[string]int64{}, calls: map[string][]time.Time{},
				cancelled: map[string]time.Time{}, refused: map[string]bool{}, led: map[string]bool{}, open: map[openClaim]struct{}{},
			}
			for range 3 {
				l := d.live()
				l.count()
				l.register(900)
				var ids []string
				d.mu.Lock()
				for id := range d.due {
					if len(d.calls[id]) == 0 && len(ids) < 100 {
						ids = append(ids, id)
					}
				}
				d.mu.Unlock()
				l.calls.Go(func() { l.cancelSome(ids) })
				time.Sleep(time.Duration(1100+d.draw(900)) * time.Millisecond)
				l.cut()
			}
			l := d.live()
			l.count()
			time.Sleep(10 * time.Minute)
			d.check(l)
			most, cancels, late = max(most, d.most), cancels+len(d.cancelled), late+len(d.refused)
			for _, calls := range d.calls {
				repeated += len(calls) - 1
			}
			d.mu.Lock()
			d.down = true
			d.mu.Unlock()
			l.stop()
		})
	}
	t.Logf("at most %d claims open, %d calls again, %d cancelled, %d too late", most, repeated, cancels, late)
	if most <= onDisk || repeated == 0 || cancels == 0 || late == 0 {
		t.Error("this test shows nothing")
	}
}

func (d *disk) check(l *life) {
	d.mu.Lock()
	defer d.mu.Unlock()
	open := map[string]int{}
	for c := range d.open {
		open[c.id]++
	}
	for id, due := range d.due {
		row, err := l.svc.Find(context.Background(), id)
		if err != nil {
			d.t.Fatal(id, err)
		}
		calls := d.calls[id]
		switch at, cancelled := d.cancelled[id]; {
		case cancelled && row.State != engine.TriggerCancelled:
			d.t.Errorf("%s was cancelled and is %s", id, StateName(row.State))
		case cancelled && len(calls) > 0 && calls[len(calls)-1].After(at):
			d.t.Errorf("%s was called after it was cancelled", id)
		case row.State == engine.TriggerCancelled && d.refused[id]:
			d.t.Errorf("%s is cancelled, and that was refused", id)
		case row.State == engine.TriggerCancelled: // the answer was lost with the power
		case row.State != engine.TriggerFired || len(calls) == 0:
			d.t.Errorf("%s is %s (%s) after %d calls", id, StateName(row.State), row.Reason, len(calls))
		}
		if len(calls) > int(row.Epoch) || len(calls) > 1+open[id] {
			d.t.Errorf("%s was called %d times with %d claims, %d of them open at a loss of power", id, len(calls), row.Epoch, open[id])
		}
		if len(calls) > 0 && calls[0].UnixMilli() < due {
			d.t.Errorf("%s was called early", id)
		}
	}
}
