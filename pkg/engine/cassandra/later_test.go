package cassandra

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// A fan-out of 64 MiB that is scheduled fits into the mutations of one shard.
func TestTimersOfManyBytes(t *testing.T) {
	t.Parallel()
	s, ctx := lone(t), t.Context()
	due := time.Now().Add(time.Hour).UnixMilli()
	var ts []engine.Timer
	for i := range 40 {
		ts = append(ts, engine.Timer{FireAt: due, ID: fmt.Appendf(nil, "timer-%d-%d", time.Now().UnixNano(), i), Payload: bytes.Repeat([]byte{byte(i)}, 600<<10)})
	}
	if err := s.Timers().Put(ctx, notify.SpreadOver(1), ts); err != nil {
		t.Fatal(err)
	}
	rows, err := s.Timers().Scan(ctx, engine.TimerPartition{Bucket: due / engine.MinuteMs}, engine.TimerCursor{}, due, 1000)
	if err != nil || len(rows) < len(ts) {
		t.Errorf("%d of %d timers, %v", len(rows), len(ts), err)
	}
	// A forecast of millions does not read them.
	rows, err = s.Timers().ScanWithoutPayload(ctx, engine.TimerPartition{Bucket: due / engine.MinuteMs}, engine.TimerCursor{}, due, 1000)
	if err != nil || len(rows) < len(ts) || len(rows[0].Payload) > 0 {
		t.Errorf("%d outlines of %d timers, %v", len(rows), len(ts), err)
	}
	if err := s.Timers().Drop(ctx, engine.TimerPartition{Bucket: due / engine.MinuteMs}); err != nil {
		t.Error(err)
	}
}

// Drop must leave no row of a job.
func TestDropOfAJobLeavesNoRow(t *testing.T) {
	t.Parallel()
	s, ctx := lone(t), t.Context()
	j, _, err := s.Jobs().Create(ctx, engine.Job{ID: "job-1", Kind: "replay", Name: "one", Created: 1}, engine.JobEntry{At: 7, Doc: []byte("{}")})
	if err != nil {
		t.Fatal(err)
	}
	rows := func() (n int) {
		for _, part := range []string{"", `"replay"one`} {
			one := 0
			if _, err := s.get(ctx, `SELECT count(*) FROM records WHERE kind = 'j' AND part = ?`, []any{part}, &one); err != nil {
				t.Fatal(err)
			}
			n += one
		}
		return n
	}
	before := rows()
	if err := s.Jobs().Drop(ctx, j.ID, j.Version); err != nil {
		t.Fatal(err)
	}
	if gone := before - rows(); gone != 3 {
		t.Errorf("%d of %d rows are gone, not the job, its entry and its id", gone, before)
	}
}

// A schedule that is moved by months must stay in the lists as long as it exists.
func TestMovedScheduleStaysListed(t *testing.T) {
	t.Parallel()
	s, ctx := lone(t), t.Context()
	now := time.Now()
	x := engine.Schedule{Base: notify.NewBase(now), Caller: "shop", FireAt: now.Add(time.Hour).UnixMilli(), Created: now.UnixMilli()}
	if err := s.Schedules().Put(ctx, []engine.Schedule{x}); err != nil {
		t.Fatal(err)
	}
	due := now.AddDate(0, 11, 0)
	if _, won, err := s.Schedules().Swap(ctx, 0, engine.ScheduleHead{Base: x.Base, FireAt: due.UnixMilli()}); err != nil || !won {
		t.Fatal(won, err)
	}
	for _, e := range scheduleEntries(&x) {
		left := 0
		err := s.rows(ctx, func(scan func(...any) bool) error {
			for keeps := int64(0); scan(&keeps); {
				left = max(left, int(time.UnixMilli(keeps).Sub(due)/(24*time.Hour)))
			}
			return nil
		}, `SELECT keeps FROM buckets WHERE scope = ? AND n = ?`, e.list, e.part())
		if err != nil || left < 30 {
			t.Errorf("%s: its bucket is found for %d days behind its time, %v", e.list, left, err)
		}
	}
}

// Operators list jobs every second, so the listing must use no reads at SERIAL.
func TestJobsAreListedWithoutSerialReads(t *testing.T) {
	t.Parallel()
	s, ctx := lone(t), t.Context()
	for i := range 5 {
		if _, _, err := s.Jobs().Create(ctx, engine.Job{ID: fmt.Sprint("job-", i), Kind: "replay", Name: fmt.Sprint(i), Created: int64(i)}); err != nil {
			t.Fatal(err)
		}
	}
	before := s.Counts()
	if js, err := s.Jobs().List(ctx, 100); err != nil || len(js) != 5 {
		t.Fatal(len(js), err)
	}
	if n := s.Counts().SerialReads - before.SerialReads; n != 0 {
		t.Errorf("%d reads at SERIAL", n)
	}
}

// An owner drops a minute although its clock is behind the writer's clock: no row of the
// minute is left.
func TestDropBehindTheWritersClock(t *testing.T) {
	t.Parallel()
	ahead, ctx := lone(t), t.Context()
	owner, err := Open(ctx, ahead.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	ahead.clock.last.Store(time.Now().Add(time.Minute).UnixMicro())
	defer ahead.clock.last.Store(0)
	due := time.Now().Add(3 * time.Hour).UnixMilli()
	timers := func(from int) (ts []engine.Timer) {
		for i := range 5 {
			ts = append(ts, engine.Timer{FireAt: due, ID: fmt.Appendf(nil, "late-%d-%d", time.Now().UnixNano(), from+i), Head: notify.NewBase(time.Now())})
		}
		return ts
	}
	ts := timers(0)
	if err := ahead.Timers().Put(ctx, notify.SpreadOver(1), ts); err != nil {
		t.Fatal(err)
	}
	scheduled := timers(10)
	x := engine.Schedule{Base: scheduled[0].Head, Caller: "shop", FireAt: due}
	if err := ahead.Schedules().PutScheduled(ctx, []engine.Schedule{x}, notify.SpreadOver(1), scheduled); err != nil {
		t.Fatal(err)
	}
	p := engine.TimerPartition{Bucket: due / engine.MinuteMs}
	if rows, err := owner.Timers().Scan(ctx, p, engine.TimerCursor{}, due, 100); err != nil || len(rows) != 10 {
		t.Fatal(len(rows), err)
	}
	if err := owner.Timers().Drop(ctx, p); err != nil {
		t.Fatal(err)
	}
	if rows, err := owner.Timers().Scan(ctx, p, engine.TimerCursor{}, due, 100); err != nil || len(rows) != 0 {
		t.Errorf("%d rows are left, %v", len(rows), err)
	}
	// So with one that is forgotten.
	ts = timers(20)
	if err := ahead.Timers().Put(ctx, notify.SpreadOver(1), ts); err != nil {
		t.Fatal(err)
	}
	if err := owner.Schedules().ForgetTimers(ctx, notify.SpreadOver(1), ts); err != nil {
		t.Fatal(err)
	}
	if rows, err := owner.Timers().Scan(ctx, p, engine.TimerCursor{}, due, 100); err != nil || len(rows) != 0 {
		t.Errorf("%d rows are left that were forgotten, %v", len(rows), err)
	}
}
