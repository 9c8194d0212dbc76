package cassandra

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"slices"
)

// A purge has a list of its own. It names the rows to purge by the time from which they may
// be purged, and key. The purge handles each partition of the list from its oldest entry on,
// and removes the handled entries with one delete of a range. So the next purge meets a
// single tombstone.

// purgePage is how many entries a purge reads at a time.
const purgePage = 200

// purgeEntry is one entry of the list of a purge.
type purgeEntry struct {
	at int64 // ms since 1970
	id []byte
}

// listed returns the entry as an entry of the list of an index.
func (e purgeEntry) listed(index string) listEntry {
	key := binary.BigEndian.AppendUint64(nil, uint64(e.at)^1<<63)
	return listEntry{"purge/" + index, e.at, append(key, e.id...)}
}

func purgeEntryOf(key []byte) purgeEntry {
	return purgeEntry{int64(binary.BigEndian.Uint64(key) ^ 1<<63), key[8:]}
}

// purgeLater adds an entry that is kept until keeps, ms since 1970 (0: until a purge removes
// it).
func purgeLater(ctx context.Context, s *Store, index string, e purgeEntry, keeps int64) error {
	return addToList(ctx, s, keeps, e.listed(index))
}

// purgeListed calls purgeOne for the entries before a time, several at the same time, until
// most rows are removed. purgeOne returns whether it removed the row (gone), and whether the
// entry must stay for the next purge (again). purgeListed removes the other entries. It
// returns how many rows were removed.
func purgeListed(ctx context.Context, s *Store, index string, before int64, most int, purgeOne func(purgeEntry) (gone, again bool, err error)) (gone int, err error) {
	if most <= 0 || before == math.MinInt64 {
		return 0, nil
	}
	tidyAt, end := tidyTimestamp(s), purgeEntry{at: before}.listed(index)
	parts, err := readBuckets(ctx, s, end.list, math.MinInt64, listBucket(before-1)*listShards+listShards-1)
	if err != nil {
		return 0, err
	}
	for _, part := range parts {
		n, left, err := purgeListPart(ctx, s, end, part, most-gone, purgeOne)
		if gone += n; err != nil || gone >= most {
			return gone, err
		}
		if !left && isListPartOver(part) {
			if err := forgetBucketAt(ctx, s, tidyAt, end.list, part); err != nil {
				return gone, err
			}
		}
	}
	return gone, nil
}

// purgeListPart is purgeListed for one partition and the entries before end. left: the
// partition may hold more entries.
func purgeListPart(ctx context.Context, s *Store, end listEntry, part int64, most int, purgeOne func(purgeEntry) (gone, again bool, err error)) (gone int, left bool, err error) {
	bucket, shard := listPart(part)
	behind := []byte{}
	for gone < most {
		at, n := tidyTimestamp(s), min(purgePage, most-gone)
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
			removed[i], again[i], err = purgeOne(purgeEntryOf(keys[i]))
			return err
		})
		through := 0 // how many entries, from the oldest on, are handled and may be removed
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
