package cassandra

import (
	"context"
	"math"
)

// numbered is a log whose rows have the numbers 1, 2, 3 and so on. Row n is inserted by
// compare and swap, and only when row n-1 exists. So numbers have no gaps, and a reader
// that continues after row n misses no row. A block of logBlock rows is a partition.
type numbered struct {
	s    *Store
	name string
}

// logBlock is how many rows a partition has.
const logBlock = 1024

func logOf(s *Store, name string) numbered { return numbered{s, "log/" + name} }

// logRow is one row.
type logRow struct {
	n    int64
	data []byte
}

func blockOf(n int64) int64 { return (n - 1) / logBlock }

// lastRow returns the last row, or a row with n = 0 if the log is empty. The result includes every
// appendRows that returned before the call.
func (l numbered) lastRow(ctx context.Context) (r logRow, err error) {
	err = eachBucket(ctx, l.s, l.name, 0, math.MaxInt64, true, func(block int64) (bool, error) {
		// The last block may be empty, because a writer may have stored the note of the
		// block and then no row.
		ok, err := l.s.getSerial(ctx, `SELECT n, data FROM logs WHERE log = ? AND block = ? ORDER BY n DESC LIMIT 1`, []any{l.name, block}, &r.n, &r.data)
		return !ok, err
	})
	return r, err
}

// appendRows appends the rows that fill returns: all of them or none. The function fill gets the
// last row, and the number of rows that still fit into the block (room). It must not return more
// rows than that; the caller appends the rest with another call. appendRows returns the number of
// the first new row and how many rows it has appended. If another process appends first, appendRows
// calls fill again.
func (l numbered) appendRows(ctx context.Context, fill func(last logRow, room int) ([][]byte, error)) (first int64, n int, err error) {
	unlock, err := l.s.locks.lock(ctx, l.name)
	if err != nil {
		return 0, 0, err
	}
	defer unlock()
	for try := 0; ; try++ {
		last, err := l.lastRow(ctx)
		if err != nil {
			return 0, 0, err
		}
		first := last.n + 1
		block := blockOf(first)
		rows, err := fill(last, int((block+1)*logBlock-last.n))
		if err != nil || len(rows) == 0 {
			return 0, 0, err
		}
		if err := noteBucket(ctx, l.s, l.name, block, 0, true); err != nil {
			return 0, 0, err
		}
		me := nonce()
		stmts := make([]stmt, len(rows))
		for i, data := range rows {
			stmts[i] = stmt{`INSERT INTO logs (log, block, n, writer, data) VALUES (?, ?, ?, ?, ?) IF NOT EXISTS`, []any{l.name, block, first + int64(i), me, data}}
		}
		look := stmt{`SELECT n, writer FROM logs WHERE log = ? AND block = ? AND n = ?`, []any{l.name, block, first}}
		won, err := l.s.swapVersion(ctx, versionSwap{what: "a row of " + l.name, to: first, writer: me, readBack: look}, stmts...)
		if err != nil {
			return 0, 0, err
		}
		if won {
			return first, len(rows), nil
		}
		if err := backoff(ctx, try); err != nil {
			return 0, 0, err
		}
	}
}

// eachRow calls fn with the rows whose numbers are in (after, upTo], in order. It stops when fn
// returns false.
func (l numbered) eachRow(ctx context.Context, after, upTo uint64, fn func(r logRow) (bool, error)) error {
	const most = math.MaxInt64 / 2
	from, to := int64(min(after, most))+1, int64(min(upTo, most))
	if from > to {
		return nil
	}
	blocks, err := readBuckets(ctx, l.s, l.name, blockOf(from), blockOf(to))
	if err != nil {
		return err
	}
	for _, block := range blocks {
		more := true
		err := l.s.rows(ctx, func(scan func(...any) bool) error {
			for more {
				var r logRow
				if !scan(&r.n, &r.data) {
					return nil
				}
				var err error
				if more, err = fn(r); err != nil {
					return err
				}
			}
			return nil
		}, `SELECT n, data FROM logs WHERE log = ? AND block = ? AND n >= ? AND n <= ?`, l.name, block, from, to)
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// readPage returns up to max rows whose numbers are in (after, upTo].
func (l numbered) readPage(ctx context.Context, after, upTo uint64, max int) (out []logRow, err error) {
	if max <= 0 {
		return nil, nil
	}
	err = l.eachRow(ctx, after, upTo, func(r logRow) (bool, error) {
		out = append(out, r)
		return len(out) < max, nil
	})
	return out, err
}
