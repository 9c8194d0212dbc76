package store

import (
	"context"
	"math"

	"github.com/notifyd/notifyd/pkg/codec"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
)

// Idem stores reservations. Each Idempotency-Key has a row with its reservation and an index row
// with the time at which the reservation expires. One swap changes both rows.
type Idem struct{ rows rows.Rows }

var reservationRecord = Record[engine.Reservation]{"a reservation", 1, func(c *codec.Codec, r *engine.Reservation) {
	c.Raw(r.Fingerprint[:])
	c.Raw(r.Base[:])
	codec.Num(c, &r.Accepted)
	codec.Num(c, &r.Fire)
	codec.Num(c, &r.Partitions)
	codec.Num(c, &r.BlockSize)
	codec.Num(c, &r.Version)
	c.Str(&r.Owner)
	codec.Num(c, &r.LeaseUntil)
	codec.Num(c, &r.Expires)
	c.Bool(&r.Done)
	codec.Num(c, &r.Status)
	c.Bytes(&r.Body)
}}

// idemName returns the last part of the keys of a reservation's rows. It is the same in both keys.
func idemName(k engine.IdemKey) (string, error) {
	if len(k.Caller) > maxPart || len(k.Route) > maxPart {
		return "", notify.Invalid("bad_key", "key", "caller and route must have at most 65,535 bytes each")
	}
	b := appendStr(make([]byte, 0, 4+len(k.Caller)+len(k.Route)+len(k.Key)), k.Caller)
	return string(append(appendStr(b, k.Route), k.Key...)), nil
}

func idemExpiry(expires int64, name string) string { return "e" + orderedTime(expires) + name }

// replace returns the change that replaces an old reservation (the parameter before) by a new one
// (the parameter after). The parameter value is the stored form of the old reservation; nil means
// that none is stored. If the new reservation is nil, the change removes the old one.
func (Idem) replace(name string, before *engine.Reservation, value []byte, after *engine.Reservation) rows.Change {
	key := "k" + name
	c := rows.Change{Part: tableIdem, Expect: []rows.Row{{Key: key, Value: value}}, Set: []rows.Row{{Key: key}}}
	moves := value == nil || after == nil || before.Expires != after.Expires
	if value != nil && moves {
		c.Set = append(c.Set, rows.Row{Key: idemExpiry(before.Expires, name)})
	}
	if after == nil {
		return c
	}
	c.Set[0].Value = reservationRecord.Pack(after)
	if moves { // the condition on the key's row also protects its index row
		c.Insert = []rows.Row{{Key: idemExpiry(after.Expires, name), Value: []byte{}}}
	}
	return c
}

// readReservation returns a stored reservation and its packed value. The value is nil if no reservation
// is stored.
func (i Idem) readReservation(ctx context.Context, name string) (r engine.Reservation, value []byte, err error) {
	got, err := i.rows.Get(ctx, tableIdem, "k"+name)
	if err == nil && got[0] != nil {
		err = reservationRecord.Unpack(got[0], &r)
	}
	if err != nil {
		return engine.Reservation{}, nil, err
	}
	return r, got[0], nil
}

// update changes a reservation. It calls decide with the stored reservation, or with nil if there
// is none, and stores the reservation that decide returns. If decide returns true for keep, update
// changes nothing. If another process has changed the reservation meanwhile, update calls decide
// again.
func (i Idem) update(ctx context.Context, key engine.IdemKey, decide func(stored *engine.Reservation) (next *engine.Reservation, keep bool, err error)) error {
	name, err := idemName(key)
	if err != nil {
		return err
	}
	for {
		old, value, err := i.readReservation(ctx, name)
		if err != nil {
			return err
		}
		old.Key = key
		stored := new(old)
		if value == nil {
			stored = nil
		}
		next, keep, err := decide(stored)
		if err != nil || keep {
			return err
		}
		if won, err := i.rows.Swap(ctx, i.replace(name, &old, value, next)); won || err != nil {
			return err
		}
	}
}

// Reserve implements request.Idem. It first tries to store r, because most keys are new. It reads
// the stored reservation only if there is one already.
func (i Idem) Reserve(ctx context.Context, r engine.Reservation, now int64) (out engine.Reservation, won bool, err error) {
	name, err := idemName(r.Key)
	if err != nil {
		return engine.Reservation{}, false, err
	}
	if won, err = i.rows.Swap(ctx, i.replace(name, nil, nil, &r)); err == nil && !won {
		err = i.update(ctx, r.Key, func(stored *engine.Reservation) (*engine.Reservation, bool, error) {
			if won = stored == nil || stored.Expires <= now; won {
				return &r, false, nil
			}
			out = *stored
			return nil, true, nil
		})
	}
	if won {
		out = r
	}
	if err != nil {
		return engine.Reservation{}, false, err
	}
	return out, won, nil
}

// TakeOver implements request.Idem.
func (i Idem) TakeOver(ctx context.Context, old engine.Reservation, owner string, leaseUntil int64) (won bool, err error) {
	err = i.update(ctx, old.Key, func(stored *engine.Reservation) (*engine.Reservation, bool, error) {
		won = stored != nil && !stored.Done && stored.LeaseUntil == old.LeaseUntil && stored.Owner == old.Owner
		if won {
			stored.Owner, stored.LeaseUntil = owner, leaseUntil
		}
		return stored, !won, nil
	})
	return won && err == nil, err
}

func errReservationLost() error {
	return &notify.Error{Kind: notify.KindConflict, Code: "reservation_lost", Msg: "another process works on this request"}
}

// Freeze implements request.Idem.
func (i Idem) Freeze(ctx context.Context, r engine.Reservation) error {
	return i.update(ctx, r.Key, func(stored *engine.Reservation) (*engine.Reservation, bool, error) {
		if stored == nil || stored.Done || stored.Owner != r.Owner {
			return nil, false, errReservationLost()
		}
		stored.Fire, stored.Partitions, stored.BlockSize, stored.Version = r.Fire, r.Partitions, r.BlockSize, r.Version
		return stored, false, nil
	})
}

// Finish implements request.Idem.
func (i Idem) Finish(ctx context.Context, key engine.IdemKey, status int, body []byte, expires int64) error {
	return i.update(ctx, key, func(stored *engine.Reservation) (*engine.Reservation, bool, error) {
		if stored == nil {
			return nil, false, notify.NotFound("reservation")
		}
		stored.Done, stored.Status, stored.Body, stored.Expires = true, status, body, expires
		return stored, false, nil
	})
}

// Release implements request.Idem.
func (i Idem) Release(ctx context.Context, held engine.Reservation) error {
	return i.update(ctx, held.Key, func(stored *engine.Reservation) (_ *engine.Reservation, keep bool, err error) {
		switch {
		case stored == nil:
			keep = true
		case stored.Done:
			err = &notify.Error{Kind: notify.KindConflict, Code: "reservation_done", Msg: "the request was answered already"}
		case stored.Owner != held.Owner || stored.LeaseUntil != held.LeaseUntil:
			err = errReservationLost()
		}
		return nil, keep, err
	})
}

// Purge implements request.Idem. It removes an expired key only if the key's row has not changed
// since Purge read it. If it has changed, another request may have reserved the key again.
func (i Idem) Purge(ctx context.Context, now int64) (int, error) {
	return purgeByTime(ctx, i.rows, tableIdem, "e", now, math.MaxInt, func(entries []string) (cs []rows.Change, gone int, err error) {
		keys := make([]string, len(entries))
		for n, e := range entries {
			keys[n] = "k" + e[len("e")+8:]
		}
		stored, err := i.rows.Get(ctx, tableIdem, keys...)
		c := rows.Change{Part: tableIdem}
		for n, v := range stored {
			var r engine.Reservation
			if v == nil || reservationRecord.Unpack(v, &r) == nil && r.Expires > now {
				continue
			}
			gone++
			c.Expect = append(c.Expect, rows.Row{Key: keys[n], Value: v})
			c.Set = append(c.Set, rows.Row{Key: entries[n]}, rows.Row{Key: keys[n]})
		}
		return []rows.Change{c}, gone, err
	})
}
