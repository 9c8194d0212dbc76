package store

import (
	"context"
	"strconv"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/rows"
)

// Audit keeps the audit log. Rows are only added, never changed.
//
// The rows are stored in numbered blocks. Each block is a partition. One more partition stores the
// number of the last block. Append increases this number before it writes the first row of a new
// block.
type Audit struct{ rows rows.Partitions }

// AuditOver returns the audit log that is stored in p.
func AuditOver(p rows.Partitions) *Audit { return &Audit{p} }

const (
	auditBlock     = 1024 // rows in each partition
	lastAuditBlock = "last"
)

func partOfAudit(block uint64) rows.Partition {
	return rows.Partition{Table: tableAudit.Table, Name: strconv.FormatUint(block, 10)}
}

func blockOfAudit(seq uint64) uint64 { return (seq - 1) / auditBlock }

// lastBlock returns the number of the last block, and the stored value of this number.
func (a *Audit) lastBlock(ctx context.Context) (block uint64, stored []byte, err error) {
	return loadRecord[uint64](ctx, a.rows, tableAudit, lastAuditBlock)
}

// Append calls makeRow with the last row, or with the zero AuditRow if there is no row. It adds the
// row that makeRow returns, and gives it the next Seq. If another process has added a row
// meanwhile, Append calls makeRow again, with that row. So makeRow always gets the row directly
// before the new row.
func (a *Audit) Append(ctx context.Context, makeRow func(engine.AuditRow) (engine.AuditRow, error)) (engine.AuditRow, error) {
	none := engine.AuditRow{}
	end, err := a.rows.Turn(ctx, tableAudit)
	if err != nil {
		return none, err
	}
	defer end()
	for {
		last, block, stored, err := a.lastRow(ctx)
		if err != nil {
			return none, err
		}
		row, err := makeRow(last)
		if err != nil {
			return none, err
		}
		row.Seq = last.Seq + 1
		v, err := pack("bad_audit", "audit row", row)
		if err != nil {
			return none, err
		}
		if in := blockOfAudit(row.Seq); in > block {
			n, err := pack("bad_audit", "block number", in)
			if err != nil {
				return none, err
			}
			do := rows.Change{Part: tableAudit, Expect: []rows.Row{{Key: lastAuditBlock, Value: stored}}, Set: []rows.Row{{Key: lastAuditBlock, Value: n}}}
			if won, err := a.rows.Swap(ctx, do); err != nil {
				return none, err
			} else if !won {
				continue
			}
		}
		key := num(row.Seq)
		won, err := a.rows.Swap(ctx, rows.Change{
			Part: partOfAudit(blockOfAudit(row.Seq)), Expect: []rows.Row{{Key: key}}, Set: []rows.Row{{Key: key, Value: v}},
		})
		switch {
		case err != nil:
			return none, err
		case won:
			return row, nil
		}
	}
}

func readAudit(r rows.Row) (engine.AuditRow, error) {
	row, err := unpack[engine.AuditRow](r)
	if err == nil && num(row.Seq) != r.Key {
		err = corrupt(r.Key)
	}
	return row, err
}

// Rows returns up to max rows whose Seq is greater than the parameter after, ascending.
func (a *Audit) Rows(ctx context.Context, after uint64, max int) (out []engine.AuditRow, err error) {
	last, _, err := a.lastBlock(ctx)
	if err != nil {
		return nil, err
	}
	for block := after / auditBlock; block <= last && len(out) < max; block++ {
		page, err := scanList(ctx, a.rows, partOfAudit(block), rows.Range{After: num(after)}, max-len(out), readAudit)
		if err != nil {
			return nil, err
		}
		out = append(out, page...)
	}
	return out, nil
}

// lastRow returns the last row of the audit log, and the results of lastBlock. If the last block is
// still empty, lastRow searches the blocks before it.
func (a *Audit) lastRow(ctx context.Context) (row engine.AuditRow, block uint64, stored []byte, err error) {
	block, stored, err = a.lastBlock(ctx)
	for in := block; err == nil && row.Seq == 0; in-- {
		var page []engine.AuditRow
		page, err = scanList(ctx, a.rows, partOfAudit(in), rows.Range{Back: true}, 1, readAudit)
		if len(page) > 0 {
			row = page[0]
		}
		if in == 0 {
			break
		}
	}
	return row, block, stored, err
}

// Last returns the last row, or the zero AuditRow if there is no row.
func (a *Audit) Last(ctx context.Context) (engine.AuditRow, error) {
	row, _, _, err := a.lastRow(ctx)
	return row, err
}
