package embedded

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/notifyd/notifyd/pkg/log"
)

var errRecord = errors.New("a record of the batch is damaged")

// appendRecords appends the records of an undamaged batch to dst. It skips records whose offset is
// below minOffset. The parameter raw holds the bytes of the batch. If the batch is not compressed,
// the records alias these bytes. appendRecords appends nothing from a control batch.
func appendRecords(dst []log.Record, tp log.TopicPartition, raw []byte, minOffset int64) ([]log.Record, error) {
	attributes := binary.BigEndian.Uint16(raw[atAttributes:])
	if attributes&controlBatch != 0 {
		return dst, nil
	}
	first, stamp := int64(binary.BigEndian.Uint64(raw)), int64(binary.BigEndian.Uint64(raw[atFrom:]))
	appendTime := attributes&logAppendTime != 0
	latest := int64(binary.BigEndian.Uint64(raw[atTo:]))
	add := func(delta int32, ms int64, key, value []byte, headers []log.Header) {
		offset := first + int64(delta)
		if offset < minOffset {
			return
		}
		at := stamp + ms
		if appendTime {
			at = latest
		}
		dst = append(dst, log.Record{Topic: tp.Topic, Partition: tp.Partition, Offset: offset, Key: key, Value: value, Headers: headers, Time: time.UnixMilli(at)})
	}
	if attributes&compression == 0 {
		count := int(int32(binary.BigEndian.Uint32(raw[atCount:])))
		rest := raw[batchHeader:]
		dst = slices.Grow(dst, min(count, len(rest)/minRecord))
		for range count {
			var r plainRecord
			var ok bool
			if rest, ok = r.read(rest); !ok {
				return dst, errRecord
			}
			add(r.offset, r.ms, r.key, r.value, r.headers)
		}
		return dst, nil
	}
	var b kmsg.RecordBatch
	if err := b.ReadFrom(raw); err != nil {
		return dst, err
	}
	rs, err := kfake.BatchRecords(b)
	if err != nil {
		return dst, err
	}
	for i := range rs {
		r := &rs[i]
		var headers []log.Header
		for _, h := range r.Headers {
			headers = append(headers, log.Header{Key: h.Key, Value: h.Value})
		}
		add(r.OffsetDelta, r.TimestampDelta64, r.Key, r.Value, headers)
	}
	return dst, nil
}

// The attributes of a batch.
const (
	compression   = 0x07
	logAppendTime = 0x08
	controlBatch  = 0x20
)

// minRecord is the size of the smallest record, in bytes.
const minRecord = 7

// plainRecord is a record of an uncompressed batch. It is stored in this form:
//
//	varint length of the rest, 1 byte of attributes, varint difference to the time of the
//	batch's first record, varint difference to the first offset, key, value, varint number
//	of headers {key, value}
//
// Before each key and value is its length as a varint. The length -1 means nil.
type plainRecord struct {
	offset     int32
	ms         int64
	key, value []byte
	headers    []log.Header
}

func (r *plainRecord) read(b []byte) (rest []byte, ok bool) {
	size, n := binary.Varint(b)
	if n <= 0 || size < 1 || size > int64(len(b)-n) {
		return nil, false
	}
	b, rest = b[n:n+int(size)], b[n+int(size):]
	b = b[1:]
	var offset, headers int64
	if r.ms, b, ok = varint(b); !ok {
		return nil, false
	}
	if offset, b, ok = varint(b); !ok {
		return nil, false
	}
	r.offset = int32(offset)
	if r.key, b, ok = bytesOf(b); !ok {
		return nil, false
	}
	if r.value, b, ok = bytesOf(b); !ok {
		return nil, false
	}
	if headers, b, ok = varint(b); !ok || headers < 0 || headers > int64(len(b)) {
		return nil, false
	}
	for range headers {
		var key, value []byte
		if key, b, ok = bytesOf(b); !ok {
			return nil, false
		}
		if value, b, ok = bytesOf(b); !ok {
			return nil, false
		}
		r.headers = append(r.headers, log.Header{Key: string(key), Value: value})
	}
	return rest, len(b) == 0
}

func varint(b []byte) (int64, []byte, bool) {
	v, n := binary.Varint(b)
	if n <= 0 {
		return 0, nil, false
	}
	return v, b[n:], true
}

func bytesOf(b []byte) (v, rest []byte, ok bool) {
	n, b, ok := varint(b)
	switch {
	case !ok || n > int64(len(b)):
		return nil, nil, false
	case n < 0:
		return nil, b, true
	}
	return b[:n:n], b[n:], true
}
