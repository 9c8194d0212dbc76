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

// timestamp returns the timestamp of a row's write; now is for rows without a stamp.
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
	look := stmt{`SELECT start, writer FROM tenures WHERE topic = ? AND part = ?`, []any{topic, partition}}
	for {
		var was, writer int64 // 0: there was no tenure
		if _, err := t.s.getSerial(ctx, look.cql, look.args, &was, &writer); err != nil {
			return engine.Tenure{}, err
		}
		next := engine.NextTenure(topic, partition, was, time.Now().UnixMicro())
		me := nonce()
		won, err := t.s.swapVersion(ctx, versionSwap{
			what: fmt.Sprint("tenure of ", topic, "/", partition), from: was, to: next.Start, writer: me, readBack: look,
			elseLost: true, // it may have won and another followed: then a range of stamps stays unused
		}, stmt{
			`UPDATE tenures SET start = ?, writer = ? WHERE topic = ? AND part = ? IF start = ?`,
			[]any{next.Start, me, topic, partition, orNull(was)},
		})
		if err != nil || won {
			return next, err
		}
	}
}

// Resume implements engine.Status. It writes a finished row again, with a timestamp of this
// tenure, if the row is older than the previous tenure. Otherwise the owner of the previous
// tenure, who may have read the row before it was finished, could replace it by a claim that
// arrives late. A row of the previous tenure itself is the last one that its owner wrote.
func (t status) Resume(ctx context.Context, tenure engine.Tenure, keys []notify.RowKey) ([]notify.Row, error) {
	return t.readRows(ctx, keys, true, func(r *notify.Row, data []byte, at int64) error {
		if !r.Done || at >= tenure.Before {
			return nil
		}
		return t.s.write(ctx, tenure.Start, t.insert(r, data, tenure.Start))
	})
}
