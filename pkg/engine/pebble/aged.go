package pebble

import (
	"bytes"
	"context"
	"encoding/binary"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Aged returns the contract that removes old outcomes, cancellations and campaigns.
func (s *Store) Aged() engine.Aged { return aged{s} }

type aged struct{ s *Store }

// PurgeOutcomes deletes rows one by one. A range would be cheaper, but a worker may
// meanwhile write the claim of an old request into it: a schedule of last year that
// fires now.
//
// Keys begin with the time of the request, and no row is older than its request: the
// scan ends there, and reads no younger rows.
func (a aged) PurgeOutcomes(ctx context.Context, closed, open int64) (total int, err error) {
	r := span{timeKey(0), timeKey(max(closed, open))}
	for {
		var gone [][]byte
		n := -1
		err := a.s.each(r, func(k, v []byte) (bool, error) {
			if err := sometimes(ctx, &n); err != nil {
				return false, err
			}
			var row notify.Row
			if !readRowKey(k, &row.Key) || !decodeRow(v, &row) {
				return false, unread("outcome row", k, v, rowVersion)
			}
			limit := open
			if row.Done {
				limit = closed
			}
			if row.Updated < limit {
				gone = append(gone, bytes.Clone(k))
			}
			return len(gone) < manyAtOnce, nil
		})
		if err != nil || len(gone) == 0 {
			return total, err
		}
		if err := a.delete(ctx, gone); err != nil {
			return total, err
		}
		total += len(gone)
		if len(gone) < manyAtOnce {
			return total, nil
		}
		r.From = append(gone[len(gone)-1], 0)
	}
}

func (a aged) delete(ctx context.Context, keys [][]byte) error {
	return a.s.commit.write(ctx, func(tx tx) {
		for _, k := range keys {
			tx.delete(k)
		}
	}, nil)
}

// PurgeCancels follows the versions, which are in the order of time, and stops at the
// first that is young.
func (a aged) PurgeCancels(ctx context.Context, before int64) (total int, err error) {
	for {
		var gone [][]byte // of each one its version and its scope
		var last bool     // the newest is among them, or a young one was met
		n := 0
		err := a.s.each(under([]byte{tCancelSeq}), func(k, v []byte) (bool, error) {
			if n++; n > manyAtOnce+1 {
				return false, ctx.Err()
			}
			c, ok, err := a.s.cancels.Get(ctx, string(v))
			if err == nil && !ok {
				err = corrupt("version without cancellation", k)
			}
			if last = err == nil && c.At >= before; last || err != nil {
				return false, err
			}
			gone = append(gone, bytes.Clone(k), key(tCancel, string(v)))
			return true, nil
		})
		if err != nil {
			return total, translate(err)
		}
		full := n > manyAtOnce+1
		if !last && !full { // all there are: the newest keeps the number of its version
			gone = gone[:max(0, len(gone)-2)]
		}
		if len(gone) == 0 {
			return total, nil
		}
		if err := a.delete(ctx, gone); err != nil {
			return total, err
		}
		if total += len(gone) / 2; !full {
			return total, nil
		}
	}
}

// PurgeCampaigns looks at the head of each campaign: ids are made by clients.
func (a aged) PurgeCampaigns(ctx context.Context, before int64) (total int, err error) {
	var old []string
	n := -1
	err = a.s.each(under([]byte{tCampaign}), func(k, v []byte) (bool, error) {
		if err := sometimes(ctx, &n); err != nil {
			return false, err
		}
		d := reader{b: v}
		if _, created := d.string(), d.int(); created < before {
			old = append(old, string(k[1:]))
		}
		return true, nil
	})
	if err != nil {
		return 0, err
	}
	for _, id := range old {
		gone, err := a.purgeCampaign(ctx, id, before)
		if err != nil {
			return total, err
		}
		if gone {
			total++
		}
	}
	return total, nil
}

func (a aged) purgeCampaign(ctx context.Context, id string, before int64) (bool, error) {
	k := key(tCampaign, id)
	unlock, err := a.s.locks.lock(ctx, string(k))
	if err != nil {
		return false, err
	}
	parts, seen := appendStr([]byte{tPart}, id), appendStr([]byte{tPartSeen}, id)
	h, ok, err := campaigns(a).head(id)
	var newest []byte
	if err == nil && ok {
		newest, err = a.s.get(binary.BigEndian.AppendUint32(bytes.Clone(parts), uint32(h.Parts-1)))
	}
	young := len(newest) >= 16 && notify.Base(newest[:16]).Time().UnixMilli() >= before
	if err != nil || !ok || young || h.Created >= before {
		unlock()
		return false, err
	}
	err = a.s.commit.write(ctx, func(tx tx) {
		tx.delete(k)
		tx.deleteRange(parts, after(parts))
		tx.deleteRange(seen, after(seen))
	}, func(error) { unlock() })
	return err == nil, err
}
