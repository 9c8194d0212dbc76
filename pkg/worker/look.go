package worker

import (
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/users"
)

// look decides for every receiver of part i whether and where it is called.
func (r *round) look(i int, now time.Time) {
	p, cfg := r.parts[i], &r.w.cfg
	e := &p.job.env
	key := &p.job.row.Key
	rd := p.rd
	if e.Expired(now) {
		for pos := p.lo; pos < p.hi; pos++ {
			r.unsent(i, pos, notify.Expired, codeExpired)
		}
		return
	}
	r.held = p.job.p.held(e, p.hi-p.lo, now)
	l, ok := r.w.looks.Get().(*looks)
	if !ok {
		l = &looks{}
	}
	defer r.w.looks.Put(l)
	for pos := p.lo; pos < p.hi; {
		n := 0
		for ; n < len(l.recs) && pos+uint32(n) < p.hi && rd.Next(&l.recs[n]); n++ {
			l.users[n] = l.recs[n].User
		}
		if n == 0 {
			for ; pos < p.hi; pos++ {
				r.decided(i, pos, notify.Failed, "corrupt", 0)
			}
			return
		}
		if !cfg.Prefs.Look(l.answers[:n], l.users[:n], e.Channel, e.Category, now) {
			p.job.p.fetch(e.Channel, l.asked(n, e.Category))
			cfg.Prefs.Look(l.answers[:n], l.users[:n], e.Channel, e.Category, now)
		}
		r.mayCancel, r.maySuppress = cfg.Cancels.Maybe(e), cfg.Prefs.Suppresses()
		for k := range n {
			r.lookAt(i, pos+uint32(k), &l.recs[k], &l.answers[k], e, key, now)
		}
		pos += uint32(n)
	}
}

// looks are receivers that are looked at together. They keep what they were used
// for last from being freed; there are few.
type looks struct {
	recs    [64]notify.Receiver
	users   [64][]byte
	answers [64]users.Answer
}

// asked returns the users of the first n receivers whose profiles say something of the
// call: none of a code to an address that is given.
func (l *looks) asked(n int, cat notify.Category) (list [][]byte) {
	for i := range n {
		if l.answers[i].Action == users.Unknown && !(cat.Critical() && len(l.recs[i].Address) > 0) {
			list = append(list, l.users[i])
		}
	}
	return list
}

func (r *round) lookAt(i int, pos uint32, rec *notify.Receiver, a *users.Answer, e *notify.Envelope, key *notify.RowKey, now time.Time) {
	cfg := &r.w.cfg
	if r.mayCancel && cfg.Cancels.Cancelled(e, rec.Index) {
		r.unsent(i, pos, notify.Cancelled, "cancelled")
		return
	}
	if len(r.heads) > 0 && r.behind(i, pos, rec, e, now) {
		return
	}
	switch a.Action {
	case users.Unknown: // the store does not answer
		if cfg.Lane.Bulk || len(rec.Address) == 0 {
			putOffUnknown(r, i, pos, e, now)
			return
		}
	case users.OptedOut:
		r.unsent(i, pos, notify.Suppressed, "opted_out")
		return
	case users.Quiet:
		if e.Expires != 0 && a.Until >= e.Expires {
			r.unsent(i, pos, notify.Expired, codeExpired)
		} else {
			r.decided(i, pos, notify.Deferred, "quiet_hours", a.Until)
		}
		return
	}
	if r.held != nil {
		if wake, code := r.held.at(pos-r.parts[i].lo, now); wake != 0 {
			r.decided(i, pos, notify.Deferred, code, before(wake, e))
			return
		}
	}
	if len(rec.Address) == 0 { // nearly all have one address, of their profile
		from := len(r.copied)
		if copied, ok := a.Only(r.copied); ok {
			r.copied = copied
			if t := (notify.Target{Address: copied[from:len(copied):len(copied)]}); !r.take(i, pos, rec, &t, e, key) {
				r.unsent(i, pos, notify.Suppressed, codeSuppressed)
			}
			return
		}
	}
	targets, err := notify.Targets(r.targets[:0], rec.Address)
	if err == nil && len(targets) == 0 {
		targets, r.copied = a.Targets(targets, r.copied)
	}
	r.targets = targets
	taken, dead := 0, 0
	for k := range targets {
		switch {
		case len(targets[k].Address) == 0: // reached by an earlier attempt
		case r.take(i, pos, rec, &targets[k], e, key):
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
		r.unsent(i, pos, notify.Suppressed, codeSuppressed)
	case len(rec.Address) > 0 || cfg.Prefs.Loaded():
		r.decided(i, pos, notify.Failed, notify.CodeNoAddress, 0)
	default:
		putOffUnknown(r, i, pos, e, now)
	}
}

// putOffUnknown puts a receiver off whose profile is not known.
func putOffUnknown(r *round, i int, pos uint32, e *notify.Envelope, now time.Time) {
	wake := now.Add(unknownFor).UnixMilli()
	if e.Expires != 0 && wake >= e.Expires {
		r.unsent(i, pos, notify.Expired, codeExpired)
		return
	}
	r.decided(i, pos, notify.Deferred, codeAway, wake)
}

// take adds a receiver's address to the call; false: it is suppressed.
func (r *round) take(part int, pos uint32, rec *notify.Receiver, t *notify.Target, e *notify.Envelope, key *notify.RowKey) bool {
	cfg := &r.w.cfg
	if r.maySuppress && cfg.Prefs.Suppressed(e.Channel, t.Address) {
		return false
	}
	of := t.Of
	if of <= 1 {
		of = 0
	}
	// In place, for a copy of one made beside it took twice as long; all fields are
	// set, for it may have been another's.
	r.call.Items = slices.Grow(r.call.Items, 1)[:len(r.call.Items)+1]
	it := &r.call.Items[len(r.call.Items)-1]
	it.Key, it.Fan, it.Index = key, e.Fan, 0
	if e.Fan {
		it.Index = rec.Index
	}
	it.Addr, it.Given, it.User, it.Address, it.Variables = t.Addr, notify.Given(rec.Address), rec.User, t.Address, rec.Variables
	r.refs = append(r.refs, ref{uint16(part), of, int8(cfg.Routes.Of(t.Address)), pos})
	return true
}

// unknownFor is how long a receiver waits whose profile is not known because the
// preferences could not be read.
const (
	unknownFor = 10 * time.Second
	codeAway   = "preferences_away"
)

// unsent records the outcome of a receiver that ends without a call now.
func (r *round) unsent(part int, pos uint32, s notify.State, code string) {
	s, code = r.parts[part].job.unsent(pos, s, code)
	r.decided(part, pos, s, code, 0)
}

// decided records an outcome that needed no call.
func (r *round) decided(part int, pos uint32, s notify.State, code string, wake int64) {
	if r.ex[part] == nil { // a few in a hundred end so: without growing by ones
		r.ex[part] = make([]notify.Exception, 0, min(len(r.plain[part]), 32))
	}
	r.ex[part] = append(r.ex[part], notify.Exception{Pos: pos, State: s, Code: code, Wake: wake})
}

// lookAgain drops what expired, was cancelled or muted, or was found delivered,
// while it waited. False: the partition is gone.
func (r *round) lookAgain(items []notify.Item, refs []ref) ([]notify.Item, []ref, bool) {
	cfg := &r.w.cfg
	now := time.Now()
	r.looked = now
	keepItems, keepRefs := items[:0], refs[:0]
	for i := range items {
		j := r.parts[refs[i].part].job
		e := &j.env
		x := notify.Exception{Pos: refs[i].pos, Addr: items[i].Addr, Of: refs[i].of}
		v := cfg.Prefs.Decide(items[i].User, e.Channel, e.Category, now)
		if v.Action == users.Unknown && !e.Category.Critical() {
			j.p.fetch(e.Channel, [][]byte{items[i].User})
			v = cfg.Prefs.Decide(items[i].User, e.Channel, e.Category, now)
		}
		switch {
		case e.Expired(now):
			x.State, x.Code = j.unsent(x.Pos, notify.Expired, codeExpired)
		case cfg.Cancels.Cancelled(e, items[i].Index):
			x.State, x.Code = j.unsent(x.Pos, notify.Cancelled, "cancelled")
		case v.Action == users.OptedOut:
			x.State, x.Code = j.unsent(x.Pos, notify.Suppressed, "opted_out")
		case cfg.Prefs.Suppressed(e.Channel, items[i].Address):
			x.State, x.Code = j.unsent(x.Pos, notify.Suppressed, codeSuppressed)
		case v.Action == users.Quiet && e.Expires != 0 && v.Until >= e.Expires:
			x.State, x.Code = j.unsent(x.Pos, notify.Expired, codeExpired)
		case v.Action == users.Quiet:
			x.State, x.Code, x.Wake = notify.Deferred, "quiet_hours", v.Until
		case v.Action == users.Unknown && cfg.Lane.Bulk:
			x.State, x.Code, x.Wake = notify.Deferred, codeAway, now.Add(unknownFor).UnixMilli()
		case cfg.Campaigns.paused(e):
			x.State, x.Code, x.Wake = notify.Deferred, codeCampaignPaused, before(roundUp(now.Add(pausedLook), paceStep), e)
		default:
			keepItems, keepRefs = append(keepItems, items[i]), append(keepRefs, refs[i])
			continue
		}
		r.ex[refs[i].part] = append(r.ex[refs[i].part], x)
	}
	return r.told(keepItems, keepRefs)
}

// relook is how old a look at preferences and cancels may be when a call starts:
// an opt-out binds calls that start a second later.
const relook = 250 * time.Millisecond

// queues reads who waits, for the users of part i. Nil: nobody, or not strict.
func (r *round) queues(i int) (map[string]engine.Hold, bool) {
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
	err := r.w.until(p.job.p.ctx, "holds", func() (err error) {
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

// behind defers a receiver whose user has another message at the head.
func (r *round) behind(part int, pos uint32, rec *notify.Receiver, e *notify.Envelope, now time.Time) bool {
	head, ok := r.heads[string(rec.User)]
	if !ok || head.ID == e.ID(rec.Index) && head.Epoch == e.Epoch {
		return false
	}
	wake := roundUp(time.UnixMilli(max(head.Wake, now.UnixMilli())).Add(time.Second), time.Second)
	if e.Expires != 0 {
		wake = min(wake, e.Expires) // to be dropped then
	}
	r.decided(part, pos, notify.Deferred, "behind", wake)
	return true
}

// enterToCall lets the round's next call begin, unless that has been done before
// its claim. When the partition is about to go, a window that is all of its job is
// left to the next owner; others may have been called in part and go on.
func (r *round) enterToCall(p *partition) error {
	if r.pass != noPass {
		return nil
	}
	err := r.w.cfg.Solo.enter(p.soft)
	if err != nil && !r.parts[0].whole() {
		err = r.w.cfg.Solo.enter(p.ctx)
	}
	if err == nil {
		r.pass = callPass
	}
	return err
}

// leaveCall ends what enterToCall began. A solo run keeps its lock.
func (r *round) leaveCall() {
	if r.pass == callPass {
		r.pass = noPass
		r.w.cfg.Solo.leave()
	}
}

// putOffSolo puts the items of a solo run off that would have to wait: while it
// waited, no lane of the process could call anybody. Earlier calls of them may have
// been taken.
func (r *round) putOffSolo(items []notify.Item, refs []ref, until time.Time) {
	for i, at := range refs {
		e := &r.parts[at.part].job.env
		r.wait(notify.Exception{Pos: at.pos, Addr: items[i].Addr, Of: at.of, Class: notify.ClassAmbiguous, Code: codeHandedOver}, e, until)
	}
}

// remarkFrom is how long a wait must be for the rows to tell of it: the first
// one of a breaker that opens, and no wait for a probe's answer.
const remarkFrom = 2 * time.Second

// remark makes the rows of the items' envelopes tell readers of a wait until at,
// unless they do already.
func (r *round) remark(refs []ref, at time.Time) {
	now := time.Now()
	if at.Sub(now) < remarkFrom || at.Before(r.remarked.Add(remarkFrom)) {
		return
	}
	c, ok := r.w.cfg.Health.Standing(&r.w.cfg.Routes, now)
	if !ok {
		return
	}
	r.remarked = at
	x := notify.Exception{State: notify.Deferred, Class: c.class, Code: c.Code, Provider: c.Account, Wake: c.RetryAt.UnixMilli()}
	for i := range refs {
		if i == 0 || refs[i].part != refs[i-1].part {
			r.parts[refs[i].part].job.remark(x)
		}
	}
}

// goOn ends what remark made the rows say.
func (r *round) goOn() {
	if r.remarked.IsZero() {
		return
	}
	for _, p := range r.parts {
		p.job.goOn()
	}
}
