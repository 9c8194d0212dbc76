package memory

import (
	"bytes"
	"context"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

type idem struct{ *Store }

// change stores what decide returns for the stored reservation; nil: nothing.
func (s idem) change(ctx context.Context, key engine.IdemKey, decide func(engine.Reservation, bool) (*engine.Reservation, error)) error {
	if err := check(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.keys[key]
	r.Body = bytes.Clone(r.Body)
	next, err := decide(r, ok)
	if err == nil && next != nil {
		keep := *next
		keep.Body = bytes.Clone(keep.Body)
		s.keys[key] = keep
	}
	return err
}

func (s idem) Reserve(ctx context.Context, r engine.Reservation, now int64) (out engine.Reservation, won bool, err error) {
	err = s.change(ctx, r.Key, func(stored engine.Reservation, ok bool) (*engine.Reservation, error) {
		if ok && stored.Expires > now {
			out = stored
			return nil, nil
		}
		out, won = r, true
		return &r, nil
	})
	return out, won, err
}

func (s idem) TakeOver(ctx context.Context, old engine.Reservation, owner string, leaseUntil int64) (won bool, err error) {
	err = s.change(ctx, old.Key, func(stored engine.Reservation, ok bool) (*engine.Reservation, error) {
		if !ok || stored.Done || stored.LeaseUntil != old.LeaseUntil || stored.Owner != old.Owner {
			return nil, nil
		}
		stored.Owner, stored.LeaseUntil = owner, leaseUntil
		won = true
		return &stored, nil
	})
	return won, err
}

func (s idem) Freeze(ctx context.Context, r engine.Reservation) error {
	return s.change(ctx, r.Key, func(stored engine.Reservation, ok bool) (*engine.Reservation, error) {
		if !ok || stored.Done || stored.Owner != r.Owner {
			return nil, conflict("reservation_lost", "somebody else works on this request")
		}
		stored.Fire, stored.Partitions, stored.BlockSize, stored.Version = r.Fire, r.Partitions, r.BlockSize, r.Version
		return &stored, nil
	})
}

func (s idem) Finish(ctx context.Context, key engine.IdemKey, status int, body []byte, expires int64) error {
	return s.change(ctx, key, func(stored engine.Reservation, ok bool) (*engine.Reservation, error) {
		if !ok {
			return nil, notify.NotFound("reservation")
		}
		stored.Done, stored.Status, stored.Body, stored.Expires = true, status, body, expires
		return &stored, nil
	})
}

func (s idem) Release(ctx context.Context, held engine.Reservation) error {
	return s.change(ctx, held.Key, func(stored engine.Reservation, ok bool) (*engine.Reservation, error) {
		switch {
		case ok && stored.Done:
			return nil, conflict("reservation_done", "the request was answered")
		case ok && (stored.Owner != held.Owner || stored.LeaseUntil != held.LeaseUntil):
			return nil, conflict("reservation_lost", "somebody else works on this request")
		}
		delete(s.keys, held.Key)
		return nil, nil
	})
}

func (s idem) Purge(ctx context.Context, now int64) (n int, err error) {
	if err := check(ctx); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, r := range s.keys {
		if r.Expires <= now {
			delete(s.keys, k)
			n++
		}
	}
	return n, nil
}
