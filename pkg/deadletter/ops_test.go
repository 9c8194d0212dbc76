package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/faulty"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var failedAt = time.Date(2026, 5, 1, 10, 0, 0, 0, time.UTC)

func failure(n int) notify.Failure {
	base := notify.NewBase(failedAt.Add(-time.Minute))
	return notify.Failure{
		Version: 1, ID: notify.ID{Base: base, Index: uint32(n)}.String(), Epoch: 2, Caller: "shop", Campaign: "cmp_1", Channel: "sms",
		Category: "otp", User: "ann", Template: "t1", Class: "permanent", Code: "21211", Provider: "twilio", Attempts: 3,
		Accepted: failedAt.Add(-time.Minute).UnixMilli(), Failed: failedAt.UnixMilli(), Expires: failedAt.Add(time.Hour).UnixMilli(),
		Chunk: fmt.Sprintf("3.%d", n), Topic: "notifications-sms", Partition: 3, Offset: 40 + int64(n),
	}
}

// message is a record of notifications-failed; done counts marks.
func message(t *testing.T, value any, done *atomic.Int64) *log.Msg {
	t.Helper()
	b, ok := value.([]byte)
	if !ok {
		var err error
		if b, err = json.Marshal(value); err != nil {
			t.Fatal(err)
		}
	}
	return log.NewMsg(log.Record{Topic: notify.TopicFailed, Value: b}, func() { done.Add(1) })
}

func indexer(d engine.DeadLetters) *Indexer {
	return &Indexer{Store: d, Logger: slog.New(slog.DiscardHandler)}
}

func handle(t *testing.T, x *Indexer, msgs ...*log.Msg) error {
	t.Helper()
	return x.Assigned(t.Context(), log.TopicPartition{Topic: notify.TopicFailed}).Handle(t.Context(), msgs)
}

func feed(t *testing.T, d engine.DeadLetters) []engine.DeadLetter {
	t.Helper()
	ds, err := d.Feed(t.Context(), "shop", 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	return ds
}

func TestIndexerTakesEveryField(t *testing.T) {
	t.Parallel()
	d := memory.New().DeadLetters()
	x := indexer(d)
	x.Retention = 48 * time.Hour
	var done atomic.Int64
	f := failure(7)
	if err := handle(t, x, message(t, f, &done)); err != nil {
		t.Fatal(err)
	}
	id, err := notify.ParseID(f.ID)
	if err != nil {
		t.Fatal(err)
	}
	got, err := d.Get(t.Context(), id, 2)
	if err != nil {
		t.Fatal(err)
	}
	want := engine.DeadLetter{
		ID: id, Epoch: 2, Seq: 1, Ord: 1, Caller: "shop", Campaign: "cmp_1", Channel: "sms", Category: "otp", User: "ann", Template: "t1",
		Class: "permanent", Code: "21211", Provider: "twilio", Attempts: 3, FirstFailed: failedAt.UnixMilli(), LastFailed: failedAt.UnixMilli(),
		Expires: failedAt.Add(time.Hour).UnixMilli(), Chunk: notify.Chunk{Base: id.Base, Partition: 3, Block: 7},
		Topic: "notifications-sms", Partition: 3, Offset: 47, State: "dead", Until: failedAt.Add(48 * time.Hour).UnixMilli(),
	}
	if a, b := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); a != b {
		t.Errorf("got  %s\nwant %s", a, b)
	}
	if done.Load() != 1 {
		t.Error("it was not marked")
	}
}

// TestFirstFailure is that of the first epoch, over replays.
func TestFirstFailure(t *testing.T) {
	t.Parallel()
	d := memory.New().DeadLetters()
	x := indexer(d)
	var done atomic.Int64
	f := failure(1)
	for epoch := range 3 {
		f.Epoch = epoch
		f.Failed = failedAt.Add(time.Duration(epoch) * time.Hour).UnixMilli()
		if err := handle(t, x, message(t, f, &done)); err != nil {
			t.Fatal(err)
		}
	}
	last := feed(t, d)[2]
	if last.FirstFailed != failedAt.UnixMilli() || last.LastFailed != f.Failed {
		t.Errorf("%+v", last)
	}
}

// TestIndexerReadsOtherTopics: each with its own schema.
func TestIndexerReadsOtherTopics(t *testing.T) {
	t.Parallel()
	d := memory.New().DeadLetters()
	x := indexer(d)
	x.Decode = map[string]func([]byte) (engine.DeadLetter, error){"triggers-dlq": func(b []byte) (engine.DeadLetter, error) {
		return engine.DeadLetter{ID: notify.ID{Base: notify.Base{1}}, Epoch: 7, Channel: ChannelTrigger, Caller: string(b), LastFailed: 5}, nil
	}}
	m := log.NewMsg(log.Record{Topic: "triggers-dlq", Value: []byte("shop")}, func() {})
	if err := x.Assigned(t.Context(), log.TopicPartition{}).Handle(t.Context(), []*log.Msg{m}); err != nil {
		t.Fatal(err)
	}
	got := feed(t, d)
	if len(got) != 1 || LetterID(&got[0]) != "trg_"+(notify.Base{1}).String() || got[0].State != engine.LetterDead || got[0].Until == 0 {
		t.Errorf("%+v", got)
	}
}

// TestIndexerIsIdempotent: the log is read again after a crash.
func TestIndexerIsIdempotent(t *testing.T) {
	t.Parallel()
	d := memory.New().DeadLetters()
	x := indexer(d)
	one, two := failure(1), failure(2)
	var done atomic.Int64
	for range 3 {
		if err := handle(t, x, message(t, one, &done), message(t, two, &done)); err != nil {
			t.Fatal(err)
		}
	}
	ds := feed(t, d)
	if len(ds) != 2 || ds[0].Seq != 1 || ds[1].Seq != 2 || done.Load() != 6 {
		t.Errorf("%d marks, %+v", done.Load(), ds)
	}
	if ds[0].Until != failedAt.Add(30*24*time.Hour).UnixMilli() {
		t.Errorf("kept until %v by default", time.UnixMilli(ds[0].Until))
	}
}

// TestIndexerPassesOverWhatItCannotRead: it is counted and marked, and holds up
// nothing beside it.
func TestIndexerPassesOverWhatItCannotRead(t *testing.T) {
	t.Parallel()
	change := func(f func(*notify.Failure)) notify.Failure {
		x := failure(9)
		f(&x)
		return x
	}
	bad := []any{
		[]byte(""), []byte("{"), []byte(`{"version":"one"}`), []byte("\x00\x01protobuf"),
		change(func(f *notify.Failure) { f.Version = 0 }),
		change(func(f *notify.Failure) { f.ID = "x" }),
		change(func(f *notify.Failure) { f.Chunk = "1" }),
		change(func(f *notify.Failure) { f.Chunk = "65536.1" }),
		change(func(f *notify.Failure) { f.Chunk = "1.4294967296" }),
	}
	d := memory.New().DeadLetters()
	x := indexer(d)
	counted := 0
	x.Undecodable = func(topic string) {
		if topic != notify.TopicFailed {
			t.Errorf("counted for %s", topic)
		}
		counted++
	}
	var done atomic.Int64
	msgs := []*log.Msg{message(t, failure(1), &done)}
	for _, v := range bad {
		msgs = append(msgs, message(t, v, &done))
	}
	msgs = append(msgs, message(t, failure(2), &done))
	if err := handle(t, x, msgs...); err != nil {
		t.Fatal(err)
	}
	if counted != len(bad) || int(done.Load()) != len(msgs) {
		t.Errorf("%d counted, %d marked, want %d and %d", counted, done.Load(), len(bad), len(msgs))
	}
	if ds := feed(t, d); len(ds) != 2 {
		t.Errorf("%d dead letters beside, want 2", len(ds))
	}
	// Nothing but such records: nothing to store, all marked.
	x.Undecodable = nil
	x.Store = nil
	if err := handle(t, x, message(t, []byte("{"), &done)); err != nil {
		t.Error(err)
	}
}

// TestIndexerWaitsForTheStore: nothing is marked before it is stored; handed
// over again, it is stored once.
func TestIndexerWaitsForTheStore(t *testing.T) {
	t.Parallel()
	for _, rule := range []faulty.Rule{{}, {Lost: faulty.Applied}} { // before it was stored, and after
		rule.Method, rule.Times, rule.Err = "DeadLetters.Put", 1, faulty.ErrDown
		plan := faulty.NewPlan(1)
		plan.Add(rule)
		d := memory.New().DeadLetters()
		x := indexer(faulty.NewDeadLetters(d, plan))
		var done atomic.Int64
		one, two := message(t, failure(1), &done), message(t, failure(2), &done)
		if err := handle(t, x, one, two); !errors.Is(err, faulty.ErrDown) || done.Load() != 0 {
			t.Errorf("%v with %d marks, want the store's error and none", err, done.Load())
		}
		if err := handle(t, x, one, two); err != nil || done.Load() != 2 {
			t.Errorf("then %v with %d marks", err, done.Load())
		}
		if ds := feed(t, d); len(ds) != 2 {
			t.Errorf("%d dead letters, want 2", len(ds))
		}
	}
}

// outcome is an event of a caller; n tells it from others.
func outcome(caller string, n int) *api.Event {
	return &api.Event{Type: api.EventOutcome, Caller: caller, Channel: "push", Status: "SENT", Attempt: n}
}

func TestTail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var tail Tail
		tail.Publish(outcome("shop", 0)) // there is no watcher
		if tail.Watching() {
			t.Error("nobody watches yet")
		}
		ctx, stop := context.WithCancel(t.Context())
		shop, _ := tail.Subscribe(ctx, api.TailFilter{Caller: "shop"})
		all, missed := tail.Subscribe(t.Context(), api.TailFilter{})
		mails, _ := tail.Subscribe(t.Context(), api.TailFilter{Channel: "email"})
		failures, _ := tail.Subscribe(t.Context(), api.TailFilter{Status: "FAILED"})
		codes, _ := tail.Subscribe(t.Context(), api.TailFilter{Category: "otp"})
		if !tail.Watching() {
			t.Error("somebody watches")
		}
		tail.Publish(outcome("shop", 1))
		tail.Publish(outcome("bank", 2))
		if got := <-shop; got.Attempt != 1 || len(shop) != 0 {
			t.Errorf("shop saw %d, %d more", got.Attempt, len(shop))
		}
		if a, b := <-all, <-all; a.Attempt != 1 || b.Attempt != 2 || missed() != 0 {
			t.Errorf("all saw %d, %d, missed %d", a.Attempt, b.Attempt, missed())
		}
		if n := len(mails) + len(failures) + len(codes); n != 0 {
			t.Errorf("%d events that the filters do not take", n)
		}
		stop()
		synctest.Wait()
		if _, open := <-shop; open {
			t.Error("the end of ctx does not close the channel")
		}
		tail.Publish(outcome("shop", 3))
		if got := <-all; got.Attempt != 3 || !tail.Watching() {
			t.Errorf("the other watcher saw %d", got.Attempt)
		}
		// One whose time is over before it begins.
		gone, _ := tail.Subscribe(ctx, api.TailFilter{Caller: "shop"})
		if _, open := <-gone; open {
			t.Error("it is open")
		}
	})
}

// TestTailDoesNotWait: a watcher that does not read misses events and knows how
// many; who publishes never waits.
func TestTailDoesNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var tail Tail
		ctx, stop := context.WithCancel(t.Context())
		slow, missed := tail.Subscribe(ctx, api.TailFilter{})
		const n = 5000
		for i := range n {
			tail.Publish(outcome("shop", i)) // of a bubble: it would hang for ever if it waited
		}
		kept := len(slow)
		if kept == 0 || missed() != int64(n-kept) {
			t.Errorf("%d kept, %d missed, of %d", kept, missed(), n)
		}
		for i := range kept {
			if got := <-slow; got.Attempt != i {
				t.Fatalf("event %d is %d: what is kept are the first ones, in order", i, got.Attempt)
			}
		}
		tail.Publish(outcome("shop", n))
		if got := <-slow; got.Attempt != n {
			t.Errorf("after it caught up it saw %d", got.Attempt)
		}
		stop()
		synctest.Wait()
		if tail.Watching() {
			t.Error("it still counts as a watcher")
		}
	})
}

// TestTailUnderTraffic subscribes and leaves while events are published: no
// send on a closed channel, nothing delivered twice or to the wrong caller.
func TestTailUnderTraffic(t *testing.T) {
	t.Parallel()
	var tail Tail
	ctx, stop := context.WithCancel(t.Context())
	var publishers, watchers sync.WaitGroup
	for caller := range 2 {
		publishers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				tail.Publish(outcome(fmt.Sprint(caller), i))
				runtime.Gosched()
			}
		})
	}
	for w := range 8 {
		watchers.Go(func() {
			for range 200 {
				ctx, leave := context.WithCancel(t.Context())
				events, _ := tail.Subscribe(ctx, api.TailFilter{Caller: fmt.Sprint(w % 2)})
				last := -1
				for range 3 {
					e := <-events
					if e.Caller != fmt.Sprint(w%2) || e.Attempt <= last {
						t.Errorf("watcher of %d saw %+v after %d", w%2, e, last)
					}
					last = e.Attempt
				}
				leave()
				for range events { // until it is closed
				}
			}
		})
	}
	watchers.Wait()
	stop()
	publishers.Wait()
	if tail.Watching() {
		t.Error("somebody is still counted")
	}
}

// A failure of a newer release is not passed over: the index stands there until a
// process of that release reads it.
func TestIndexerLeavesWhatANewerReleaseWrote(t *testing.T) {
	t.Parallel()
	var done atomic.Int64
	x := indexer(memory.New().DeadLetters())
	x.Undecodable = func(string) { t.Error("counted as undecodable") }
	err := handle(t, x, message(t, notify.Failure{Version: 2}, &done))
	if !errors.Is(err, notify.ErrNewer) || done.Load() != 0 {
		t.Errorf("%v, %d done", err, done.Load())
	}
}
