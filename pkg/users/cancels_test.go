package users

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

func TestCancels(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := &cancelStore{}
		a, err := NewCancels(st, Config{})
		must(t, err)
		b, err := NewCancels(st, Config{Batch: 2})
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.Run(ctx) }()
		env := func(fan bool, campaign string) *notify.Envelope {
			return &notify.Envelope{Chunk: notify.Chunk{Base: notify.NewBase(time.Now())}, FanOut: fan, Campaign: campaign}
		}
		ended := env(true, "")
		if a.MayBeCancelled(ended) {
			t.Error("nothing is cancelled")
		}
		if ended.Cause = notify.CauseCancelled; !a.MayBeCancelled(ended) || !a.Cancelled(ended, 3) {
			t.Error("it says itself that it is cancelled")
		}
		one, whole, camp, other := env(true, ""), env(true, ""), env(true, "cmp_"+notify.NewBase(noon).String()), env(true, "cmp_"+notify.NewBase(noon).String())
		single := env(false, "")
		must(t, a.Put(ctx, one.ID(5).String(), "c", noon))
		must(t, a.Put(ctx, "ntf_"+whole.Chunk.Base.String(), "c", noon))
		must(t, a.Put(ctx, camp.Campaign, "c", noon))
		must(t, a.Put(ctx, single.ID(0).String(), "c", noon))
		if err := a.Put(ctx, "trg_x", "c", noon); notify.KindOf(err) != notify.KindInvalid {
			t.Errorf("%v", err)
		}
		check := func(c *Cancels) {
			t.Helper()
			for _, x := range []struct {
				e     *notify.Envelope
				index uint32
				want  bool
			}{{one, 5, true}, {one, 4, false}, {whole, 0, true}, {whole, 9, true}, {camp, 1, true}, {other, 1, false}, {single, 0, true}, {env(false, ""), 0, false}} {
				if got := c.Cancelled(x.e, x.index); got != x.want {
					t.Errorf("%v %s: %v", x.e.ID(x.index), x.e.Campaign, got)
				}
				if x.want && !c.MayBeCancelled(x.e) {
					t.Errorf("%v %s: may not be", x.e.ID(x.index), x.e.Campaign)
				}
			}
		}
		check(a)
		<-time.After(time.Second)
		check(b)
		for range 2000 { // the filter grows and forgets nothing
			must(t, a.Put(ctx, env(true, "").ID(1).String(), "c", noon))
		}
		check(a)
		cancel()
		must(t, <-done)
	})
}

// However many there are, memory holds MaxCancels of them, and none is
// forgotten.
func TestCancelsAreBounded(t *testing.T) {
	t.Parallel()
	const most, n = 64, 5000
	st := &cancelStore{}
	c, err := NewCancels(st, Config{MaxCancels: most})
	must(t, err)
	fresh := func() *notify.Envelope {
		return &notify.Envelope{Chunk: notify.Chunk{Base: notify.NewBase(noon)}, FanOut: true, Campaign: "cmp_" + notify.NewBase(noon).String()}
	}
	large, single, camp := fresh(), fresh(), fresh()
	single.FanOut, single.Campaign = false, ""
	must(t, c.Put(t.Context(), single.ID(0).String(), "c", noon))
	must(t, c.Put(t.Context(), camp.Campaign, "c", noon))
	for i := range uint32(n) { // one by one, a fan-out's even ones
		must(t, c.Put(t.Context(), large.ID(2*i).String(), "c", noon))
		if held := len(c.young) + len(c.old); held > most {
			t.Fatalf("%d are held", held)
		}
	}
	check := func(c *Cancels) {
		t.Helper()
		for i := range uint32(2 * n) {
			if got := c.Cancelled(large, i); got != (i%2 == 0) {
				t.Fatalf("receiver %d: %v", i, got)
			}
		}
		if !c.Cancelled(single, 0) || !c.Cancelled(camp, 7) || c.Cancelled(fresh(), 0) {
			t.Error("others")
		}
		if held := len(c.young) + len(c.old); held > most {
			t.Errorf("%d are held", held)
		}
		if words := len(c.filter.Load().words); words > 4*most { // 32 bytes of each, as the comment of Cancels has it
			t.Errorf("the filter has %d words", words)
		}
	}
	check(c)
	again, err := NewCancels(st, Config{MaxCancels: most}) // after a restart
	must(t, err)
	must(t, again.Follow(t.Context()))
	check(again)

	// A request that was not cancelled costs no look-up in the store.
	few, err := NewCancels(st, Config{MaxCancels: 2 * n})
	must(t, err)
	must(t, few.Follow(t.Context()))
	st.asked = 0
	for i := range uint32(2 * n) {
		few.Cancelled(large, i)
	}
	if st.asked != 0 {
		t.Errorf("the store was asked %d times although nothing was dropped", st.asked)
	}
	others := 0
	for range 1000 {
		if again.Cancelled(fresh(), 1) {
			others++
		}
	}
	if others != 0 || st.asked > 700 { // the filter is far over its room here; both its looks must fail
		t.Errorf("%d of 1000 others are cancelled, the store was asked %d times", others, st.asked)
	}
	// While it cannot be asked, nothing is called that was probably cancelled.
	st.err = notify.Unavailable("store", 0, nil)
	if !again.Cancelled(large, 0) {
		t.Error("sent while the store is away")
	}
}
