package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"math"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Audit returns the contract of the audit log.
func (s *Store) Audit() engine.Audit { return audit{s} }

type audit struct{ s *Store }

func (a audit) Append(ctx context.Context, next func(engine.AuditRow) (engine.AuditRow, error)) (engine.AuditRow, error) {
	unlock, err := a.s.locks.lock(ctx, string([]byte{tAudit}))
	if err != nil {
		return engine.AuditRow{}, err
	}
	last, err := a.Last(ctx)
	if err != nil {
		unlock()
		return engine.AuditRow{}, err
	}
	seq := last.Seq + 1
	row, err := next(last)
	if err != nil {
		unlock()
		return engine.AuditRow{}, err
	}
	row.Seq = seq
	v, err := json.Marshal(row)
	if err != nil {
		unlock()
		return engine.AuditRow{}, notify.Invalid("bad_audit", "", "the row cannot be stored")
	}
	err = a.s.commit.write(ctx, func(tx tx) { tx.set(uintKey(tAudit, seq), v) }, func(error) { unlock() })
	if err != nil {
		return engine.AuditRow{}, err
	}
	return row, nil
}

func (a audit) read(k, v []byte) (row engine.AuditRow, err error) {
	if len(k) != 9 || json.Unmarshal(v, &row) != nil || row.Seq != binary.BigEndian.Uint64(k[1:]) {
		return engine.AuditRow{}, corrupt("audit row", bytes.Clone(k))
	}
	return row, nil
}

func (a audit) Rows(ctx context.Context, behind uint64, max int) (out []engine.AuditRow, err error) {
	if max <= 0 || behind == math.MaxUint64 {
		return nil, nil
	}
	err = a.s.each(span{uintKey(tAudit, behind+1), []byte{tAudit + 1}}, func(k, v []byte) (bool, error) {
		row, err := a.read(k, v)
		if err != nil {
			return false, err
		}
		out = append(out, row)
		return len(out) < max, ctx.Err()
	})
	return out, translate(err)
}

func (a audit) Last(context.Context) (row engine.AuditRow, err error) {
	err = a.s.eachBack(under([]byte{tAudit}), func(k, v []byte) (bool, error) {
		var rerr error
		row, rerr = a.read(k, v)
		return false, rerr
	})
	return row, err
}
