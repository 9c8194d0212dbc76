package worker

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
)

// settle turns an answer that is not accepted into the outcome of an item: the one
// place that decides between again, later and never. Called with r.mu held.
func (r *round) settle(i int, res *notify.Result) {
	cfg := &r.w.cfg
	item, at := &r.call.Items[i], r.refs[i]
	if res.Class == notify.ClassBusy { // no call was made
		r.again = append(r.again, i)
		return
	}
	now := time.Now()
	job := r.parts[at.part].job
	e := &job.env
	route := r.w.routeOf(item.Address)
	r.reportFine(now)
	closed := cfg.Health.report(route, res, 1, int(e.Attempt) >= cfg.MaxRetries, now)
	x := notify.Exception{Pos: at.pos, Addr: item.Addr, Of: at.of, Class: res.Class, Code: res.Code, Provider: res.Provider, Receipt: res.ProviderID}
	switch res.Class {
	case notify.ClassThrottled, notify.ClassConfig:
		// Not the item's fault and not taken: it waits for the account, and
		// that costs no attempt.
		r.later(i, x, cfg.Health.reopens(route, now), now)
		return
	case notify.ClassUnavailable:
		if !closed {
			r.later(i, x, cfg.Health.reopens(route, now), now)
			return
		}
		r.retry(x, e, res.RetryAfter, now)
		return
	case notify.ClassRetry:
		r.retry(x, e, res.RetryAfter, now)
		return
	case notify.ClassAmbiguous:
		if slices.Contains(cfg.Unknown, e.Category) {
			x.State = notify.Unknown
			break
		}
		job.ambiguous()
		if !closed && mayBeTaken(&x) {
			r.doubt(x, e, res.RetryAfter, now)
			return
		}
		r.retry(x, e, res.RetryAfter, now)
		return
	case notify.ClassDeadAddress, notify.ClassOptedOut:
		x.State = notify.Failed
		// Cloned: it is read when the round is over.
		r.gone = append(r.gone, goneAddress{string(item.User), string(item.Address), res.Code, res.Class == notify.ClassOptedOut})
	default:
		x.State = notify.Failed
	}
	r.add(at.part, x)
}

// accepted is the common case, of the items from one up to below another that were
// not reported before: the first one becomes the default of the round. Called with
// r.mu held; it must not panic.
func (r *round) accepted(reported []bool, from, to int, res *notify.Result) {
	state := notify.Sent
	if res.Confirmed {
		state = notify.Delivered
	}
	usual := r.def.State == state && r.def.Provider == res.Provider && r.def.Code == res.Code
	for i := from; i < to; i++ {
		if reported[i] {
			continue
		}
		reported[i] = true
		at := &r.refs[i]
		if at.route >= 0 {
			r.fine[at.route]++
		}
		if at.of == 0 && res.ProviderID == "" {
			if r.def.State == notify.None {
				r.def = notify.Exception{State: state, Provider: res.Provider, Code: res.Code}
				usual = true
			}
			if usual {
				r.plain[at.part][at.pos-r.parts[at.part].lo] = 1
				continue
			}
		}
		r.add(at.part, notify.Exception{
			Pos: at.pos, Addr: r.call.Items[i].Addr, Of: at.of, State: state,
			Code: res.Code, Provider: res.Provider, Receipt: res.ProviderID,
		})
	}
}

// reportFine tells the breakers of the successes not told yet. They are counted
// first, one by one they would cost a lock each; but always before a failure is
// told, else the breaker sees the failures of a window without its successes.
func (r *round) reportFine(now time.Time) {
	for i, n := range r.fine {
		if n > 0 {
			r.w.cfg.Health.report(r.w.cfg.Routes.Names[i], &notify.Result{Class: notify.ClassAccepted}, n, false, now)
			r.fine[i] = 0
		}
	}
}

// later puts an item off without an attempt: it stays with the round when the
// wait is short or the whole lane stands anyway, else it is parked.
func (r *round) later(i int, x notify.Exception, at, now time.Time) {
	cfg := &r.w.cfg
	e := &r.parts[r.refs[i].part].job.env
	n := cfg.Routes.Of(r.call.Items[i].Address)
	if at.Sub(now) <= cfg.Hold || n < 0 || !cfg.Health.otherOpen(&cfg.Routes, n, now) {
		r.again = append(r.again, i)
		return
	}
	r.wait(x, e, at)
}

// retry plans the next attempt, or ends the item when there is none.
func (r *round) retry(x notify.Exception, e *notify.Envelope, after time.Duration, now time.Time) {
	cfg := &r.w.cfg
	if int(e.Attempt) >= cfg.MaxRetries {
		r.giveUp(x, e)
		return
	}
	wake := now.Add(cfg.Backoff.Delay(int(e.Attempt), after, jitterOf(e)))
	if e.Expires != 0 && wake.UnixMilli() >= e.Expires {
		r.giveUp(x, e)
		return
	}
	x.State, x.Retry, x.Wake = notify.Deferred, true, roundUp(wake, 250*time.Millisecond)
	r.add(r.partOf(e), x)
}

// maxDoubts bounds how often an item is called again when the circuit was open and the
// provider may have taken the call. Each further call may be a duplicate.
const maxDoubts = 6

// doubtBackoff is how long an item waits after each of these calls: 15 s to 8 minutes.
var doubtBackoff = limit.Backoff{Base: 15 * time.Second, Max: 8 * time.Minute}

// doubt parks an item while its route's circuit is open and the provider may have taken
// its call. The wait uses no attempt. It ends the item after maxDoubts such waits.
func (r *round) doubt(x notify.Exception, e *notify.Envelope, after time.Duration, now time.Time) {
	n := doubts(e.Cause)
	wake := now.Add(doubtBackoff.Delay(n, after, jitterOf(e)))
	if n >= maxDoubts || e.Expires != 0 && roundUp(wake, time.Second) >= e.Expires {
		r.giveUp(x, e)
		return
	}
	r.wait(x, e, wake)
}

// mayBeTaken reports whether the provider may have taken the call that an outcome is
// about. A panic counts as a call that it did not take.
func mayBeTaken(x *notify.Exception) bool {
	return x.Class == notify.ClassAmbiguous && x.Code != codePanic
}

// giveUp ends an item after its last attempt: FAILED, or UNKNOWN when one of
// them may have been taken.
func (r *round) giveUp(x notify.Exception, e *notify.Envelope) {
	x.State = notify.Failed
	if mayBeTaken(&x) || strings.HasPrefix(e.Cause, causeMaybe) {
		x.State = notify.Unknown
	}
	r.add(r.partOf(e), x)
}

// wait parks an item until at.
func (r *round) wait(x notify.Exception, e *notify.Envelope, at time.Time) {
	x.State, x.Wake = notify.Deferred, roundUp(at, time.Second)
	part := r.partOf(e)
	if e.Expires != 0 && x.Wake >= e.Expires {
		x.State, _ = r.parts[part].job.unsent(x.Pos, notify.Expired, codeExpired)
		if x.State == notify.Expired && x.Provider != "" {
			x.State = notify.Failed // a call was made, and not taken
		}
		x.Wake = 0
	}
	r.add(part, x)
}

// settleWait is wait for an item that was not called.
func (r *round) settleWait(at ref, addr uint8, code string, until time.Time) {
	e := &r.parts[at.part].job.env
	r.wait(notify.Exception{Pos: at.pos, Addr: addr, Of: at.of, Code: code}, e, until)
}

func (r *round) add(part uint16, x notify.Exception) { r.ex[part] = append(r.ex[part], x) }

func (r *round) partOf(e *notify.Envelope) uint16 {
	for i := range r.parts {
		if &r.parts[i].job.env == e {
			return uint16(i)
		}
	}
	return 0
}

// roundUp makes the wakes of one failure meet, so that few envelopes carry many
// receivers: never earlier than asked.
func roundUp(t time.Time, to time.Duration) int64 {
	ms, step := t.UnixMilli(), to.Milliseconds()
	return (ms + step - 1) / step * step
}

// jitterOf returns a number in [0,1) that is the same for all receivers of an
// envelope: they retry together, envelopes apart.
func jitterOf(e *notify.Envelope) func() float64 {
	var h uint64
	for _, b := range e.Chunk.Base {
		h = h*1099511628211 + uint64(b)
	}
	h += uint64(e.Chunk.Partition)*7919 + uint64(e.Chunk.Block)*104729 + uint64(e.Attempt)*31
	h *= 0x9e3779b97f4a7c15
	return func() float64 { return float64(h>>11) / (1 << 53) }
}

// note tells the observers what became of the windows.
func (r *round) note() {
	f := r.w.cfg.Events.Settled
	if f == nil {
		return
	}
	now := time.Now()
	began := r.began
	if began.IsZero() {
		began = now
	}
	for i, p := range r.parts {
		e := &p.job.env
		info := SettledInfo{
			Lane: r.w.cfg.Lane, Envelope: e, Row: p.job.row.Key,
			Called: now.Sub(began), Age: began.Sub(time.UnixMilli(e.Accepted)),
		}
		info.States[r.def.State] += bytes.Count(r.plain[i], []byte{1})
		for k := range r.ex[i] {
			info.States[r.ex[i][k].State]++
			if c := r.ex[i][k].Code; c != "" {
				if info.Codes == nil {
					info.Codes = map[string]int{}
				}
				info.Codes[c]++
			}
		}
		for _, n := range info.States {
			info.Count += n
		}
		f(info)
	}
}

// told settles the items of which a receipt says what became of an earlier
// call, and returns the others: a connection that was cut after the request was
// read, or a process that died, leaves a call nobody answered, and its receipt
// may be there long before the next one is due. False: the partition is gone.
//
// The rows are asked for by their keys, not by chunk: a chunk of a large fan-out
// has a receipt for every receiver.
func (r *round) told(items []notify.Item, refs []ref) ([]notify.Item, []ref, bool) {
	if len(items) == 0 || r.call.Channel == notify.Push || // whose providers send none
		!slices.ContainsFunc(r.parts, func(p *window) bool { return p.job.calledBefore(p.lo) }) {
		return items, refs, true
	}
	var keys []notify.RowKey
	end := make([]int, len(items)) // of an item's keys
	for i := range items {
		if r.parts[refs[i].part].job.calledBefore(refs[i].pos) {
			keys = receiptKeys(keys, &items[i])
		}
		end[i] = len(keys)
	}
	rows, err := r.parts[0].job.p.rows(keys, r.w.cfg.Status.Get)
	if err != nil {
		return items, refs, false
	}
	kept, keptRefs := items[:0], refs[:0]
	from := 0
	for i := range items {
		x := notify.Exception{Pos: refs[i].pos, Addr: items[i].Addr, Of: refs[i].of, Class: notify.ClassReceipt}
		for ; from < end[i]; from++ {
			said := &rows[from].Default
			if best := notify.BetterAddressState(x.State, said.State); best != x.State {
				x.State, x.Code, x.Provider, x.Receipt = best, said.Code, said.Provider, said.Receipt
			}
		}
		if x.State == notify.None {
			kept, keptRefs = append(kept, items[i]), append(keptRefs, refs[i])
			continue
		}
		r.add(refs[i].part, x)
	}
	return kept, keptRefs, true
}

// toldOfEnds replaces the outcomes of receivers that end without a further call where a receipt
// says that an earlier one reached them. False: the partition is gone.
func (w *window) toldOfEnds(ex []notify.Exception) bool {
	if len(ex) == 0 || !w.job.calledBefore(w.lo) {
		return true
	}
	ends := map[uint32]bool{}
	for k := range ex {
		if ex[k].State.Terminal() {
			ends[ex[k].Pos] = true
		}
	}
	said, err := w.job.delivered(w.lo, w.hi, func(pos uint32) bool { return ends[pos] })
	for k := range ex {
		if x, ok := said[ex[k].Pos]; ok {
			ex[k] = x
		}
	}
	return err == nil
}

// receiptKeys appends the keys of the receipts that could be about an item.
func receiptKeys(dst []notify.RowKey, item *notify.Item) []notify.RowKey {
	call := *item.Key
	for attempt := range item.Key.Attempt + 1 {
		call.Attempt = attempt
		dst = append(dst, notify.ReceiptKey(call, item.Index, item.Addr, notify.Delivered),
			notify.ReceiptKey(call, item.Index, item.Addr, notify.Failed))
	}
	return dst
}

// goneAddress is an address that a provider called dead, or whose owner told the
// provider to stop.
type goneAddress struct {
	user, address, code string
	optedOut            bool
}

// suppress adds the dead addresses of a round to the suppression list and opts the
// users out who told the provider to stop, beside the work. It is best effort: the
// next failure of the same address tries again.
func (r *round) suppress(p *partition) {
	if len(r.gone) == 0 {
		return
	}
	p.wg.Go(func() {
		ctx, stop := context.WithTimeout(p.ctx, 10*time.Second)
		defer stop()
		for i := range r.gone {
			x := &r.gone[i]
			var err error
			if x.optedOut {
				err = p.w.cfg.Prefs.Unsubscribe(ctx, x.user, r.call.Channel)
			} else {
				err = p.w.cfg.Prefs.Suppress(ctx, x.user, r.call.Channel, x.address, x.code)
			}
			if err != nil {
				p.w.cfg.Logger.Warn("suppression not stored", "addresses", len(r.gone)-i, "err", err)
				return
			}
		}
	})
}
