package prefs

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
			return &notify.Envelope{Chunk: notify.Chunk{Base: notify.NewBase(time.Now())}, Fan: fan, Campaign: campaign}
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
