package log

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
)

// rawBatch builds a record batch of Kafka's format 2. The header of a batch has these fields. Each
// line has the offset of the field in bytes, its name and its size in bytes:
//
//	 0  first offset   8 bytes, big-endian like all fields
//	 8  length         4: number of bytes after this field
//	12  leader epoch   4: -1, because the broker writes it
//	16  magic          1: 2
//	17  checksum       4: CRC-32C of all bytes after this field
//	21  attributes     2
//	23  last offset    4: difference to the first offset
//	27  first time     8: ms since 1970
//	35  latest time    8: ms since 1970
//	43  producer      14: producer id, epoch and first sequence number; all -1, which means no producer
//	57  records        4: number of records
type rawBatch struct {
	buf           []byte
	count         int32
	first, latest int64 // time of the first record, and latest time of any record, ms since 1970
}

const (
	rawHeader = 61
	// A batch with one record is larger than the record's key and value together, by at most
	// recordOverhead bytes.
	recordOverhead = rawHeader + 40
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// add appends a record without headers. The parameter ms is the record's time, in ms since 1970. A
// nil key means that the record has no key.
func (b *rawBatch) add(key, value []byte, ms int64) {
	if b.count == 0 {
		b.buf = append(b.buf[:0], make([]byte, rawHeader)...)
		b.first, b.latest = ms, ms
	}
	b.latest = max(b.latest, ms)
	keyLen := int64(len(key))
	if key == nil {
		keyLen = -1
	}
	since, offset := ms-b.first, int64(b.count)
	size := 2 + varintLen(since) + varintLen(offset) + varintLen(keyLen) + len(key) + varintLen(int64(len(value))) + len(value)
	buf := binary.AppendVarint(b.buf, int64(size))
	buf = append(buf, 0) // attributes
	buf = binary.AppendVarint(buf, since)
	buf = binary.AppendVarint(buf, offset)
	buf = append(binary.AppendVarint(buf, keyLen), key...)
	buf = append(binary.AppendVarint(buf, int64(len(value))), value...)
	b.buf = append(buf, 0) // headers
	b.count++
}

// varintLen returns the number of bytes that binary.AppendVarint writes for v.
func varintLen(v int64) int {
	return (bits.Len64(uint64(v<<1^v>>63)|1) + 6) / 7
}

// finish writes the header and returns the batch, which aliases b's buffer.
func (b *rawBatch) finish() []byte {
	h := b.buf
	binary.BigEndian.PutUint64(h, 0)
	binary.BigEndian.PutUint32(h[8:], uint32(len(h)-12))
	binary.BigEndian.PutUint32(h[12:], 1<<32-1)
	h[16] = 2
	binary.BigEndian.PutUint16(h[21:], 0)
	binary.BigEndian.PutUint32(h[23:], uint32(b.count-1))
	binary.BigEndian.PutUint64(h[27:], uint64(b.first))
	binary.BigEndian.PutUint64(h[35:], uint64(b.latest))
	for i := 43; i < 57; i++ {
		h[i] = 0xff
	}
	binary.BigEndian.PutUint32(h[57:], uint32(b.count))
	binary.BigEndian.PutUint32(h[17:], crc32.Checksum(h[21:], castagnoli))
	return h
}
