package memory

import (
	"context"
	"slices"

	"github.com/notifyd/notifyd/pkg/engine"
)

type holds struct{ *Store }

// Holds returns the contract of strict lanes.
func (s *Store) Holds() engine.Holds { return holds{s} }

type holdKey struct{ lane, user string }

func (s holds) Update(ctx context.Context, add, remove []engine.Hold) error {
	if err := check(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, h := range slices.Concat(remove, add) {
		k := holdKey{h.Lane, h.User}
		q := s.held[k]
		at := slices.IndexFunc(q, func(x engine.Hold) bool { return x.ID == h.ID && x.Epoch == h.Epoch })
		switch {
		case i < len(remove) && at >= 0:
			q = slices.Delete(q, at, at+1)
		case i < len(remove):
		case at >= 0:
			q[at] = h
		default:
			q = append(q, h)
		}
		if len(q) == 0 {
			delete(s.held, k)
		} else {
			s.held[k] = q
		}
	}
	return nil
}

func (s holds) Get(ctx context.Context, lane string, users []string) ([][]engine.Hold, error) {
	if err := check(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([][]engine.Hold, len(users))
	for i, u := range users {
		out[i] = slices.Clone(s.held[holdKey{lane, u}])
	}
	return out, nil
}
