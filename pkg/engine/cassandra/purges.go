package cassandra

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"slices"
)

// A purge goes by a list of its own: of the rows to look at when their time has come,
// by that time and key. It works a partition of the list off from its oldest entry, and
// removes what it went through with one delete of a range, so that the next one meets a
// single tombstone.

// purgePage bounds the entries that a purge reads at a time.
const purgePage = 200

// purgeEntry is one entry of the list of a purge.
type purgeEntry struct {
	at int64 // ms since 1970
	id []byte
}

// readListed returns the entry as it is stored.
func (e purgeEntry) listed(index string) listEntry {
	key := binary.BigEndian.AppendUint64(nil, uint64(e.at)^1<<63)
	return listEntry{"purge/" + index, e.at, append(key, e.id...)}
}

func purgeEntryOf(key []byte) purgeEntry {
	return purgeEntry{int64(binary.BigEndian.Uint64(key) ^ 1<<63), key[8:]}
}

// purgeLater adds an entry that is kept until keeps, ms since 1970 (0: until it is
// worked off).
func purgeLater(ctx context.Context, s *Store, index string, e purgeEntry, keeps int64) error {
	return addToList(ctx, s, keeps, e.listed(index))
}

// workOffPurges calls one with the entries before a time, some at a time, until most of them
// are gone. one says whether what it names was removed, and whether the entry must be
// looked at again; else the entry is removed.
func workOffPurges(ctx context.Context, s *Store, index string, before int64, most int, one func(purgeEntry) (gone, again bool, err error)) (gone int, err error) {
	if most <= 0 || before == math.MinInt64 {
		return 0, nil
	}
	settled, end := settledBefore(s), purgeEntry{at: before}.listed(index)
	parts, err := readBuckets(ctx, s, end.list, math.MinInt64, listBucket(before-1)*listShards+listShards-1)
	if err != nil {
		return 0, err
	}
	for _, part := range parts {
		n, left, err := workOffPurgePart(ctx, s, end, part, most-gone, one)
		if gone += n; err != nil || gone >= most {
			return gone, err
		}
		if !left && over(part) {
			if err := forgetBucketAt(ctx, s, settled, end.list, part); err != nil {
				return gone, err
			}
		}
	}
	return gone, nil
}

// workOffPurgePart is workOff of one partition, of the entries before end; left says that it
// may hold more.
func workOffPurgePart(ctx context.Context, s *Store, end listEntry, part int64, most int, one func(purgeEntry) (gone, again bool, err error)) (gone int, left bool, err error) {
	bucket, shard := listPart(part)
	behind := []byte{}
	for gone < most {
		at, n := settledBefore(s), min(purgePage, most-gone)
		keys, err := readListed(ctx, s, end.list, bucket, shard, ` AND id > ? ORDER BY id ASC LIMIT ?`, behind, n)
		if err != nil {
			return gone, true, err
		}
		full := len(keys) == n
		if i := slices.IndexFunc(keys, func(key []byte) bool { return bytes.Compare(key, end.key) >= 0 }); i >= 0 {
			keys, left = keys[:i], true
		}
		removed, again := make([]bool, len(keys)), make([]bool, len(keys))
		err = parallel(len(keys), func(i int) (err error) {
			removed[i], again[i], err = one(purgeEntryOf(keys[i]))
			return err
		})
		through := 0 // entries that need no other look, from the oldest on
		for i := range keys {
			if removed[i] {
				gone++
			}
			if through == i && !again[i] {
				through++
			}
		}
		left = left || through < len(keys)
		if err != nil {
			return gone, true, err
		}
		if through > 0 {
			behind = keys[through-1]
			if err := s.write(ctx, at, stmt{`DELETE FROM listings WHERE list = ? AND bucket = ? AND shard = ? AND id <= ?`, []any{end.list, bucket, shard, behind}}); err != nil {
				return gone, true, err
			}
		}
		if left || !full {
			return gone, left, nil
		}
	}
	return gone, true, nil
}
