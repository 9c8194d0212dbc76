package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine/cassandra"
	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

// kind describes a load, and the role whose processes work on the messages of the load.
type kind struct {
	name, role string
	count      int     // number of messages of a step with -scale 1
	share      float64 // share of a core of each process, so small that four processes do not fill the machine
	group      string  // consumer group of the processes; empty: the processes have no group
	step       load.Step
	// ended returns the number of durable outcomes according to the processes' metrics.
	ended func(metrics map[string]float64) float64
}

// dueIn is the shortest time from the beginning of a step until its triggers are due. They are all
// due at the same time.
const dueIn = 15 * time.Second

var kinds = []kind{
	{
		name: "singles", role: "worker:push", count: 40_000, share: 0.05, group: notify.Lane{Channel: notify.Push}.Group(), ended: outcomes,
		step: load.Step{Target: load.Batch, Size: 500, Workers: 4, Addresses: true, Category: "transactional"},
	},
	{
		// The fan-outs are e-mails, because one call of the provider carries 1,000 e-mails. With
		// one message in a call, the simulator would need ten times the processor time of the
		// worker.
		name: "fanouts", role: "worker:email", count: 2_000_000, share: 0.1, group: notify.Lane{Channel: notify.Email, Bulk: true}.Group(), ended: outcomes,
		step: load.Step{Target: load.Fanout, Size: 20_000, Workers: 4, Addresses: true, Channel: notify.Email.String()},
	},
	{
		name: "triggers", role: "dispatcher", count: 6_000, share: 0.06,
		ended: func(m map[string]float64) float64 { return m[`notifyd_triggers_ended_total{state="FIRED"}`] },
	},
}

// outcomes returns the number of receivers with a durable terminal state. A receiver in the state
// DEFERRED, which notifyd tries again, does not count yet.
func outcomes(m map[string]float64) (n float64) {
	for name, v := range m {
		if strings.HasPrefix(name, "notifyd_outcomes_total{") && !strings.Contains(name, `"DEFERRED"`) {
			n += v
		}
	}
	return n
}

// selectLoads returns the loads with the given names, or all loads if no name is given.
func selectLoads(names string) (out []kind, err error) {
	for _, name := range strings.Fields(names) {
		i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })
		if i < 0 {
			return nil, fmt.Errorf("-only: no load is called %q; the loads are singles, fanouts and triggers", name)
		}
		out = append(out, kinds[i])
	}
	if out == nil {
		out = kinds
	}
	return out, nil
}

// promised holds the accepted messages of a step.
type promised struct {
	count    int64
	ids      []string              // ids of single messages
	bases    map[notify.Base]int64 // base of a fan-out -> number of its accepted receivers
	triggers rig.Dues
	from     time.Time // when the processes may begin to work on the messages
}

// offer sends the messages of a step as fast as notifyd accepts them. Triggers are due after
// notifyd has accepted the last of them.
func (s *scaleout) offer(ctx context.Context, k kind, n int) promised {
	if k.role == "dispatcher" {
		return s.offerTriggers(ctx, n)
	}
	p := promised{bases: map[notify.Base]int64{}, from: time.Now()}
	st := k.step
	st.Count, st.Payload.Text = load.Number(n), "Your order is on its way."
	var mu sync.Mutex
	sc := load.SingleStep(k.name, 0, st)
	sc.Seed = uint64(s.spent) // gives each step users of its own
	run := rig.Must(load.New(sc, load.Config{
		Target: &load.HTTP{Client: s.f.V.Client()}, Timeout: time.Minute, Patience: rig.Patience,
		Keys: func(i int64) string { return fmt.Sprintf("%s-%s-%d-%d", s.Keyspace, k.name, s.spent, i) },
		Acked: func(a load.Ack) {
			mu.Lock()
			defer mu.Unlock()
			if a.Count == 0 {
				p.count, p.ids = p.count+int64(a.Accepted), append(p.ids, a.IDs...)
				return
			}
			p.count += int64(a.Count - a.Rejected)
			p.bases[a.Base] += int64(a.Count - a.Rejected)
		},
	}))
	rig.Must(run.Run(ctx))
	return p
}

func (s *scaleout) offerTriggers(ctx context.Context, n int) promised {
	const size = 100
	url := rig.Must(s.f.V.CallbackURL(ctx))
	// Every request contains the due time, so the due time must be chosen before the first request.
	// It is so late that even a slow machine needs only half of the time until then to register
	// the triggers.
	p := promised{triggers: rig.Dues{}, from: time.Now().Add(dueIn + time.Duration(n)*2*time.Millisecond)}
	made := make([]rig.Dues, (n+size-1)/size)
	rig.InSteps(ctx, n, size, 8, func(ctx context.Context, from, to int) {
		batch := make([]api.Trigger, to-from)
		for i := range batch {
			batch[i] = rig.Due(url+"/scaleout", p.from)
		}
		made[from/size] = rig.Dues{}
		rig.Ok(rig.Insist(ctx, func() error {
			res, err := s.f.V.Client().TriggerBatch(ctx, batch, fmt.Sprintf("%s-%d-%d", s.Keyspace, s.spent, from))
			for _, r := range res.Results {
				made[from/size][r.TriggerID] = p.from
			}
			return err
		}))
	})
	for _, some := range made {
		for id, at := range some {
			p.triggers[id] = at
		}
	}
	p.count = int64(len(p.triggers))
	if late := time.Since(p.from); late > 0 {
		panic(fmt.Errorf("the last of %d triggers was accepted %.0f s after all were due; use a smaller -scale", n, late.Seconds()))
	}
	return p
}

// countDone returns the number of messages that the providers have received in all steps so far.
// For triggers, it returns the number of triggers that the callback receiver has received.
func (s *scaleout) countDone(ctx context.Context, k kind) int64 {
	if k.role == "dispatcher" {
		return rig.Must(s.f.V.Taken(ctx))
	}
	return rig.Must(s.f.V.Delivered(ctx))
}

// check compares the accepted messages with the ledger. The result lost is the number of missing
// messages. The result twice is the number of repeated calls that the stored rows of this step do
// not explain.
func (s *scaleout) check(ctx context.Context, p promised) (lost, twice int64) {
	if p.triggers != nil {
		f := rig.Must(s.f.V.Fired(ctx, p.triggers))
		if len(f.Early) > 0 {
			panic(fmt.Errorf("%d triggers were called before they were due, the first by %s", len(f.Early), f.Early[0].By))
		}
		return int64(len(f.Lost)), f.Twice
	}
	var totals rig.Result
	rig.Ok(s.f.V.Totals(ctx, &totals))
	lost, _, err := s.f.V.Missing(ctx, p.ids)
	rig.Ok(err)
	fans := rig.Must(s.f.V.Fans(ctx))
	for base, n := range p.bases {
		lost += n - fans[base].IDs
	}
	twice = totals.Duplicates - s.twice
	s.twice = totals.Duplicates
	if twice > 0 {
		store := rig.Must(cassandra.Open(ctx, s.CassandraConfig(20*time.Second)))
		defer store.Close()
		twice -= rig.Must(rig.Resent(ctx, store, p.from.Add(-time.Second)))
	}
	return lost, max(twice, 0)
}
