package cassandra

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"slices"
)

// Each kind of purge has its own list. An entry of the list consists of the time from which a row
// may be purged and the key of the row. In each partition of the list, the purge first removes the
// rows of a page of entries, earliest time first. Then it removes these entries with one delete of
// a range, so that the next purge finds only one tombstone.

// purgePage is how many entries a purge reads at a time.
const purgePage = 200

// purgeEntry is one entry of the list of a purge.
type purgeEntry struct {
	at int64 // from when the row may be purged, ms since 1970
	id []byte
}

// listed returns the entry as a listEntry of the purge that is named index.
func (e purgeEntry) listed(index string) listEntry {
	key := binary.BigEndian.AppendUint64(nil, uint64(e.at)^1<<63)
	return listEntry{"purge/" + index, e.at, append(key, e.id...)}
}

func purgeEntryOf(key []byte) purgeEntry {
	return purgeEntry{int64(binary.BigEndian.Uint64(key) ^ 1<<63), key[8:]}
}

// purgeLater adds an entry to the list of a purge. The entry is kept until endMs, ms since
// 1970. If endMs is 0, it is kept until a purge removes it.
func purgeLater(ctx context.Context, s *Store, index string, e purgeEntry, endMs int64) error {
	return addToList(ctx, s, endMs, e.listed(index))
}

// purgeListed calls purgeOne for the entries whose time is earlier than beforeMs, several at the
// same time. purgeOne returns gone = true if it removed the row. It returns again = true if the
// entry must stay for the next purge; purgeListed removes all other entries. It stops after
// maxRows removed rows, and returns the number of removed rows.
func purgeListed(ctx context.Context, s *Store, index string, beforeMs int64, maxRows int, purgeOne func(purgeEntry) (gone, again bool, err error)) (gone int, err error) {
	if maxRows <= 0 || beforeMs == math.MinInt64 {
		return 0, nil
	}
	tidyAt, end := tidyTimestamp(s), purgeEntry{at: beforeMs}.listed(index)
	parts, err := readBuckets(ctx, s, end.list, math.MinInt64, listBucket(beforeMs-1)*listShards+listShards-1)
	if err != nil {
		return 0, err
	}
	for _, part := range parts {
		n, left, err := purgeListPart(ctx, s, end, part, maxRows-gone, purgeOne)
		if gone += n; err != nil || gone >= maxRows {
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

// purgeListPart does what purgeListed does, for one partition. It calls purgeOne for the entries
// before the entry end. The result left is true if the partition may still have entries.
func purgeListPart(ctx context.Context, s *Store, end listEntry, part int64, maxRows int, purgeOne func(purgeEntry) (gone, again bool, err error)) (gone int, left bool, err error) {
	bucket, shard := listPart(part)
	behind := []byte{}
	for gone < maxRows {
		at, n := tidyTimestamp(s), min(purgePage, maxRows-gone)
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
		through := 0 // how many entries, beginning with the earliest, may be removed
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
