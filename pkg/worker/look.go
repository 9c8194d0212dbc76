package worker

import (
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/users"
)

// decideReceivers decides for every receiver of part i whether to call it and at which addresses.
func (r *round) decideReceivers(i int, now time.Time) {
	p, cfg := r.parts[i], &r.w.cfg
	e := &p.job.env
	key := &p.job.row.Key
	rd := p.rd
	if e.Expired(now) {
		for pos := p.lo; pos < p.hi; pos++ {
			r.endWithoutCall(i, pos, notify.Expired, codeExpired)
		}
		return
	}
	r.slots = p.job.p.campaignSlots(e, p.hi-p.lo, now)
	l, ok := r.w.batches.Get().(*receiverBatch)
	if !ok {
		l = &receiverBatch{}
	}
	defer r.w.batches.Put(l)
	for pos := p.lo; pos < p.hi; {
		n := 0
		for ; n < len(l.recs) && pos+uint32(n) < p.hi && rd.Next(&l.recs[n]); n++ {
			l.users[n] = l.recs[n].User
		}
		if n == 0 {
			for ; pos < p.hi; pos++ {
				r.addUncalled(i, pos, notify.Failed, "corrupt", 0)
			}
			return
		}
		if !cfg.Prefs.DecideMany(l.answers[:n], l.users[:n], e.Channel, e.Category, now) {
			p.job.p.fetchProfiles(e.Channel, l.unknownUsers(n, e.Category))
			cfg.Prefs.DecideMany(l.answers[:n], l.users[:n], e.Channel, e.Category, now)
		}
		r.mayCancel, r.maySuppress = cfg.Cancels.MayBeCancelled(e), cfg.Prefs.Suppresses()
		for k := range n {
			r.decideReceiver(i, pos+uint32(k), &l.recs[k], &l.answers[k], e, key, now)
		}
		pos += uint32(n)
	}
}

// receiverBatch contains receivers that are decided together. A batch in the pool still has
// pointers to its last receivers, so their memory is not freed. The pool has few batches, so this
// memory is small.
type receiverBatch struct {
	recs    [64]notify.Receiver
	users   [64][]byte
	answers [64]users.Answer
}

// unknownUsers returns the users among the first n receivers whose profiles must be fetched. An otp
// or alert message to an address in the request needs no profile.
func (l *receiverBatch) unknownUsers(n int, cat notify.Category) (list [][]byte) {
	for i := range n {
		if l.answers[i].Action == users.Unknown && !(cat.Critical() && len(l.recs[i].Address) > 0) {
			list = append(list, l.users[i])
		}
	}
	return list
}

// decideReceiver decides about the receiver at position pos. The parameter answer says what the
// receiver's profile allows. decideReceiver either adds items to the call or records an outcome.
func (r *round) decideReceiver(i int, pos uint32, rec *notify.Receiver, answer *users.Answer, e *notify.Envelope, key *notify.RowKey, now time.Time) {
	cfg := &r.w.cfg
	if r.mayCancel && cfg.Cancels.Cancelled(e, rec.Index) {
		r.endWithoutCall(i, pos, notify.Cancelled, "cancelled")
		return
	}
	if len(r.heads) > 0 && r.deferBehind(i, pos, rec, e, now) {
		return
	}
	switch answer.Action {
	case users.Unknown: // the profile could not be read
		if cfg.Lane.Bulk || len(rec.Address) == 0 {
			deferUnknown(r, i, pos, e, now)
			return
		}
	case users.OptedOut:
		r.endWithoutCall(i, pos, notify.Suppressed, "opted_out")
		return
	case users.Quiet:
		if e.Expires != 0 && answer.Until >= e.Expires {
			r.endWithoutCall(i, pos, notify.Expired, codeExpired)
		} else {
			r.addUncalled(i, pos, notify.Deferred, "quiet_hours", answer.Until)
		}
		return
	}
	if r.slots != nil {
		if wake, code := r.slots.wakeOf(pos-r.parts[i].lo, now); wake != 0 {
			r.addUncalled(i, pos, notify.Deferred, code, capAtExpiry(wake, e))
			return
		}
	}
	if len(rec.Address) == 0 { // nearly all receivers have one address, from their profile
		from := len(r.copied)
		if copied, ok := answer.AppendSingle(r.copied); ok {
			r.copied = copied
			if t := (notify.Target{Address: copied[from:len(copied):len(copied)]}); !r.addItem(i, pos, rec, &t, e, key) {
				r.endWithoutCall(i, pos, notify.Suppressed, codeSuppressed)
			}
			return
		}
	}
	targets, err := notify.Targets(r.targets[:0], rec.Address)
	if err == nil && len(targets) == 0 {
		targets, r.copied = answer.Targets(targets, r.copied)
	}
	r.targets = targets
	taken, dead := 0, 0
	for k := range targets {
		switch {
		case len(targets[k].Address) == 0: // reached by an earlier attempt
		case r.addItem(i, pos, rec, &targets[k], e, key):
			taken++
		default:
			dead++
		}
	}
	if taken > 0 {
		return
	}
	switch {
	case dead > 0:
		r.endWithoutCall(i, pos, notify.Suppressed, codeSuppressed)
	case len(rec.Address) > 0 || cfg.Prefs.Loaded():
		r.addUncalled(i, pos, notify.Failed, notify.CodeNoAddress, 0)
	default:
		deferUnknown(r, i, pos, e, now)
	}
}

// deferUnknown defers a receiver whose profile is not known.
func deferUnknown(r *round, i int, pos uint32, e *notify.Envelope, now time.Time) {
	wake := now.Add(unknownFor).UnixMilli()
	if e.Expires != 0 && wake >= e.Expires {
		r.endWithoutCall(i, pos, notify.Expired, codeExpired)
		return
	}
	r.addUncalled(i, pos, notify.Deferred, codeAway, wake)
}

// addItem adds a receiver's address to the call. It returns false if the address is suppressed.
func (r *round) addItem(part int, pos uint32, rec *notify.Receiver, t *notify.Target, e *notify.Envelope, key *notify.RowKey) bool {
	cfg := &r.w.cfg
	if r.maySuppress && cfg.Prefs.Suppressed(e.Channel, t.Address) {
		return false
	}
	of := t.Of
	if of <= 1 {
		of = 0
	}
	// Fill the item in place. Building an item and copying it took twice as long. Set all fields,
	// because the slice may still contain an old item.
	r.call.Items = slices.Grow(r.call.Items, 1)[:len(r.call.Items)+1]
	it := &r.call.Items[len(r.call.Items)-1]
	it.Key, it.FanOut, it.Index = key, e.FanOut, 0
	if e.FanOut {
		it.Index = rec.Index
	}
	it.Addr, it.FromRequest, it.User, it.Address, it.Variables = t.Addr, notify.AddressFromRequest(rec.Address), rec.User, t.Address, rec.Variables
	r.refs = append(r.refs, itemRef{uint16(part), of, int8(cfg.Routes.Of(t.Address)), pos})
	return true
}

// unknownFor is how long a receiver is deferred if its profile could not be read.
const (
	unknownFor = 10 * time.Second
	codeAway   = "preferences_away"
)

// endWithoutCall records the outcome of a receiver that ends without a further call.
func (r *round) endWithoutCall(part int, pos uint32, s notify.State, code string) {
	s, code = r.parts[part].job.stateWithoutCall(pos, s, code)
	r.addUncalled(part, pos, s, code, 0)
}

// addUncalled records an outcome of a receiver that was not called.
func (r *round) addUncalled(part int, pos uint32, s notify.State, code string, wake int64) {
	if r.exceptions[part] == nil { // normally only a few of a hundred receivers end here; room for 32 avoids growing one by one
		r.exceptions[part] = make([]notify.Exception, 0, min(len(r.hasDefault[part]), 32))
	}
	r.exceptions[part] = append(r.exceptions[part], notify.Exception{Pos: pos, State: s, Code: code, Wake: wake})
}

// recheckItems removes the items that must not be called any more, and records their outcomes.
// During a wait, a notification may have expired or been cancelled, its user may have opted out,
// its campaign may have been paused, or a receipt may have arrived. recheckItems returns the other
// items and their refs. It returns false if the partition is gone.
func (r *round) recheckItems(items []notify.Item, refs []itemRef) ([]notify.Item, []itemRef, bool) {
	cfg := &r.w.cfg
	now := time.Now()
	r.lookedAt = now
	keepItems, keepRefs := items[:0], refs[:0]
	for i := range items {
		j := r.parts[refs[i].part].job
		e := &j.env
		x := notify.Exception{Pos: refs[i].pos, Addr: items[i].Addr, Of: refs[i].addresses}
		v := cfg.Prefs.Decide(items[i].User, e.Channel, e.Category, now)
		if v.Action == users.Unknown && !e.Category.Critical() {
			j.p.fetchProfiles(e.Channel, [][]byte{items[i].User})
			v = cfg.Prefs.Decide(items[i].User, e.Channel, e.Category, now)
		}
		switch {
		case e.Expired(now):
			x.State, x.Code = j.stateWithoutCall(x.Pos, notify.Expired, codeExpired)
		case cfg.Cancels.Cancelled(e, items[i].Index):
			x.State, x.Code = j.stateWithoutCall(x.Pos, notify.Cancelled, "cancelled")
		case v.Action == users.OptedOut:
			x.State, x.Code = j.stateWithoutCall(x.Pos, notify.Suppressed, "opted_out")
		case cfg.Prefs.Suppressed(e.Channel, items[i].Address):
			x.State, x.Code = j.stateWithoutCall(x.Pos, notify.Suppressed, codeSuppressed)
		case v.Action == users.Quiet && e.Expires != 0 && v.Until >= e.Expires:
			x.State, x.Code = j.stateWithoutCall(x.Pos, notify.Expired, codeExpired)
		case v.Action == users.Quiet:
			x.State, x.Code, x.Wake = notify.Deferred, "quiet_hours", v.Until
		case v.Action == users.Unknown && cfg.Lane.Bulk:
			x.State, x.Code, x.Wake = notify.Deferred, codeAway, now.Add(unknownFor).UnixMilli()
		case cfg.Campaigns.paused(e):
			x.State, x.Code, x.Wake = notify.Deferred, codeCampaignPaused, capAtExpiry(roundUp(now.Add(pausedLook), paceStep), e)
		default:
			keepItems, keepRefs = append(keepItems, items[i]), append(keepRefs, refs[i])
			continue
		}
		r.exceptions[refs[i].part] = append(r.exceptions[refs[i].part], x)
	}
	return r.settleByReceipts(keepItems, keepRefs)
}

// maxLookAge is the largest age of the last check of preferences and cancellations when a call
// starts. With this limit, an opt-out applies to every call that starts a second or more after it,
// as documented.
const maxLookAge = 250 * time.Millisecond

// queueHeads returns, for each user of part i, the first notification in the user's queue. Only
// strict lanes have these queues. The map is nil if no notification waits or the lane is not
// strict. queueHeads returns false if the partition is gone.
func (r *round) queueHeads(i int) (map[string]engine.Hold, bool) {
	cfg := &r.w.cfg
	if cfg.Order != Strict || cfg.Role != First {
		return nil, true
	}
	p := r.parts[i]
	var users []string
	rd, rec := p.rd, notify.Receiver{}
	for pos := p.lo; pos < p.hi && rd.Next(&rec); pos++ {
		users = append(users, string(rec.User))
	}
	var all [][]engine.Hold
	err := r.w.retryUntil(p.job.p.ctx, "holds", func() (err error) {
		all, err = cfg.Holds.Get(p.job.p.ctx, cfg.Lane.String(), users)
		return err
	})
	if err != nil {
		return nil, false
	}
	var heads map[string]engine.Hold
	for k, q := range all {
		if len(q) > 0 {
			if heads == nil {
				heads = map[string]engine.Hold{}
			}
			heads[users[k]] = q[0]
		}
	}
	return heads, true
}

// deferBehind defers a receiver if an earlier notification of the same user is first in the user's
// queue. It returns true if it has deferred the receiver.
func (r *round) deferBehind(part int, pos uint32, rec *notify.Receiver, e *notify.Envelope, now time.Time) bool {
	head, ok := r.heads[string(rec.User)]
	if !ok || head.ID == e.ID(rec.Index) && head.Epoch == e.Epoch {
		return false
	}
	wake := roundUp(time.UnixMilli(max(head.Wake, now.UnixMilli())).Add(time.Second), time.Second)
	if e.Expires != 0 {
		wake = min(wake, e.Expires) // at that time the receiver ends as expired
	}
	r.addUncalled(part, pos, notify.Deferred, "behind", wake)
	return true
}

// enterToCall enters the Solo before the next call of the round. It does nothing if the round has
// entered or locked the Solo already.
//
// During a drain it returns an error if the window covers its whole job: the next owner does that
// job. Otherwise it continues, because other windows of the job may have been called.
func (r *round) enterToCall(p *partition) error {
	if r.pass != noPass {
		return nil
	}
	err := r.w.cfg.Solo.enter(p.untilDrain)
	if err != nil && !r.parts[0].coversJob() {
		err = r.w.cfg.Solo.enter(p.ctx)
	}
	if err == nil {
		r.pass = callPass
	}
	return err
}

// leaveCall leaves the Solo if the round has entered it. A solo run keeps its lock until the run
// ends.
func (r *round) leaveCall() {
	if r.pass == callPass {
		r.pass = noPass
		r.w.cfg.Solo.leave()
	}
}

// deferSolo defers the items of a solo run until the given time. A solo run does not wait in
// memory, because during the wait no lane of the process could call a provider. The outcomes get
// ClassAmbiguous, because the provider may have processed earlier calls of these items.
func (r *round) deferSolo(items []notify.Item, refs []itemRef, until time.Time) {
	for i, at := range refs {
		e := &r.parts[at.part].job.env
		r.park(notify.Exception{Pos: at.pos, Addr: items[i].Addr, Of: at.addresses, Class: notify.ClassAmbiguous, Code: codeHandedOver}, e, until)
	}
}

// minShownWait is the shortest wait that is written into rows. So the first wait after a breaker
// opens is written, but the shorter waits for the answers to probes are not.
const minShownWait = 2 * time.Second

// showWait writes into the rows of the items that the items wait, and why. The wait ends at the
// time until. showWait writes nothing if the wait is short, or if the rows already show a wait that
// ends at about the same time or later.
func (r *round) showWait(refs []itemRef, until time.Time) {
	now := time.Now()
	if until.Sub(now) < minShownWait || until.Before(r.shownUntil.Add(minShownWait)) {
		return
	}
	c, ok := r.w.cfg.Health.StoppedBy(&r.w.cfg.Routes, now)
	if !ok {
		return
	}
	r.shownUntil = until
	x := notify.Exception{State: notify.Deferred, Class: c.class, Code: c.Code, Provider: c.Account, Wake: c.RetryAt.UnixMilli()}
	for i := range refs {
		if i == 0 || refs[i].part != refs[i-1].part {
			r.parts[refs[i].part].job.writeWait(x)
		}
	}
}

// endWait removes the wait that showWait wrote, so that later rows do not show it.
func (r *round) endWait() {
	if r.shownUntil.IsZero() {
		return
	}
	for _, p := range r.parts {
		p.job.clearWait()
	}
}
