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

// settleAnswer settles the item with index i after an answer of the provider that does not accept
// the item. No other function decides, from an answer, whether an item is tried again, waits, or
// ends. The caller holds r.mu.
func (r *round) settleAnswer(i int, res *notify.Result) {
	cfg := &r.w.cfg
	item, at := &r.call.Items[i], r.refs[i]
	if res.Class == notify.ClassBusy { // no call was made
		r.notTaken = append(r.notTaken, i)
		return
	}
	now := time.Now()
	job := r.parts[at.part].job
	e := &job.env
	route := r.w.routeOf(item.Address)
	r.reportAccepted(now)
	closed := cfg.Health.report(route, res, 1, int(e.Attempt) >= cfg.MaxRetries, now)
	x := notify.Exception{Pos: at.pos, Addr: item.Addr, Of: at.addresses, Class: res.Class, Code: res.Code, Provider: res.Provider, Receipt: res.ProviderID}
	switch res.Class {
	case notify.ClassThrottled, notify.ClassConfig:
		// The item did not cause this answer and was not processed. It waits until the account may
		// be used again. The wait uses no attempt.
		r.putOff(i, x, cfg.Health.reopensAt(route, now), now)
		return
	case notify.ClassUnavailable:
		if !closed {
			r.putOff(i, x, cfg.Health.reopensAt(route, now), now)
			return
		}
		r.planRetry(x, e, res.RetryAfter, now)
		return
	case notify.ClassRetry:
		r.planRetry(x, e, res.RetryAfter, now)
		return
	case notify.ClassAmbiguous:
		if slices.Contains(cfg.Unknown, e.Category) {
			x.State = notify.Unknown
			break
		}
		job.countResent()
		if !closed && mayBeTaken(&x) {
			r.parkAmbiguous(x, e, res.RetryAfter, now)
			return
		}
		r.planRetry(x, e, res.RetryAfter, now)
		return
	case notify.ClassDeadAddress, notify.ClassOptedOut:
		x.State = notify.Failed
		// Copy the strings: suppressGone reads them after the round, when the item's memory may be
		// in use again.
		r.gone = append(r.gone, goneAddress{string(item.User), string(item.Address), res.Code, res.Class == notify.ClassOptedOut})
	default:
		x.State = notify.Failed
	}
	r.addException(at.part, x)
}

// settleAccepted settles the accepted items with indexes in [from, to), if they have no outcome
// yet. Several items can share an outcome if it has no provider id and each receiver has only one
// address. The first such outcome becomes the default outcome of the round. The caller holds r.mu
// and does not release it with defer, so settleAccepted must not panic.
func (r *round) settleAccepted(reported []bool, from, to int, res *notify.Result) {
	state := notify.Sent
	if res.Confirmed {
		state = notify.Delivered
	}
	usual := r.defaultOutcome.State == state && r.defaultOutcome.Provider == res.Provider && r.defaultOutcome.Code == res.Code
	for i := from; i < to; i++ {
		if reported[i] {
			continue
		}
		reported[i] = true
		at := &r.refs[i]
		if at.route >= 0 {
			r.acceptedByRoute[at.route]++
		}
		if at.addresses == 0 && res.ProviderID == "" {
			if r.defaultOutcome.State == notify.None {
				r.defaultOutcome = notify.Exception{State: state, Provider: res.Provider, Code: res.Code}
				usual = true
			}
			if usual {
				r.hasDefault[at.part][at.pos-r.parts[at.part].lo] = 1
				continue
			}
		}
		r.addException(at.part, notify.Exception{
			Pos: at.pos, Addr: r.call.Items[i].Addr, Of: at.addresses, State: state,
			Code: res.Code, Provider: res.Provider, Receipt: res.ProviderID,
		})
	}
}

// reportAccepted reports the counted successes to the breakers. Because each report needs a lock,
// the round at first only counts successes. But before it reports a failure, it must report the
// successes counted so far; otherwise the breaker would see the failures of a window without its
// successes. The caller holds r.mu.
func (r *round) reportAccepted(now time.Time) {
	for i, n := range r.acceptedByRoute {
		if n > 0 {
			r.w.cfg.Health.report(r.w.cfg.Routes.Names[i], &notify.Result{Class: notify.ClassAccepted}, n, false, now)
			r.acceptedByRoute[i] = 0
		}
	}
}

// putOff makes an item wait until the given time. The wait does not count as an attempt. The item
// stays in the round if the wait is short or no other route of the lane works. Otherwise the item
// is parked in the timer store.
func (r *round) putOff(i int, x notify.Exception, until, now time.Time) {
	cfg := &r.w.cfg
	e := &r.parts[r.refs[i].part].job.env
	n := cfg.Routes.Of(r.call.Items[i].Address)
	if until.Sub(now) <= cfg.Hold || n < 0 || !cfg.Health.otherOpen(&cfg.Routes, n, now) {
		r.notTaken = append(r.notTaken, i)
		return
	}
	r.park(x, e, until)
}

// planRetry plans the next attempt of an item. It ends the item instead if no attempt is left, or
// if the envelope expires before the next attempt.
func (r *round) planRetry(x notify.Exception, e *notify.Envelope, after time.Duration, now time.Time) {
	cfg := &r.w.cfg
	if int(e.Attempt) >= cfg.MaxRetries {
		r.endFailed(x, e)
		return
	}
	wake := now.Add(cfg.Backoff.Delay(int(e.Attempt), after, jitterOf(e)))
	if e.Expires != 0 && wake.UnixMilli() >= e.Expires {
		r.endFailed(x, e)
		return
	}
	x.State, x.Retry, x.Wake = notify.Deferred, true, roundUp(wake, 250*time.Millisecond)
	r.addException(r.partOf(e), x)
}

// maxDoubts is how often parkAmbiguous parks an item. The item is called again after each wait, and
// each further call may send a duplicate.
const maxDoubts = 6

// doubtBackoff is how long parkAmbiguous parks an item: 15 s at first, up to 8 minutes.
var doubtBackoff = limit.Backoff{Base: 15 * time.Second, Max: 8 * time.Minute}

// parkAmbiguous parks an item whose call the provider may have processed, while the circuit of its
// route is open. The wait does not count as an attempt. If the item was parked maxDoubts times
// already, or would wait until the envelope expires, parkAmbiguous ends the item instead.
func (r *round) parkAmbiguous(x notify.Exception, e *notify.Envelope, after time.Duration, now time.Time) {
	n := doubtCount(e.Cause)
	wake := now.Add(doubtBackoff.Delay(n, after, jitterOf(e)))
	if n >= maxDoubts || e.Expires != 0 && roundUp(wake, time.Second) >= e.Expires {
		r.endFailed(x, e)
		return
	}
	r.park(x, e, wake)
}

// mayBeTaken returns true if the provider may have processed the call that led to an outcome. After
// a panic it returns false.
func mayBeTaken(x *notify.Exception) bool {
	return x.Class == notify.ClassAmbiguous && x.Code != codePanic
}

// endFailed ends an item after its last attempt. The state is UNKNOWN if the provider may have
// processed one of the attempts, and FAILED if not.
func (r *round) endFailed(x notify.Exception, e *notify.Envelope) {
	x.State = notify.Failed
	if mayBeTaken(&x) || strings.HasPrefix(e.Cause, causeMaybe) {
		x.State = notify.Unknown
	}
	r.addException(r.partOf(e), x)
}

// park defers an item to the given time. If the envelope expires before that time, park ends the
// item instead.
func (r *round) park(x notify.Exception, e *notify.Envelope, until time.Time) {
	x.State, x.Wake = notify.Deferred, roundUp(until, time.Second)
	part := r.partOf(e)
	if e.Expires != 0 && x.Wake >= e.Expires {
		x.State, _ = r.parts[part].job.stateWithoutCall(x.Pos, notify.Expired, codeExpired)
		if x.State == notify.Expired && x.Provider != "" {
			x.State = notify.Failed // a call was made, and the provider did not process it
		}
		x.Wake = 0
	}
	r.addException(part, x)
}

// parkUncalled parks an item that was not called.
func (r *round) parkUncalled(at itemRef, addr uint8, code string, until time.Time) {
	e := &r.parts[at.part].job.env
	r.park(notify.Exception{Pos: at.pos, Addr: addr, Of: at.addresses, Code: code}, e, until)
}

// addException records an outcome that differs from the default. During a call the caller holds
// r.mu.
func (r *round) addException(part uint16, x notify.Exception) {
	r.exceptions[part] = append(r.exceptions[part], x)
}

// partOf returns the index of the part that belongs to e.
func (r *round) partOf(e *notify.Envelope) uint16 {
	for i := range r.parts {
		if &r.parts[i].job.env == e {
			return uint16(i)
		}
	}
	return 0
}

// roundUp rounds t up to a multiple of the duration step, and returns it in ms since 1970.
// Deferrals with the same cause then have the same time, so that their receivers fit into few
// envelopes.
func roundUp(t time.Time, step time.Duration) int64 {
	ms, stepMs := t.UnixMilli(), step.Milliseconds()
	return (ms + stepMs - 1) / stepMs * stepMs
}

// jitterOf returns a function that gives a number in [0,1) which depends only on the envelope and
// its attempt. So the receivers of an envelope retry together, and different envelopes at different
// times.
func jitterOf(e *notify.Envelope) func() float64 {
	var h uint64
	for _, b := range e.Chunk.Base {
		h = h*1099511628211 + uint64(b)
	}
	h += uint64(e.Chunk.Partition)*7919 + uint64(e.Chunk.Block)*104729 + uint64(e.Attempt)*31
	h *= 0x9e3779b97f4a7c15
	return func() float64 { return float64(h>>11) / (1 << 53) }
}

// reportSettled calls Events.Settled once for each window of the round.
func (r *round) reportSettled() {
	f := r.w.cfg.Events.Settled
	if f == nil {
		return
	}
	now := time.Now()
	began := r.firstCallAt
	if began.IsZero() {
		began = now
	}
	for i, p := range r.parts {
		e := &p.job.env
		info := SettledInfo{
			Lane: r.w.cfg.Lane, Envelope: e, Row: p.job.row.Key,
			Called: now.Sub(began), Age: began.Sub(time.UnixMilli(e.Accepted)),
		}
		info.States[r.defaultOutcome.State] += bytes.Count(r.hasDefault[i], []byte{1})
		for k := range r.exceptions[i] {
			info.States[r.exceptions[i][k].State]++
			if c := r.exceptions[i][k].Code; c != "" {
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

// settleByReceipts settles the items for which a receipt of an earlier call has arrived. The
// earlier call itself may have got no answer, because the connection broke or the process died.
// settleByReceipts returns the other items and their refs. It returns false if the partition is
// gone.
//
// settleByReceipts reads the receipts by key, not by chunk, because a chunk of a large fan-out has
// a receipt for every receiver.
func (r *round) settleByReceipts(items []notify.Item, refs []itemRef) ([]notify.Item, []itemRef, bool) {
	if len(items) == 0 || r.call.Channel == notify.Push || // push providers send no receipts
		!slices.ContainsFunc(r.parts, func(p *window) bool { return p.job.calledBefore(p.lo) }) {
		return items, refs, true
	}
	var keys []notify.RowKey
	end := make([]int, len(items)) // by item: the index in keys after the item's last key
	for i := range items {
		if r.parts[refs[i].part].job.calledBefore(refs[i].pos) {
			keys = receiptKeys(keys, &items[i])
		}
		end[i] = len(keys)
	}
	rows, err := r.parts[0].job.p.readRows(keys, r.w.cfg.Status.Get)
	if err != nil {
		return items, refs, false
	}
	kept, keptRefs := items[:0], refs[:0]
	from := 0
	for i := range items {
		x := notify.Exception{Pos: refs[i].pos, Addr: items[i].Addr, Of: refs[i].addresses, Class: notify.ClassReceipt}
		for ; from < end[i]; from++ {
			receipt := &rows[from].Default
			if best := notify.BetterAddressState(x.State, receipt.State); best != x.State {
				x.State, x.Code, x.Provider, x.Receipt = best, receipt.Code, receipt.Provider, receipt.Receipt
			}
		}
		if x.State == notify.None {
			kept, keptRefs = append(kept, items[i]), append(keptRefs, refs[i])
			continue
		}
		r.addException(refs[i].part, x)
	}
	return kept, keptRefs, true
}

// applyReceipts corrects those outcomes in ex whose receivers end without a further call. If a
// receipt says that an earlier call delivered the message, the receiver ends as delivered.
// applyReceipts returns false if the partition is gone.
func (w *window) applyReceipts(ex []notify.Exception) bool {
	if len(ex) == 0 || !w.job.calledBefore(w.lo) {
		return true
	}
	ends := map[uint32]bool{}
	for k := range ex {
		if ex[k].State.Terminal() {
			ends[ex[k].Pos] = true
		}
	}
	delivered, err := w.job.deliveredByReceipt(w.lo, w.hi, func(pos uint32) bool { return ends[pos] })
	for k := range ex {
		if x, ok := delivered[ex[k].Pos]; ok {
			ex[k] = x
		}
	}
	return err == nil
}

// receiptKeys appends to dst the keys of all rows that may have a receipt for an item.
func receiptKeys(dst []notify.RowKey, item *notify.Item) []notify.RowKey {
	call := *item.Key
	for attempt := range item.Key.Attempt + 1 {
		call.Attempt = attempt
		dst = append(dst, notify.ReceiptKey(call, item.Index, item.Addr, notify.Delivered),
			notify.ReceiptKey(call, item.Index, item.Addr, notify.Failed))
	}
	return dst
}

// goneAddress is an address that a provider reported as dead, or whose owner told the provider to
// stop.
type goneAddress struct {
	user, address, code string
	optedOut            bool
}

// suppressGone adds the dead addresses of a round to the suppression list, and opts out the users
// who told the provider to stop. It starts a goroutine for this. If the store fails, the goroutine
// does not try again: the next failure of the same address will call suppressGone again.
func (r *round) suppressGone(p *partition) {
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
				p.w.cfg.Logger.Warn("cannot store that addresses are dead or users opted out; will try again when the provider next refuses an address", "addresses", len(r.gone)-i, "err", err)
				return
			}
		}
	})
}
