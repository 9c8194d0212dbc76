package trigger

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
)

// Register answers POST /v1/triggers with status 201 and {"trigger_id", "fire_at"}. The fire time
// includes the jitter. If Register returns an error, nothing was stored, with one exception: after
// notify.KindUnavailable the trigger either does not exist or will fire once. A repeat with the
// same Idempotency-Key finds out which.
func (s *Service) Register(ctx context.Context, m request.Meta, body []byte) (request.Answer, error) {
	if err := m.Check(); err != nil {
		return request.Answer{}, err
	}
	if request.Media(m.ContentType) != request.JSON {
		return request.Answer{}, request.Unsupported(request.JSON)
	}
	owner, err := callerOf(ctx, s, m.Caller)
	if err != nil {
		return request.Answer{}, err
	}
	return s.once.Do(ctx, &m, engine.IdemKey{Caller: m.Caller, Route: m.Route, Key: m.Key}, body, func(b request.Basis) (request.Plan, error) {
		one := &createItem{base: b.Base}
		c, err := decodeCreate(body)
		if err != nil {
			return nil, err
		}
		if err := s.fillItem(one, c, owner, &m, b); err != nil && !b.Resumed {
			return nil, err
		}
		return &triggerPlan{fire: one.row.FireAt, store: func(ctx context.Context) (request.Answer, bool, error) {
			touched, err := s.storeItems(ctx, owner, []*createItem{one}, b)
			switch {
			case err != nil:
				return request.Answer{}, touched, err
			case one.err != nil:
				return request.Answer{}, false, one.err
			}
			return request.Answer{Status: http.StatusCreated, Body: append(one.appendResult(nil), '\n')}, true, nil
		}}, nil
	})
}

// RegisterBatch answers POST /v1/triggers:batch with status 200 and
// {"results":[…],"accepted","rejected"}. The body is a JSON array or NDJSON. There is one result
// per item, in order: {"trigger_id","fire_at"} or {"error":{"code","field","detail"}}. A bad item
// does not fail the other items.
func (s *Service) RegisterBatch(ctx context.Context, m request.Meta, body []byte) (request.Answer, error) {
	if err := m.Check(); err != nil {
		return request.Answer{}, err
	}
	owner, err := callerOf(ctx, s, m.Caller)
	if err != nil {
		return request.Answer{}, err
	}
	return s.once.Do(ctx, &m, engine.IdemKey{Caller: m.Caller, Route: m.Route, Key: m.Key}, body, func(b request.Basis) (request.Plan, error) {
		var items []*createItem
		p := &triggerPlan{}
		err := eachItem(m.ContentType, body, s.cfg.MaxBatch, func(i int, raw []byte) {
			it := &createItem{base: b.Base.Item(i)}
			items = append(items, it)
			c, err := decodeCreate(raw)
			if err != nil {
				it.err = err
				return
			}
			_ = s.fillItem(it, c, owner, &m, b) // fillItem stores the error in the item
			p.fire = max(p.fire, it.row.FireAt)
		})
		if err != nil {
			return nil, err
		}
		p.store = func(ctx context.Context) (request.Answer, bool, error) {
			if touched, err := s.storeItems(ctx, owner, items, b); err != nil {
				return request.Answer{}, touched, err
			}
			return batchAnswer(items), true, nil
		}
		return p, nil
	})
}

// triggerPlan is a checked request that can be stored. It implements request.Plan.
type triggerPlan struct {
	fire  int64 // latest fire time of its triggers, ms since 1970
	store func(ctx context.Context) (a request.Answer, touched bool, err error)
}

// Frozen implements request.Plan. A trigger has no partitions and no blocks. Frozen returns 1 for
// both, because 0 could be replaced by a default value in an engine.
func (p *triggerPlan) Frozen() (fire int64, partitions uint16, block uint32) { return p.fire, 1, 1 }

// Store implements request.Plan.
func (p *triggerPlan) Store(ctx context.Context) (a request.Answer, final, touched bool, err error) {
	a, touched, err = p.store(ctx)
	return a, err == nil, touched, err
}

// Release implements request.Plan.
func (p *triggerPlan) Release() {}

// createItem is one trigger of a request, or the error for which it was refused.
type createItem struct {
	base notify.Base
	row  engine.Trigger // without an ID if the item was refused before its row was made
	err  error
}

// fillItem makes the row of an item. If the item is refused, fillItem stores the error in the item
// and returns the error.
func (s *Service) fillItem(item *createItem, c *Create, owner *engine.Caller, m *request.Meta, b request.Basis) error {
	var u *callbackURL
	var late engine.LatePolicy
	var at int64
	if item.err = m.Load.Admit("trigger", 1); item.err != nil {
		return item.err
	}
	if at, item.err = s.resolveFireTime(&c.When, item.base, 0, b.Accepted); item.err == nil {
		u, late, item.err = s.checkCreate(c, owner)
	}
	if item.err != nil {
		return item.err
	}
	item.row = engine.Trigger{
		ID: idOf(item.base), Caller: owner.ID, URL: u.String(), Payload: c.Payload, Form: c.Form,
		Created: b.Accepted, FireAt: at, NextAt: at, Schedule: c.Schedule, MaxLateness: c.MaxLateness, Late: late,
		State: engine.TriggerPending, Trace: m.Trace, TraceState: m.TraceState,
	}
	return nil
}

// storeItems stores the accepted items: first their index rows, then their state rows. If an index
// row has no state row, a dispatcher drops its message. In the opposite order, a crash could leave
// a trigger that never fires.
func (s *Service) storeItems(ctx context.Context, owner *engine.Caller, items []*createItem, b request.Basis) (touched bool, err error) {
	if b.Resumed {
		// The rules and the allow-list may have changed since the first request. A trigger that the
		// first request stored was allowed then, so it is not refused now.
		if err := s.loadExisting(ctx, owner, items); err != nil {
			return false, err
		}
	}
	var rows []engine.Trigger
	var index []engine.Timer
	for _, it := range items {
		if it.err == nil {
			rows = append(rows, it.row)
			index = append(index, indexRow(it.base, &it.row))
		}
	}
	if len(rows) == 0 {
		return false, nil
	}
	if err := s.cfg.Gate(); err != nil {
		return b.Resumed, err
	}
	if err := s.checkMaxPending(ctx, owner, len(rows), b); err != nil {
		return false, err
	}
	began := time.Now()
	if b.Resumed {
		// The index row of the first request may have been released already. Its message was then
		// dropped because there was no state row. Writing the same index row again would have no
		// effect.
		makeDistinct(index, began)
	}
	if err := s.cfg.Later.Put(ctx, index); err != nil {
		return true, unavailable("timer_store", err)
	}
	s.cfg.hit("trigger-indexed")
	won, err := s.cfg.Triggers.Create(ctx, rows)
	if err != nil {
		return true, unavailable("trigger_store", err)
	}
	created := 0
	for _, w := range won {
		if w {
			created++
		} else if !b.Resumed {
			return true, &notify.Error{Kind: notify.KindInternal, Code: "id_taken", Msg: "a trigger with the new id exists already"}
		}
	}
	s.cfg.hit("trigger-created")
	if err := s.rewriteIndex(ctx, began, index); err != nil {
		return true, err
	}
	s.cfg.Census.add(owner.ID, created)
	s.cfg.Events.created(owner.ID, created)
	return true, nil
}

// rewriteIndex writes the index rows again if writing the state rows took too long. In the meantime
// a dispatcher may have found no state rows for the index rows, and may have dropped the messages.
func (s *Service) rewriteIndex(ctx context.Context, began time.Time, index []engine.Timer) error {
	if time.Since(began) < s.cfg.Orphan/2 {
		return nil
	}
	makeDistinct(index, time.Now())
	if err := s.cfg.Later.Put(ctx, index); err != nil {
		return unavailable("timer_store", err)
	}
	return nil
}

// makeDistinct gives each due index row a new time: now. So the store treats it as a new row and
// releases it, even if the same row was released before and its message is gone. Index rows that
// are not due cannot have been released, so makeDistinct does not change them.
func makeDistinct(index []engine.Timer, now time.Time) {
	for i := range index {
		index[i].FireAt = max(index[i].FireAt, now.UnixMilli())
	}
}

// loadExisting looks up the items whose triggers already exist. If such an item is refused by the
// present rules, it is accepted with the stored row. Other existing items keep the stored fire
// time, unless the trigger was rescheduled.
func (s *Service) loadExisting(ctx context.Context, owner *engine.Caller, items []*createItem) error {
	ids := make([]string, len(items))
	for i, it := range items {
		ids[i] = idOf(it.base)
	}
	rows, err := s.cfg.Triggers.Get(ctx, ids)
	if err != nil {
		return unavailable("trigger_store", err)
	}
	for i, it := range items {
		if rows[i].ID == "" || rows[i].Caller != owner.ID {
			continue
		}
		if it.err != nil {
			it.row, it.err = rows[i], nil
		}
		if rows[i].Gen == 0 {
			it.row.FireAt = rows[i].FireAt // keep the stored time, even if the configured jitter has changed
		}
	}
	return nil
}

// checkMaxPending refuses a request that would exceed its caller's limit of waiting triggers.
func (s *Service) checkMaxPending(ctx context.Context, owner *engine.Caller, n int, b request.Basis) error {
	if b.Resumed {
		return nil // the first request has passed this check
	}
	most := orDefault(owner.MaxPending, s.cfg.MaxPending)
	full, err := s.cfg.Census.wouldExceed(ctx, owner.ID, n, most)
	if err != nil {
		return unavailable("trigger_store", err)
	}
	if full {
		return &notify.Error{
			Kind: notify.KindThrottled, Code: "too_many_pending", RetryAfter: recountEvery,
			Msg: "the caller has reached its limit of waiting triggers (max_pending); wait until some have fired",
		}
	}
	return nil
}

// appendResult appends {"trigger_id","fire_at"} to b.
func (it *createItem) appendResult(b []byte) []byte {
	b = append(b, `{"trigger_id":"`...)
	b = append(b, it.row.ID...)
	b = append(b, `","fire_at":"`...)
	b = time.UnixMilli(it.row.FireAt).UTC().AppendFormat(b, "2006-01-02T15:04:05.000Z07:00")
	return append(b, `"}`...)
}

func batchAnswer(items []*createItem) request.Answer {
	out := append(make([]byte, 0, 96*len(items)+64), `{"results":[`...)
	accepted := 0
	for i, it := range items {
		if i > 0 {
			out = append(out, ',')
		}
		if it.err != nil {
			out = request.AppendProblem(out, it.err)
			continue
		}
		out = it.appendResult(out)
		accepted++
	}
	out = append(out, `],"accepted":`...)
	out = strconv.AppendInt(out, int64(accepted), 10)
	out = append(out, `,"rejected":`...)
	out = strconv.AppendInt(out, int64(len(items)-accepted), 10)
	return request.Answer{Status: http.StatusOK, Body: append(out, "}\n"...)}
}
