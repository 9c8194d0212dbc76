package cassandra

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// List goes through the index by time. The cursor is the last place it looked at.
func (l deadLetters) List(ctx context.Context, f engine.DeadLetterFilter, cursor []byte, max int) (out []engine.DeadLetter, next []byte, err error) {
	if max <= 0 {
		return nil, nil, nil
	}
	behind := letterPlace{failed: math.MaxInt64}
	if cursor != nil {
		if len(cursor) != 8+letterIDLen {
			return nil, nil, notify.Invalid("bad_cursor", "cursor", "this cursor is not from a listing of dead letters")
		}
		behind = letterPlace{int64(binary.BigEndian.Uint64(cursor)), cursor[8:]}
	}
	// The day of the cursor is asked for from its place on; so is the time that
	// the filter ends at.
	if f.Until != 0 && f.Until-1 < behind.failed {
		behind = letterPlace{failed: f.Until - 1}
	}
	from := int64(math.MinInt64)
	if f.Since != 0 {
		from = f.Since / dayMs
	}
	days, err := l.s.notedBack(ctx, scopeFailed, from, behind.failed/dayMs)
	if err != nil {
		return nil, nil, err
	}
	last := behind
	for _, day := range days {
		place := behind
		for {
			n := min(letterPage, max-len(out)+1)
			page, err := l.places(ctx, day, place, n)
			if err != nil {
				return nil, nil, err
			}
			ids := make([][]byte, len(page))
			for i := range page {
				ids[i] = page[i].id
			}
			rows, have, err := l.letters(ctx, ids)
			if err != nil {
				return nil, nil, err
			}
			for i := range page {
				d := &rows[i].DeadLetter
				if !have[i] || d.Seq == 0 || !f.Matches(d) {
					continue
				}
				if len(out) == max {
					return out, append(binary.BigEndian.AppendUint64(nil, uint64(last.failed)), last.id...), nil
				}
				out = append(out, *d)
				last = page[i]
			}
			if len(page) < n {
				break
			}
			place = page[len(page)-1]
		}
	}
	return out, nil, nil
}

// letterPlace is a place in the index by time: newest first, then by id.
type letterPlace struct {
	failed int64
	id     []byte
}

func comparePlaces(a, b letterPlace) int {
	if a.failed != b.failed {
		if a.failed > b.failed {
			return -1
		}
		return 1
	}
	return bytes.Compare(a.id, b.id)
}

// places returns up to max places of a day behind one.
func (l deadLetters) places(ctx context.Context, day int64, behind letterPlace, max int) ([]letterPlace, error) {
	// The index orders by two columns in opposite directions, which one condition
	// cannot say: the rest of one time, then the times below it.
	read := func(out *[]letterPlace, shard int16, where string, args ...any) error {
		if len(*out) >= max {
			return nil
		}
		return l.s.rows(ctx, func(scan func(...any) bool) error {
			for {
				var p letterPlace
				if !scan(&p.failed, &p.id) {
					return nil
				}
				*out = append(*out, p)
			}
		}, `SELECT failed, id FROM dead_letters_by_time WHERE day = ? AND shard = ? AND `+where+` LIMIT ?`, append(append([]any{day, shard}, args...), max-len(*out))...)
	}
	id := behind.id
	if id == nil {
		id = []byte{}
	}
	var shards [letterShards][]letterPlace
	err := parallel(letterShards, func(i int) error {
		if behind.failed/dayMs == day {
			if err := read(&shards[i], int16(i), `failed = ? AND id > ?`, behind.failed, id); err != nil {
				return err
			}
		}
		return read(&shards[i], int16(i), `failed < ?`, behind.failed)
	})
	if err != nil {
		return nil, err
	}
	return mergeFirst(shards[:], comparePlaces, max), nil
}
