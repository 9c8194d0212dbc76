package cassandra

import (
	"context"
	"encoding/binary"
	"math"
	"slices"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/store"
)

// List implements engine.DeadLetters. It reads the list that is ordered by the time of the last
// failure. The cursor is the position of the last dead letter that List returned.
func (l deadLetters) List(ctx context.Context, f engine.DeadLetterFilter, cursor []byte, max int) (out []engine.DeadLetter, next []byte, err error) {
	if max <= 0 {
		return nil, nil, nil
	}
	behind := letterPlace{failed: math.MaxInt64}
	if cursor != nil {
		if len(cursor) != 8+store.LetterIDLen {
			return nil, nil, notify.Invalid("bad_cursor", "cursor", "this cursor is not from a listing of dead letters")
		}
		behind = letterPlace{int64(binary.BigEndian.Uint64(cursor)), cursor[8:]}
	}
	if f.Until != 0 && f.Until-1 < behind.failed {
		behind = letterPlace{failed: f.Until - 1} // this position is before all dead letters of that time
	}
	last, more := behind, false
	// A position without an id is before all dead letters of its time.
	var from []byte
	switch {
	case behind.id != nil:
		from = letterEntry(behind.failed, behind.id).key
	case behind.failed != math.MaxInt64:
		from = binary.BigEndian.AppendUint64(nil, uint64(behind.failed)+1)
	}
	err = walkList(ctx, l.s, listLetters, from, behind.failed, max, func(keys [][]byte) (bool, error) {
		for some := range slices.Chunk(keys, letterPage) {
			ids := make([][]byte, len(some))
			for i, key := range some {
				if len(key) != 8+store.LetterIDLen {
					return false, corrupt("an entry in the list of dead letters")
				}
				ids[i] = placeOf(key).id
			}
			rows, err := l.letters(ctx, ids)
			if err != nil {
				return false, err
			}
			for i := range some {
				p, d := placeOf(some[i]), &rows[i].DeadLetter
				if p.failed < f.Since {
					return false, nil
				}
				if d.Seq == 0 || !f.Matches(d) {
					continue
				}
				if len(out) == max {
					more = true
					return false, nil
				}
				out, last = append(out, *d), p
			}
		}
		return true, nil
	})
	if err != nil || !more {
		return out, nil, err
	}
	return out, append(binary.BigEndian.AppendUint64(nil, uint64(last.failed)), last.id...), nil
}

// letterPlace is a position in the list that is ordered by the time of the last failure. The
// newest dead letter is first. Dead letters of the same time are ordered by id, ascending.
type letterPlace struct {
	failed int64
	id     []byte
}

// letterEntry returns the entry of a dead letter in the list. A list is read from the
// highest key down, but List must return ids of the same time in ascending order. So the
// key contains the inverted id.
func letterEntry(failed int64, id []byte) listEntry {
	return listEntry{listLetters, failed, invert(binary.BigEndian.AppendUint64(nil, uint64(max(failed, 0))), id)}
}

func placeOf(key []byte) letterPlace {
	return letterPlace{int64(binary.BigEndian.Uint64(key)), invert(nil, key[8:])}
}

// invert appends the bytes of b to target, each byte with all its bits inverted.
func invert(target, b []byte) []byte {
	for _, c := range b {
		target = append(target, ^c)
	}
	return target
}
