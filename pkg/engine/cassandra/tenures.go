package cassandra

import (
	"context"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Outcome rows are fenced by their timestamps: the timestamps of a tenure are below the
// timestamps of every later tenure, and of two writes Cassandra keeps the later timestamp, in
// whatever order they arrive and whatever the machines' clocks say. So no row
// costs a conditional write. A tenure costs one.

// timestamp is that of a row's write; now is for rows without a stamp.
func (t status) timestamp(ctx context.Context, r *notify.Row, now int64) (int64, error) {
	switch r.Stamp {
	case 0:
		return now, nil
	case engine.StampBeside:
		var at int64
		var v []byte
		_, err := t.s.get(ctx, selectRow, keyArgs(&r.Key), &at, &v)
		return at + 1, err
	}
	return r.Stamp, nil
}

// TakeOver implements engine.Status with one swap.
func (t status) TakeOver(ctx context.Context, topic string, partition int32) (engine.Tenure, error) {
	for {
		was, _, err := t.tenure(ctx, topic, partition)
		if err != nil {
			return engine.Tenure{}, err
		}
		next := engine.NextTenure(topic, partition, was, time.Now().UnixMicro())
		me := nonce()
		write := stmt{
			`UPDATE tenures SET start = ?, writer = ? WHERE topic = ? AND part = ? IF start = ?`,
			[]any{next.Start, me, topic, partition, was},
		}
		if was == 0 {
			write = stmt{
				`INSERT INTO tenures (topic, part, start, writer) VALUES (?, ?, ?, ?) IF NOT EXISTS`,
				[]any{topic, partition, next.Start, me},
			}
		}
		won, err := t.s.settle(ctx, fmt.Sprint("tenure of ", topic, "/", partition), func() (verdict, error) {
			now, writer, err := t.tenure(ctx, topic, partition)
			switch {
			case err != nil:
				return 0, err
			case now == was:
				return undone, nil
			case now == next.Start && writer == me:
				return done, nil
			}
			return lost, nil // or won, and followed by another: then a range is left out
		}, write)
		if err != nil || won {
			return next, err
		}
	}
}

// tenure returns where the last tenure of a partition begins; 0: there was none.
func (t status) tenure(ctx context.Context, topic string, partition int32) (start, writer int64, err error) {
	_, err = t.s.getSerial(ctx, `SELECT start, writer FROM tenures WHERE topic = ? AND part = ?`, []any{topic, partition}, &start, &writer)
	return start, writer, err
}

// Resume writes finished rows that are older than the tenure before once more,
// under this one: an owner in between may have read them before they were
// finished, and its claim would replace them. A row of the tenure before is the
// last one that its owner wrote.
func (t status) Resume(ctx context.Context, of engine.Tenure, keys []notify.RowKey) ([]notify.Row, error) {
	return t.read(ctx, keys, true, func(r *notify.Row, data []byte, at int64) error {
		if !r.Done || at >= of.Before {
			return nil
		}
		return t.s.write(ctx, of.Start, t.insert(r, data, of.Start))
	})
}
