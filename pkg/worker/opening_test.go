package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// fakeOffsets is a topic of which one partition matters.
type fakeOffsets struct {
	mu        sync.Mutex
	start     int64
	cut       map[int64]int64 // offset by the time that is asked for, in ms
	committed int64           // -1: nothing
	away      bool
	asked     int
}

func (f *fakeOffsets) set(fn func(f *fakeOffsets)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn(f)
}

func (f *fakeOffsets) answer(topic string, at int64) (map[log.TopicPartition]int64, error) {
	f.asked++
	if f.away {
		return nil, errors.New("away")
	}
	return map[log.TopicPartition]int64{{Topic: topic, Partition: 1}: at}, nil
}

func (f *fakeOffsets) StartOffsets(_ context.Context, topics ...string) (map[log.TopicPartition]int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.answer(topics[0], f.start)
}

func (f *fakeOffsets) OffsetsSince(_ context.Context, at time.Time, topics ...string) (map[log.TopicPartition]int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.answer(topics[0], f.cut[at.UnixMilli()])
}

func (f *fakeOffsets) Committed(context.Context, string) (map[log.TopicPartition]int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.committed < 0 {
		return map[log.TopicPartition]int64{}, nil
	}
	return f.answer(pushLane.Topic(), f.committed)
}

// TestOpening checks that a new partition is begun once the old one is finished up to its offset
// at the end of Settle. It is not begun before the change is announced, nor while the progress
// cannot be read.
func TestOpening(t *testing.T) {
	t.Parallel()
	const settle = 1500 * time.Millisecond
	at := func(t *testing.T, offsets *fakeOffsets, n int32, raise bool) (opened func() bool, stop func(), raised time.Time) {
		spread := notify.SpreadOver(2)
		raised = time.Now().Add(time.Minute)
		var mu sync.Mutex
		if raise {
			time.AfterFunc(10*time.Second, func() {
				mu.Lock()
				defer mu.Unlock()
				spread, _ = spread.Raised(4, raised)
			})
		}
		offsets.cut = map[int64]int64{raised.Add(settle).UnixMilli(): 30}
		o := &Opening{Offsets: offsets, Group: "g", Settle: settle, Logger: slog.New(slog.DiscardHandler), Spread: func() notify.Spread {
			mu.Lock()
			defer mu.Unlock()
			return spread
		}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan bool, 1)
		go func() { done <- o.waitToBegin(ctx, log.TopicPartition{Topic: pushLane.Topic(), Partition: n}) }()
		return func() bool {
			synctest.Wait()
			select {
			case ok := <-done:
				return ok
			default:
				return false
			}
		}, cancel, raised
	}
	for name, fn := range map[string]func(t *testing.T){
		"a partition from the start": func(t *testing.T) {
			f := &fakeOffsets{}
			if opened, _, _ := at(t, f, 1, true); !opened() || f.asked > 0 {
				t.Errorf("waits, asked %d times", f.asked)
			}
		},
		"never announced": func(t *testing.T) {
			opened, stop, _ := at(t, &fakeOffsets{committed: 100}, 3, false)
			time.Sleep(time.Hour)
			if opened() {
				t.Error("opened")
			}
			stop()
			synctest.Wait()
		},
		"the old one is behind": func(t *testing.T) {
			f := &fakeOffsets{committed: -1, start: 5}
			opened, _, raised := at(t, f, 3, true)
			time.Sleep(time.Until(raised.Add(settle)) - time.Millisecond)
			if opened() || f.asked > 0 {
				t.Error("opened, or asked, before every append had settled")
			}
			f.set(func(f *fakeOffsets) { f.committed = 29 })
			time.Sleep(time.Minute)
			if opened() {
				t.Error("opened one record too early")
			}
			f.set(func(f *fakeOffsets) { f.away = true })
			time.Sleep(time.Minute)
			f.set(func(f *fakeOffsets) { f.committed = 30 })
			time.Sleep(time.Minute)
			if opened() {
				t.Error("opened without an answer")
			}
			f.set(func(f *fakeOffsets) { f.away = false })
			time.Sleep(2 * openEvery)
			if !opened() {
				t.Error("waits on")
			}
		},
		"the old one is empty": func(t *testing.T) {
			f := &fakeOffsets{committed: -1, start: 30}
			opened, _, raised := at(t, f, 3, true)
			time.Sleep(time.Until(raised.Add(settle + 2*openEvery)))
			if !opened() {
				t.Error("waits for records that are gone")
			}
		},
		"it goes while it waits": func(t *testing.T) {
			opened, stop, raised := at(t, &fakeOffsets{}, 3, true)
			time.Sleep(time.Until(raised.Add(time.Hour)))
			stop()
			if opened() {
				t.Error("opened")
			}
		},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, fn) })
	}
}

// TestHastyCommits: the group commits the old partitions sooner while new partitions wait for them.
func TestHastyCommits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		raised := time.Now().Add(time.Hour)
		s, err := notify.SpreadOver(2).Raised(4, raised)
		if err != nil {
			t.Fatal(err)
		}
		o := &Opening{Spread: func() notify.Spread { return s }}
		for _, c := range []struct {
			at    time.Duration
			hasty bool
		}{{-time.Minute, false}, {-time.Second, true}, {time.Second, true}, {30 * time.Second, true}, {time.Hour, false}} {
			time.Sleep(time.Until(raised.Add(c.at)))
			if o.NeedsCommit() != c.hasty {
				t.Errorf("%s after the raise: hasty %v", c.at, o.NeedsCommit())
			}
		}
		if never := (&Opening{Spread: func() notify.Spread { return notify.SpreadOver(2) }}); never.NeedsCommit() {
			t.Error("hasty without a raise")
		}
	})
}

// TestNewPartition: a worker handles no record of a new partition before the partition is opened.
// It requests the profiles of the partition's users when the partition is announced. It can give
// the partition back while the partition waits.
func TestNewPartition(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		spread, raised := notify.SpreadOver(2), time.Now().Add(time.Minute)
		now := func() notify.Spread {
			mu.Lock()
			defer mu.Unlock()
			return spread
		}
		f := &fakeOffsets{committed: 29, cut: map[int64]int64{raised.Add(time.Second).UnixMilli(): 30}}
		r := newRig(t, pushLane, func(c *Config) {
			c.Spread, c.Opening = now, &Opening{Spread: now, Offsets: f, Group: "g", Settle: time.Second, Logger: slog.New(slog.DiscardHandler)}
		})
		r.part = r.w.Assigned(r.ctx, log.TopicPartition{Topic: pushLane.Topic(), Partition: 3})
		time.Sleep(5 * time.Second)
		if len(r.prefs.holds()) != 1 { // of the rig's own partition 0
			t.Errorf("holds %v", r.prefs.holds())
		}
		mu.Lock()
		spread, _ = spread.Raised(4, raised)
		mu.Unlock()
		time.Sleep(5 * time.Second)
		if h := r.prefs.holds(); len(h) != 2 || h[1] != [2]int{4, 3} {
			t.Errorf("holds %v, want partition 3 of 4", h)
		}
		fed := make(chan struct{})
		go func() {
			r.feed(r.envelope(notify.Alert, "u"))
			close(fed)
		}()
		time.Sleep(time.Until(raised.Add(time.Minute)))
		synctest.Wait()
		if n := r.prov.count(); len(n) != 0 {
			t.Errorf("%v calls before the old partition is finished", n)
		}
		f.set(func(f *fakeOffsets) { f.committed = 30 })
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := r.prov.count(); n["u"] != 1 {
			t.Errorf("calls %v, want one", n)
		}
		<-fed
		again := r.w.Assigned(r.ctx, log.TopicPartition{Topic: pushLane.Topic(), Partition: 3})
		if h := r.prefs.holds(); h[len(h)-1] != [2]int{4, 3} {
			t.Errorf("holds %v after the raise", h)
		}
		again.(*partition).Drain(t.Context())
	})
}
