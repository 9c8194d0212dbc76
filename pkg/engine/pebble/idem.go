package pebble

import (
	"context"
	"encoding/binary"
	"math"
	"sync"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Idem returns the contract of idempotency keys.
func (s *Store) Idem() engine.Idem { return &s.idem }

type idem struct {
	s     *Store
	purge sync.Mutex
}

func (i *idem) load(s *Store) error { i.s = s; return nil }

func idemKey(k engine.IdemKey) []byte {
	b := append(make([]byte, 0, 5+len(k.Caller)+len(k.Route)+len(k.Key)), tIdem)
	b = appendStr(b, k.Caller)
	b = appendStr(b, k.Route)
	return append(b, k.Key...)
}

func expiryKey(expires int64, idem []byte) []byte {
	return append(appendInt([]byte{tIdemExpiry}, expires), idem[1:]...)
}

func checkIdemKey(k engine.IdemKey) error {
	if len(k.Caller) > 1<<16-1 || len(k.Route) > 1<<16-1 {
		return notify.Invalid("bad_key", "key", "caller and route have at most 65,535 bytes")
	}
	return nil
}

const reservationVersion = 1

func appendReservation(b []byte, r *engine.Reservation) []byte {
	done := byte(0)
	if r.Done {
		done = 1
	}
	b = append(b, reservationVersion, done)
	b = append(b, r.Fingerprint[:]...)
	b = append(b, r.Base[:]...)
	b = appendInt64(b, r.Accepted)
	b = appendInt64(b, r.Fire)
	b = binary.AppendUvarint(b, uint64(r.Partitions))
	b = binary.AppendUvarint(b, uint64(r.BlockSize))
	b = binary.AppendUvarint(b, uint64(r.Version))
	b = appendLen(b, r.Owner)
	b = appendInt64(b, r.LeaseUntil)
	b = appendInt64(b, r.Expires)
	b = appendInt64(b, int64(r.Status))
	return appendBytes(b, r.Body)
}

// decodeReservation reads v, which r keeps.
func decodeReservation(v []byte, r *engine.Reservation) bool {
	d := reader{b: v}
	if version := d.byte(); version == 0 || version > reservationVersion {
		return false
	}
	r.Done = d.byte() == 1
	copy(r.Fingerprint[:], d.fixed(len(r.Fingerprint)))
	copy(r.Base[:], d.fixed(len(r.Base)))
	r.Accepted = d.int()
	r.Fire = d.int()
	r.Partitions = uint16(d.uint())
	r.BlockSize = uint32(d.uint())
	r.Version = uint16(d.uint())
	r.Owner = d.string()
	r.LeaseUntil = d.int()
	r.Expires = d.int()
	r.Status = int(d.int())
	r.Body = d.bytes()
	return d.done()
}

// find returns what is stored under k.
func (i *idem) find(k []byte) (r engine.Reservation, ok bool, err error) {
	v, err := i.s.get(k)
	if err != nil || v == nil {
		return r, false, err
	}
	if !decodeReservation(v, &r) {
		return engine.Reservation{}, false, unread("reservation", k, v, reservationVersion)
	}
	return r, true, nil
}

// change runs decide on what is stored under the key, and stores the
// reservation it returns; nil stores nothing.
func (i *idem) change(ctx context.Context, key engine.IdemKey, decide func(stored engine.Reservation, ok bool) (*engine.Reservation, error)) error {
	if err := checkIdemKey(key); err != nil {
		return err
	}
	k := idemKey(key)
	unlock, err := i.s.locks.lock(ctx, string(k))
	if err != nil {
		return err
	}
	stored, ok, err := i.find(k)
	if err != nil {
		unlock()
		return err
	}
	stored.Key = key
	next, err := decide(stored, ok)
	if err != nil || next == nil {
		unlock()
		return err
	}
	v := appendReservation(nil, next)
	return i.s.commit.write(ctx, func(tx tx) {
		if ok && stored.Expires != next.Expires {
			tx.delete(expiryKey(stored.Expires, k))
		}
		if !ok || stored.Expires != next.Expires {
			tx.set(expiryKey(next.Expires, k), nil)
		}
		tx.set(k, v)
	}, func(error) { unlock() })
}

func (i *idem) Reserve(ctx context.Context, r engine.Reservation, now int64) (out engine.Reservation, won bool, err error) {
	err = i.change(ctx, r.Key, func(stored engine.Reservation, ok bool) (*engine.Reservation, error) {
		if ok && stored.Expires > now {
			out = stored
			return nil, nil
		}
		out, won = r, true
		return &r, nil
	})
	if err != nil {
		return engine.Reservation{}, false, err
	}
	return out, won, nil
}

func (i *idem) TakeOver(ctx context.Context, old engine.Reservation, owner string, leaseUntil int64) (won bool, err error) {
	err = i.change(ctx, old.Key, func(stored engine.Reservation, ok bool) (*engine.Reservation, error) {
		if !ok || stored.Done || stored.LeaseUntil != old.LeaseUntil || stored.Owner != old.Owner {
			return nil, nil
		}
		stored.Owner, stored.LeaseUntil = owner, leaseUntil
		won = true
		return &stored, nil
	})
	return won && err == nil, err
}

func (i *idem) Freeze(ctx context.Context, r engine.Reservation) error {
	return i.change(ctx, r.Key, func(stored engine.Reservation, ok bool) (*engine.Reservation, error) {
		if !ok || stored.Done || stored.Owner != r.Owner {
			return nil, errReservationLost()
		}
		stored.Fire, stored.Partitions, stored.BlockSize, stored.Version = r.Fire, r.Partitions, r.BlockSize, r.Version
		return &stored, nil
	})
}

func errReservationLost() error {
	return &notify.Error{Kind: notify.KindConflict, Code: "reservation_lost", Msg: "somebody else works on this request"}
}

func (i *idem) Finish(ctx context.Context, key engine.IdemKey, status int, body []byte, expires int64) error {
	return i.change(ctx, key, func(stored engine.Reservation, ok bool) (*engine.Reservation, error) {
		if !ok {
			return nil, notify.NotFound("reservation")
		}
		stored.Done, stored.Status, stored.Body, stored.Expires = true, status, body, expires
		return &stored, nil
	})
}

func (i *idem) Release(ctx context.Context, held engine.Reservation) error {
	if err := checkIdemKey(held.Key); err != nil {
		return err
	}
	k := idemKey(held.Key)
	unlock, err := i.s.locks.lock(ctx, string(k))
	if err != nil {
		return err
	}
	stored, ok, err := i.find(k)
	switch {
	case err != nil || !ok:
	case stored.Done:
		err = &notify.Error{Kind: notify.KindConflict, Code: "reservation_done", Msg: "the request was answered"}
	case stored.Owner != held.Owner || stored.LeaseUntil != held.LeaseUntil:
		err = errReservationLost()
	}
	if err != nil || !ok {
		unlock()
		return err
	}
	return i.s.commit.write(ctx, func(tx tx) {
		tx.delete(k)
		tx.delete(expiryKey(stored.Expires, k))
	}, func(error) { unlock() })
}

func (i *idem) Purge(ctx context.Context, now int64) (total int, err error) {
	now = min(now, math.MaxInt64-1)
	i.purge.Lock()
	defer i.purge.Unlock()
	for {
		n, more, err := i.purgeSome(ctx, now)
		total += n
		if err != nil || !more {
			return total, err
		}
	}
}

// purgeSome removes up to manyAtOnce keys.
func (i *idem) purgeSome(ctx context.Context, now int64) (n int, more bool, err error) {
	var entries [][]byte
	var keys []string
	err = i.s.each(span{[]byte{tIdemExpiry}, appendInt([]byte{tIdemExpiry}, now+1)}, func(k, _ []byte) (bool, error) {
		entries = append(entries, append([]byte(nil), k...))
		keys = append(keys, string(tIdem)+string(k[9:]))
		return len(keys) < manyAtOnce, nil
	})
	if err != nil || len(keys) == 0 {
		return 0, false, err
	}
	unlock, err := i.s.locks.lock(ctx, keys...)
	if err != nil {
		return 0, false, err
	}
	var gone [][]byte
	for _, k := range keys {
		r, ok, err := i.find([]byte(k))
		if err != nil {
			unlock()
			return 0, false, err
		}
		if ok && r.Expires <= now { // it may have been taken again meanwhile
			gone = append(gone, []byte(k), expiryKey(r.Expires, []byte(k)))
			n++
		}
	}
	err = i.s.commit.write(ctx, func(tx tx) {
		for _, k := range entries {
			tx.delete(k)
		}
		for _, k := range gone {
			tx.delete(k)
		}
	}, func(error) { unlock() })
	if err != nil {
		return 0, false, err
	}
	return n, len(keys) == manyAtOnce, nil
}
