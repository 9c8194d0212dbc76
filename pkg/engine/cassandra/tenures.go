package cassandra

import (
	"context"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// The timestamps of outcome rows make sure that a former owner cannot replace a row of a
// later owner. The timestamps of a tenure are less than the timestamps of every later
// tenure. Cassandra keeps the write with the greatest timestamp, in whatever order the
// writes arrive and even if the clocks of machines differ. So a row needs no conditional
// write. Only TakeOver needs one conditional write.

// timestamp returns the timestamp for the write of a row. Normally this is the row's stamp. If the
// row has no stamp, timestamp returns clockTime, a timestamp of the clock. If the stamp is
// StampBeside, it returns the timestamp of the stored row plus 1.
func (t status) timestamp(ctx context.Context, r *notify.Row, clockTime int64) (int64, error) {
	switch r.Stamp {
	case 0:
		return clockTime, nil
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
		var was, writer int64 // 0: the partition had no tenure
		if _, err := t.s.getSerial(ctx, look.cql, look.args, &was, &writer); err != nil {
			return engine.Tenure{}, err
		}
		next := engine.NextTenure(topic, partition, was, time.Now().UnixMicro())
		me := nonce()
		won, err := t.s.swapVersion(ctx, versionSwap{
			what: fmt.Sprint("the tenure of partition ", partition, " of the topic ", topic), from: was, to: next.Start, writer: me, readBack: look,
			elseLost: true, // if the swap was applied and another tenure followed, the stamps of this tenure stay unused
		}, stmt{
			`UPDATE tenures SET start = ?, writer = ? WHERE topic = ? AND part = ? IF start = ?`,
			[]any{next.Start, me, topic, partition, orNull(was)},
		})
		if err != nil || won {
			return next, err
		}
	}
}

// Resume implements engine.Status. If a row is Done and is older than the previous tenure, Resume
// writes the row again with a timestamp of this tenure. This protects the row from a late write of
// the previous owner: that owner may have read the row before it was Done, and its claim may still
// arrive. A Done row of the previous owner itself needs no protection, because an owner writes
// nothing after a Done row.
func (t status) Resume(ctx context.Context, tenure engine.Tenure, keys []notify.RowKey) ([]notify.Row, error) {
	return t.readRows(ctx, keys, true, func(r *notify.Row, data []byte, at int64) error {
		if !r.Done || at >= tenure.Before {
			return nil
		}
		return t.s.write(ctx, tenure.Start, t.insert(r, data, tenure.Start))
	})
}
