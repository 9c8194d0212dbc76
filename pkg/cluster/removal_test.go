package cluster

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
)

// removalPlant is a removal in simulated time: right is a clock that never jumps.
type removalPlant struct {
	t     *testing.T
	meta  engine.Meta
	right time.Time
	off   time.Duration // of this machine's clock
	up    time.Duration
	r     *Removal
	at    time.Time // the latest that things were removed by
}

func newRemovalPlant(t *testing.T) *removalPlant {
	p := &removalPlant{t: t, meta: memory.New().Meta(), right: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	p.start()
	return p
}

// start is a start of the process: the monotonic clock begins anew.
func (p *removalPlant) start() {
	p.up = 0
	p.r = &Removal{part: "test", meta: p.meta, log: slog.New(slog.DiscardHandler), clock: func() (time.Time, time.Duration) {
		return p.right.Add(p.off), p.up
	}}
}

// run lets time pass, tick by tick, and calls each after every one with how far
// removal went.
func (p *removalPlant) run(d time.Duration, each func(went time.Duration)) {
	p.t.Helper()
	for end := p.right.Add(d); p.right.Before(end); {
		p.right, p.up = p.right.Add(RemovalEvery), p.up+RemovalEvery
		at, err := p.r.Advance(p.t.Context())
		if err != nil {
			p.t.Fatal(err)
		}
		if at.After(p.right.Add(p.off)) {
			p.t.Fatalf("removal is at %v, ahead of the clock, which is off by %v", at, p.off)
		}
		went := at.Sub(p.at)
		if p.at = at; each != nil {
			each(went)
		}
	}
}

func (p *removalPlant) follows() {
	p.t.Helper()
	if !p.at.Equal(p.right.Add(p.off)) || p.r.ahead != 0 {
		p.t.Fatalf("removal is at %v, %v behind; the clock is at %v", p.at, p.r.ahead, p.right.Add(p.off))
	}
}

const days = 24 * time.Hour

// TestRemovalOfAnHonestYear: removal follows a clock that is right, through restarts
// and short stops.
func TestRemovalOfAnHonestYear(t *testing.T) {
	t.Parallel()
	p := newRemovalPlant(t)
	for range 365 {
		p.run(days, func(time.Duration) { p.follows() })
		p.right = p.right.Add(30 * time.Minute) // it is down
		p.start()
	}
}

// TestClockThatJumps: what a right clock would keep is there when a clock that jumped
// is corrected within a day, and a clock that stays ahead removes a small share at a
// time. A start in between changes neither.
func TestClockThatJumps(t *testing.T) {
	t.Parallel()
	p := newRemovalPlant(t)
	p.run(10*days, nil)
	for _, jump := range []time.Duration{40 * days, 3 * days, 10 * 365 * days, -40 * days} {
		p.off = jump
		for range 4 {
			p.run(removalHold/5, func(time.Duration) {
				if p.at.After(p.right) {
					t.Fatalf("a jump of %v: removed by %v, it is %v", jump, p.at, p.right)
				}
			})
			p.start()
		}
		p.off = 0
		p.run(time.Hour, nil)
		if jump < 0 { // set right it looks like one that jumped forward
			p.run(removalHold+removalCatchUp, nil)
		}
		p.follows()
	}
	p.off = 40 * days
	p.run(RemovalEvery, nil)
	p.start() // the hold goes on where it was
	began := p.right
	p.run(removalHold+removalCatchUp+days, func(went time.Duration) {
		if went > 10*RemovalEvery && went > removalNear+RemovalEvery {
			t.Fatalf("removal went on by %v in %v", went, RemovalEvery)
		}
		if p.right.Sub(began) == days/2 && (p.r.ahead != 40*days || p.r.heldFor < removalHold/3) {
			t.Fatalf("%v behind, held for %v", p.r.ahead, p.r.heldFor)
		}
	})
	p.follows()
	p.off = 0 // it was wrong after all
	p.run(RemovalEvery, nil)
	p.follows()
}

// TestRemovalCatchesUp: after an honest stop, and after a clock that began in 1970,
// removal follows the clock within removalHold and removalCatchUp.
func TestRemovalCatchesUp(t *testing.T) {
	t.Parallel()
	for _, down := range []time.Duration{30 * days, 56 * 365 * days} {
		p := newRemovalPlant(t)
		p.run(days, nil)
		p.right = p.right.Add(down)
		p.start()
		p.run(RemovalEvery, nil)
		if p.r.ahead < down-time.Hour {
			t.Fatalf("down for %v: removal is %v behind", down, p.r.ahead)
		}
		for range 5 { // a deployment every five hours does not begin the hold anew
			p.run(removalHold/5, nil)
			p.start()
		}
		if _, err := p.r.Advance(p.t.Context()); err != nil || p.r.heldFor < removalHold-6*RemovalEvery {
			t.Fatalf("down for %v: held for %v of %v", down, p.r.heldFor, removalHold)
		}
		p.run(removalCatchUp+RemovalEvery, nil)
		p.follows()
	}
}

// TestRemovalThatCannotBeStored: without a durable time nothing is removed.
func TestRemovalThatCannotBeStored(t *testing.T) {
	t.Parallel()
	p := newRemovalPlant(t)
	p.r.meta = brokenMeta{p.meta}
	if at, err := p.r.Advance(t.Context()); err == nil {
		t.Fatalf("removes by %v", at)
	}
}

type brokenMeta struct{ engine.Meta }

func (brokenMeta) PutMeta(context.Context, string, []byte) error { return errors.New("away") }

// TestPurgesGoByRemoval: the purges of a process go by the time that is stored, and
// operators are told by the metric's source and the doctor's.
func TestPurgesGoByRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), time.Hour+time.Second)
		defer stop()
		rs, keys, meta := &Removals{Log: slog.New(slog.DiscardHandler)}, &purgedKeys{}, memory.New().Meta()
		last := time.Now().Add(-40 * days)
		if err := (&Removal{part: "purge of idempotency keys", meta: meta, removeUpTo: last}).storeRow(ctx); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() { ended <- rs.Every("purge of idempotency keys", meta, keys.purge)(ctx) }()
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		if part, ahead := rs.Ahead(); part != "purge of idempotency keys" || ahead != 40*days {
			t.Errorf("%q is %v behind", part, ahead)
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if keys.calls != 6 || keys.latest > last.Add(time.Hour).UnixMilli() {
			t.Errorf("%d purges in an hour, the last by %v", keys.calls, time.UnixMilli(keys.latest))
		}
		if _, ahead := rs.Ahead(); ahead != 0 {
			t.Errorf("a part that does not run here is %v behind", ahead)
		}
	})
}

type purgedKeys struct {
	calls  int
	latest int64
}

func (p *purgedKeys) purge(_ context.Context, now time.Time) error {
	p.calls, p.latest = p.calls+1, max(p.latest, now.UnixMilli())
	return nil
}
