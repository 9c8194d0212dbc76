package log

import (
	"fmt"
	"time"
)

// Record is one record of a topic. In an append, some fields have a special meaning. Partition -1 means
// the partition that the murmur2 hash of the key determines (see notify.Partition), or any partition if
// Key is nil. Offset is ignored. A zero Time means now. Time has millisecond precision.
type Record struct {
	Topic     string
	Partition int32
	Offset    int64
	Key       []byte
	Value     []byte
	Headers   []Header
	Time      time.Time
}

// Header is a named value of a record.
type Header struct {
	Key   string
	Value []byte
}

// LostHeader marks a record that replaces records which the log has lost. The marked record has the
// offset of the last lost record and no value. Groups treat it as done and continue after it. A Reader
// passes it to its caller, so that the caller learns of the gap.
const LostHeader = "notifyd-lost"

// Lost reports whether the record replaces lost records.
func (r *Record) Lost() bool {
	return len(r.Headers) == 1 && r.Headers[0].Key == LostHeader && r.Value == nil
}

// size returns the number of bytes of the record that count for size limits.
func (r *Record) size() int {
	n := len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return n
}

// TopicPartition names one partition of one topic.
type TopicPartition struct {
	Topic     string
	Partition int32
}

// String returns "topic/partition".
func (tp TopicPartition) String() string { return fmt.Sprintf("%s/%d", tp.Topic, tp.Partition) }
