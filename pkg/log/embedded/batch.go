package embedded

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/notifyd/notifyd/pkg/log"
)

// A segment is a sequence of Kafka's record batches. The checksum in the header of a batch covers only
// the bytes after the checksum:
//
//	 0  first offset   8 bytes, big-endian like the rest
//	 8  length         4: number of bytes after this field
//	12  leader epoch   4
//	16  magic          1: 2
//	17  checksum       4: CRC-32C of all bytes after this field
//	21  attributes     2
//	23  last offset    4: difference to the first offset
//	27  first time     8, ms since 1970
//	35  latest time    8
//	43  producer      14: id, epoch, sequence
//	57  records        4: number of records
//	61  the records
const (
	atLength, atEpoch, atMagic, atSum, atCovered = 8, 12, 16, 17, 21
	atAttributes, atLast, atFrom, atTo, atCount  = 21, 23, 27, 35, 57
	batchHeader                                  = 61
)

// batch describes an undamaged batch: its position in the segment, its offsets and its times.
type batch struct {
	pos, size int
	first     int64 // first offset
	count     int64 // number of offsets that the batch occupies
	epoch     int32
	from, to  int64 // earliest and latest time of its records, ms since 1970
}

func (b *batch) next() int64 { return b.first + b.count }

// readBatch returns the batch at the byte position pos of a segment. The result ok is false if no
// undamaged batch starts there.
func readBatch(raw []byte, pos int) (b batch, ok bool) {
	if pos < 0 || len(raw)-pos < batchHeader {
		return b, false
	}
	h := raw[pos:]
	n := int64(binary.BigEndian.Uint32(h[atLength:])) + atEpoch
	if n < batchHeader || n > int64(len(h)) || h[atMagic] != 2 {
		return b, false
	}
	h = h[:n]
	last := int64(int32(binary.BigEndian.Uint32(h[atLast:])))
	if last < 0 || binary.BigEndian.Uint32(h[atSum:]) != crc32.Checksum(h[atCovered:], castagnoli) {
		return b, false
	}
	return batch{
		pos: pos, size: int(n), first: int64(binary.BigEndian.Uint64(h)), count: last + 1,
		epoch: int32(binary.BigEndian.Uint32(h[atEpoch:])),
		from:  int64(binary.BigEndian.Uint64(h[atFrom:])), to: int64(binary.BigEndian.Uint64(h[atTo:])),
	}, true
}

// readdress returns a copy of a batch with a new first offset and leader epoch. It rewrites only
// header fields that the checksum does not cover.
func readdress(raw []byte, first int64, epoch int32) []byte {
	out := append([]byte(nil), raw...)
	binary.BigEndian.PutUint64(out, uint64(first))
	binary.BigEndian.PutUint32(out[atLength:], uint32(len(out)-atEpoch))
	binary.BigEndian.PutUint32(out[atEpoch:], uint32(epoch))
	out[atMagic] = 2
	return out
}

// maxMarker is the highest number of offsets in one marker. The limit exists because a batch stores
// this number in four bytes.
const maxMarker = 1 << 30

// markers returns batches that occupy the offsets [from, to) instead of lost records. Each batch
// holds one record with log.LostHeader, at the last offset of the batch. The parameter ms is the
// time of these records, in ms since 1970. With markers the offsets of a partition do not change:
// no offset is used twice, and no committed offset is outside the log.
func markers(from, to int64, epoch int32, ms int64) (out []byte) {
	for from < to {
		n := min(to-from, maxMarker)
		out = append(out, marker(from, n, epoch, ms)...)
		from += n
	}
	return out
}

func marker(first, n int64, epoch int32, ms int64) []byte {
	rec := kmsg.Record{OffsetDelta: int32(n - 1), Headers: []kmsg.Header{{Key: log.LostHeader}}}
	rec.Length = int32(len(rec.AppendTo(nil)) - 1) // Length does not count its own byte; a length of 0 takes one byte
	b := kmsg.RecordBatch{
		FirstOffset: first, PartitionLeaderEpoch: epoch, Magic: 2, LastOffsetDelta: int32(n - 1),
		FirstTimestamp: ms, MaxTimestamp: ms, ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1,
		NumRecords: 1, Records: rec.AppendTo(nil),
	}
	raw := b.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[atLength:], uint32(len(raw)-atEpoch))
	binary.BigEndian.PutUint32(raw[atSum:], crc32.Checksum(raw[atCovered:], castagnoli))
	return raw
}

// The index of a segment has 15 bytes for each batch: the version, the low byte of the checksum of the
// bytes that follow, the epoch, a time that the broker recomputes, and flags.
const (
	indexEntry   = 15
	indexVersion = 1
)

// indexEpoch returns the leader epoch of batch n according to the index of the segment. The second
// result is false if the index has no undamaged entry for the batch. Because the broker writes the
// batch first and then the entry, a batch whose write was cut by a kill has no entry.
func indexEpoch(index []byte, n int) (int32, bool) {
	if len(index) < (n+1)*indexEntry {
		return 0, false
	}
	e := index[n*indexEntry : (n+1)*indexEntry]
	if e[0] != indexVersion || e[1] != byte(crc32.Checksum(e[2:], castagnoli)) {
		return 0, false
	}
	return int32(binary.LittleEndian.Uint32(e[2:])), true
}

// indexOf returns the index for a segment that has only undamaged batches.
func indexOf(raw []byte) (out []byte) {
	for pos := 0; ; {
		b, ok := readBatch(raw, pos)
		if !ok {
			return out
		}
		pos += b.size
		var e [indexEntry]byte
		e[0] = indexVersion
		binary.LittleEndian.PutUint32(e[2:], uint32(b.epoch))
		e[14] = raw[b.pos+atAttributes+1] >> 4 & 1 // transactional
		e[1] = byte(crc32.Checksum(e[2:], castagnoli))
		out = append(out, e[:]...)
	}
}
