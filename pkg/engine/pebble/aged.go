package pebble

import (
	"bytes"
	"context"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Aged returns the contract that removes old outcomes, cancellations and campaigns. Of
// the latter two pkg/store does.
func (s *Store) Aged() engine.Aged { return aged{s} }

type aged struct{ *Store }

// manyAtOnce bounds what a purge holds locked and in one batch.
const manyAtOnce = 1000

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
		err := a.each(r, func(k, v []byte) (bool, error) {
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
		if err := a.remove(ctx, gone); err != nil {
			return total, err
		}
		total += len(gone)
		if len(gone) < manyAtOnce {
			return total, nil
		}
		r.From = append(gone[len(gone)-1], 0)
	}
}

func (a aged) remove(ctx context.Context, keys [][]byte) error {
	return a.commit.write(ctx, func(tx tx) {
		for _, k := range keys {
			tx.delete(k)
		}
	}, nil)
}
