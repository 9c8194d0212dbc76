package worker

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/engine/faulty"
	"github.com/notifyd/notifyd/pkg/notify"
)

// TestModel runs through crashes and drains, with stores and a log that refuse, lose
// acknowledgements or hang, and a provider that answers anything. In the end every receiver has one
// terminal state. The provider got no more duplicates than the rows record. First attempts kept the
// order of each user, and nothing waits any more.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var thrown any // rapid ends a check by a panic, which must not cross the bubble
		synctest.Test(t, func(t *testing.T) {
			defer func() { thrown = recover() }()
			model(t, rt)
		})
		if thrown != nil {
			panic(thrown)
		}
	})
}

func model(t *testing.T, rt *rapid.T) {
	lane := rapid.SampledFrom([]notify.Lane{pushLane, smsLane, emailLane, bulkMail}).Draw(rt, "lane")
	cats := []notify.Category{notify.OTP, notify.Alert, notify.Transactional}
	if lane.Bulk {
		cats = []notify.Category{notify.Marketing}
	}
	p := newPlant(t, lane, func(c *Config) {
		c.Order = rapid.SampledFrom([]Order{Relaxed, Strict}).Draw(rt, "order")
		c.Window = rapid.SampledFrom([]int{1, 3, 50}).Draw(rt, "window")
		c.Ahead = rapid.SampledFrom([]int{1, 2, 16}).Draw(rt, "ahead")
		c.InFlight = rapid.SampledFrom([]int{1, 4, 1000}).Draw(rt, "in flight")
		c.HasOutcomesURL = func(string) bool { return true }
		c.MaxEnvelope = rapid.SampledFrom([]int{200, 900_000}).Draw(rt, "max envelope")
	})
	for i := range 4 { // these have several addresses
		p.prefs.addresses[name(i)] = []string{"a", "b", "c"}[:i%3+1]
	}
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
	trouble := 0.0 // under the ledger's lock
	troubled := func(share float64) {
		p.prov.mu.Lock()
		defer p.prov.mu.Unlock()
		trouble = share
	}
	receipts := rapid.Bool().Draw(rt, "receipts") && lane.Channel != notify.Push
	told := map[target]bool{} // a receipt says that these were delivered
	p.prov.set(20*time.Millisecond, func(item *notify.Item) (notify.Result, bool) {
		at := target{item.ID(), item.Addr}
		if told[at] {
			rt.Errorf("%s is called although a receipt says it was delivered", item.ID())
		}
		tell := func() {
			if receipts && rng.IntN(2) == 0 {
				told[at] = true
				p.receipt(item, notify.Delivered, "")
			}
		}
		if rng.Float64() >= trouble {
			tell()
			return notify.Result{Class: notify.ClassAccepted, Confirmed: true, Provider: "prov"}, true
		}
		r := notify.Result{Class: notify.Class(1 + rng.IntN(8)), Code: "code", Provider: "prov"}
		if rng.IntN(4) == 0 {
			r.RetryAfter = time.Duration(rng.IntN(20)) * time.Second
		}
		if r.Class != notify.ClassAmbiguous || rng.IntN(2) == 0 {
			return r, false
		}
		tell()
		return r, true
	})
	var sent []notify.Envelope
	order := map[string][]notify.ID{}
	var undo []func()
	for _, op := range rapid.SliceOfN(rapid.IntRange(0, 11), 1, 30).Draw(rt, "ops") {
		switch op {
		case 0, 1, 2:
			for range rapid.IntRange(1, 12).Draw(rt, "envelopes") {
				n := 1
				if rapid.IntRange(0, 3).Draw(rt, "kind") == 0 {
					n = rapid.IntRange(2, 12).Draw(rt, "receivers")
				}
				us := make([]string, n)
				at := rapid.IntRange(0, 6).Draw(rt, "user")
				for i := range us {
					us[i] = name(at + i)
				}
				e := p.envelope(rapid.SampledFrom(cats).Draw(rt, "category"), us...)
				e.Content.Template = "tpl"
				sent = append(sent, e)
				for i, u := range us {
					order[u] = append(order[u], e.ID(uint32(i)))
				}
				p.send(e)
			}
		case 3, 4:
			p.crash()
			p.start()
		case 5:
			p.drain()
			p.start()
		case 6:
			troubled(rapid.SampledFrom([]float64{0, 0.2, 0.9}).Draw(rt, "trouble"))
		case 7:
			undo = append(undo, p.plan.Add(faulty.Rule{
				Method: rapid.SampledFrom([]string{"Status.Put", "Status.Get", "Status.Resume", "Status.TakeOver", "Status.Scan", "Holds.*", "Timers.Put", "Timers.*"}).Draw(rt, "method"),
				Times:  rapid.IntRange(1, 5).Draw(rt, "times"), Err: faulty.ErrDown,
				Lost: rapid.SampledFrom([]faulty.Loss{faulty.NotApplied, faulty.Applied}).Draw(rt, "lost"),
			}))
		case 8:
			hold := make(chan struct{})
			time.AfterFunc(3*time.Second, func() { close(hold) })
			p.plan.Add(faulty.Rule{Method: rapid.SampledFrom([]string{"Status.Put", "Status.Resume"}).Draw(rt, "method"), Times: 1, Hold: hold})
		case 9: // a record that was stored twice
			if len(sent) > 0 {
				p.send(sent[rapid.IntRange(0, len(sent)-1).Draw(rt, "again")])
			}
		default:
			pass(time.Duration(rapid.SampledFrom([]int{1, 15, 400, 20_000}).Draw(rt, "ms")) * time.Millisecond)
		}
	}
	for _, f := range undo {
		f()
	}
	troubled(0)
	pass(3 * time.Hour)

	failed, ends := p.failed(), p.told()
	resent, again := 0, 0
	passed := map[notify.Base]bool{} // requests that later requests may overtake
	for i := range sent {
		e := &sent[i]
		rows := p.rows(e)
		for k := range rows {
			resent += int(rows[k].Resent)
			for _, x := range append(rows[k].Exceptions, rows[k].Default) {
				if x.Code == codeHandedOver {
					passed[e.Chunk.Base] = true
				}
			}
		}
		for r := range e.Count {
			id := e.ID(r)
			out := notify.Fold(rows, r, r)
			_, dead := failed[id.String()]
			took, more := p.prov.took(id)
			again += more
			switch {
			case !out.State.Terminal():
				rt.Errorf("%s is %v at the end (rows %+v)", id, out.State, rows)
			case dead != out.State.InFailedFeed(e.Category):
				rt.Errorf("%s is %v (%s); dead letter: %v", id, out.State, out.Code, dead)
			case !dead && !slices.ContainsFunc(ends[id.String()], func(r notify.EndedReceiver) bool {
				return r.Look || r.Status == out.State.String() || receipts // receipts are reported elsewhere, where they come in
			}):
				rt.Errorf("%s is %v (%s); its caller is told %+v", id, out.State, out.Code, ends[id.String()])
			case out.State == notify.Delivered && took == 0:
				rt.Errorf("%s is %v, the provider never took it", id, out.State)
			case out.State != notify.Delivered && out.State != notify.Unknown && took > 0 && resent == 0:
				rt.Errorf("%s is %v, the provider took it", id, out.State)
			}
		}
	}
	if again > resent {
		rt.Errorf("the provider took %d again, the rows admit %d", again, resent)
	}
	if p.cfg.Order == Strict {
		for u, ids := range order {
			if at := outOfOrder(ids, p.prov.all[u]); at >= 0 {
				rt.Errorf("call %d of %s passes one that waited: %v, sent %v", at, u, p.prov.all[u], ids)
			}
		}
		var us []string
		for u := range order {
			us = append(us, u)
		}
		held, err := p.store.Holds().Get(t.Context(), lane.String(), us)
		if err != nil {
			rt.Fatal(err)
		}
		for i := range held {
			if len(held[i]) > 0 {
				rt.Errorf("%s is held: %+v", us[i], held[i])
			}
		}
	}
	for u, ids := range order {
		first := p.prov.first[u]
		at := 0
		for _, id := range first {
			if passed[id.Base] {
				continue
			}
			for at < len(ids) && ids[at] != id {
				at++
			}
		}
		if at == len(ids) && len(first) > 0 {
			rt.Errorf("first attempts of %s: %v, sent %v", u, first, ids)
		}
	}
	for _, topic := range []string{lane.Topic(), lane.DLQTopic()} {
		if n := p.log.waiting(topic); n != 0 {
			rt.Errorf("%d records of %s are not done", n, topic)
		}
	}
	if n := p.life.timers.Pending(); n != 0 {
		rt.Errorf("%d timers pending", n)
	}
	for topic, part := range p.life.parts {
		if n := len(part.liveJobs); n != 0 {
			rt.Errorf("%s: %d jobs live", topic, n)
		}
		if part.order != nil && len(part.order.openTurns) != 0 {
			rt.Errorf("%s: %d turns open", topic, len(part.order.openTurns))
		}
		if b := part.budget; b.free != b.size {
			rt.Errorf("%s: %d of the budget are held", topic, b.size-b.free)
		}
		if n := part.w.openReceivers.held; n != 0 {
			rt.Errorf("%s: %d receivers count as claimed", topic, n)
		}
	}
}

// outOfOrder returns the index of the first call that is out of order: in the slice ids, its id
// comes before the id of an earlier call. It returns -1 if there is none.
func outOfOrder(ids, calls []notify.ID) int {
	place := map[notify.ID]int{}
	for i, id := range ids {
		if _, ok := place[id]; !ok {
			place[id] = i
		}
	}
	latest := 0
	for i, id := range calls {
		if place[id] < latest {
			return i
		}
		latest = place[id]
	}
	return -1
}
