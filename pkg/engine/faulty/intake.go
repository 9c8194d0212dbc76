package faulty

import (
	"context"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Idem misbehaves as its plan says.
type Idem struct {
	next engine.Idem
	plan *Plan
}

// NewIdem wraps next.
func NewIdem(next engine.Idem, p *Plan) engine.Idem { return Idem{next, p} }

func (w Idem) Reserve(ctx context.Context, r engine.Reservation, now int64) (engine.Reservation, bool, error) {
	return get2(ctx, w.plan, "Idem", "Reserve", func() (engine.Reservation, bool, error) { return w.next.Reserve(ctx, r, now) })
}

func (w Idem) TakeOver(ctx context.Context, old engine.Reservation, owner string, leaseUntil int64) (bool, error) {
	return get(ctx, w.plan, "Idem", "TakeOver", func() (bool, error) { return w.next.TakeOver(ctx, old, owner, leaseUntil) })
}

func (w Idem) Freeze(ctx context.Context, r engine.Reservation) error {
	return w.plan.do(ctx, "Idem", "Freeze", func() error { return w.next.Freeze(ctx, r) })
}

func (w Idem) Finish(ctx context.Context, key engine.IdemKey, status int, body []byte, expires int64) error {
	return w.plan.do(ctx, "Idem", "Finish", func() error { return w.next.Finish(ctx, key, status, body, expires) })
}

func (w Idem) Release(ctx context.Context, held engine.Reservation) error {
	return w.plan.do(ctx, "Idem", "Release", func() error { return w.next.Release(ctx, held) })
}

func (w Idem) Purge(ctx context.Context, now int64) (int, error) {
	return get(ctx, w.plan, "Idem", "Purge", func() (int, error) { return w.next.Purge(ctx, now) })
}

// Spill misbehaves as its plan says.
type Spill struct {
	next engine.Spill
	plan *Plan
}

// NewSpill wraps next.
func NewSpill(next engine.Spill, p *Plan) engine.Spill { return Spill{next, p} }

func (w Spill) Push(ctx context.Context, recs []engine.Spilled, limit int64) error {
	return w.plan.do(ctx, "Spill", "Push", func() error { return w.next.Push(ctx, recs, limit) })
}

func (w Spill) Peek(ctx context.Context, max int) ([]engine.Spilled, error) {
	return get(ctx, w.plan, "Spill", "Peek", func() ([]engine.Spilled, error) { return w.next.Peek(ctx, max) })
}

func (w Spill) Drop(ctx context.Context, seq uint64) error {
	return w.plan.do(ctx, "Spill", "Drop", func() error { return w.next.Drop(ctx, seq) })
}

func (w Spill) Stats(ctx context.Context) (records, bytes, oldest int64, err error) {
	n, err := get(ctx, w.plan, "Spill", "Stats", func() (n [3]int64, err error) {
		n[0], n[1], n[2], err = w.next.Stats(ctx)
		return n, err
	})
	return n[0], n[1], n[2], err
}

// Prefs misbehaves as its plan says.
type Prefs struct {
	next engine.Prefs
	plan *Plan
}

// NewPrefs wraps next.
func NewPrefs(next engine.Prefs, p *Plan) engine.Prefs { return Prefs{next, p} }

func (w Prefs) Get(ctx context.Context, user string) (engine.Profile, bool, error) {
	return get2(ctx, w.plan, "Prefs", "Get", func() (engine.Profile, bool, error) { return w.next.Get(ctx, user) })
}

func (w Prefs) Put(ctx context.Context, p engine.Profile) (uint64, error) {
	return get(ctx, w.plan, "Prefs", "Put", func() (uint64, error) { return w.next.Put(ctx, p) })
}

func (w Prefs) PutMany(ctx context.Context, ps []engine.Profile) error {
	return w.plan.do(ctx, "Prefs", "PutMany", func() error { return w.next.PutMany(ctx, ps) })
}

func (w Prefs) Changes(ctx context.Context, since uint64, max int) ([]engine.Change, error) {
	return get(ctx, w.plan, "Prefs", "Changes", func() ([]engine.Change, error) { return w.next.Changes(ctx, since, max) })
}

func (w Prefs) Version(ctx context.Context) (uint64, error) {
	return get(ctx, w.plan, "Prefs", "Version", func() (uint64, error) { return w.next.Version(ctx) })
}

func (w Prefs) Scan(ctx context.Context, fn func(*engine.Profile) error) error {
	return w.plan.do(ctx, "Prefs", "Scan", func() error { return w.next.Scan(ctx, fn) })
}

// Cancels misbehaves as its plan says.
type Cancels struct {
	next engine.Cancels
	plan *Plan
}

// NewCancels wraps next.
func NewCancels(next engine.Cancels, p *Plan) engine.Cancels { return Cancels{next, p} }

func (w Cancels) Put(ctx context.Context, c engine.Cancel) (uint64, error) {
	return get(ctx, w.plan, "Cancels", "Put", func() (uint64, error) { return w.next.Put(ctx, c) })
}

func (w Cancels) Get(ctx context.Context, scope string) (engine.Cancel, bool, error) {
	return get2(ctx, w.plan, "Cancels", "Get", func() (engine.Cancel, bool, error) { return w.next.Get(ctx, scope) })
}

func (w Cancels) Changes(ctx context.Context, since uint64, max int) ([]engine.Cancel, error) {
	return get(ctx, w.plan, "Cancels", "Changes", func() ([]engine.Cancel, error) { return w.next.Changes(ctx, since, max) })
}

// Campaigns misbehaves as its plan says.
type Campaigns struct {
	next engine.Campaigns
	plan *Plan
}

// NewCampaigns wraps next.
func NewCampaigns(next engine.Campaigns, p *Plan) engine.Campaigns { return Campaigns{next, p} }

func (w Campaigns) AddPart(ctx context.Context, campaign, caller string, part uint32, base notify.Base, accepted, rejected int64, at int64) error {
	return w.plan.do(ctx, "Campaigns", "AddPart", func() error { return w.next.AddPart(ctx, campaign, caller, part, base, accepted, rejected, at) })
}

func (w Campaigns) Get(ctx context.Context, campaign string) (engine.Campaign, bool, error) {
	return get2(ctx, w.plan, "Campaigns", "Get", func() (engine.Campaign, bool, error) { return w.next.Get(ctx, campaign) })
}

func (w Campaigns) List(ctx context.Context, caller string, after engine.Campaign, max int) ([]engine.Campaign, error) {
	return get(ctx, w.plan, "Campaigns", "List", func() ([]engine.Campaign, error) { return w.next.List(ctx, caller, after, max) })
}
