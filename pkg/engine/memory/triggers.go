package memory

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/pkg/engine"
)

// Triggers returns the contract of triggers.
func (s *Store) Triggers() engine.Triggers { return triggers{s} }

type triggers struct{ *Store }

// cloneTrigger copies a row. An engine does not keep nil and empty apart.
func cloneTrigger(t engine.Trigger) engine.Trigger {
	t.Payload, t.Schedule, t.Log = cloneSome(t.Payload), cloneSome(t.Schedule), cloneSome(t.Log)
	for i := range t.Log {
		t.Log[i].Body = cloneSome(t.Log[i].Body)
	}
	return t
}

func cloneSome[E any](s []E) []E {
	if len(s) == 0 {
		return nil
	}
	return slices.Clone(s)
}

func (s triggers) Create(ctx context.Context, ts []engine.Trigger) ([]bool, error) {
	if err := check(ctx); err != nil {
		return nil, err
	}
	for i := range ts {
		if err := ts[i].Check(); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	won := make([]bool, len(ts))
	for i, t := range ts {
		if _, ok := s.triggered[t.ID]; !ok {
			t.Version = 1
			s.triggered[t.ID] = cloneTrigger(t)
			won[i] = true
		}
	}
	return won, nil
}

func (s triggers) Get(ctx context.Context, ids []string) ([]engine.Trigger, error) {
	if err := check(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]engine.Trigger, len(ids))
	for i, id := range ids {
		out[i] = cloneTrigger(s.triggered[id])
	}
	return out, nil
}

func (s triggers) Swap(ctx context.Context, ss []engine.TriggerSwap) ([]bool, error) {
	if err := check(ctx); err != nil {
		return nil, err
	}
	for i := range ss {
		if err := ss[i].New.Check(); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	won := make([]bool, len(ss))
	for i, x := range ss {
		if stored, ok := s.triggered[x.New.ID]; ok && stored.Version == x.Old {
			x.New.Version = x.Old + 1
			s.triggered[x.New.ID] = cloneTrigger(x.New)
			won[i] = true
		}
	}
	return won, nil
}

func (s triggers) List(ctx context.Context, caller string, state engine.TriggerState, behind engine.TriggerCursor, max int) ([]engine.Trigger, error) {
	if err := check(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []engine.Trigger
	for _, t := range s.triggered {
		if (caller == "" || t.Caller == caller) && (state == 0 || t.State == state || state == engine.TriggerOpen && t.IsOpen()) && (behind.ID == "" || t.ID < behind.ID) {
			out = append(out, cloneTrigger(t))
		}
	}
	slices.SortFunc(out, func(a, b engine.Trigger) int { return strings.Compare(b.ID, a.ID) })
	return out[:clamp(len(out), max)], nil
}

func (s triggers) CountOpen(ctx context.Context, caller string, most int) (int, error) {
	rows, err := s.List(ctx, caller, engine.TriggerOpen, engine.TriggerCursor{}, most+1)
	return len(rows), err
}

func (s triggers) Purge(ctx context.Context, before int64, max int) (int, error) {
	if err := check(ctx); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var gone []engine.Trigger
	for _, t := range s.triggered {
		if t.State.Terminal() && t.Ended < before {
			gone = append(gone, t)
		}
	}
	slices.SortFunc(gone, func(a, b engine.Trigger) int {
		return cmp.Or(cmp.Compare(a.Ended, b.Ended), strings.Compare(a.ID, b.ID))
	})
	gone = gone[:clamp(len(gone), max)]
	for _, t := range gone {
		delete(s.triggered, t.ID)
	}
	return len(gone), nil
}
