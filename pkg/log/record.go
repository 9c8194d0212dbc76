package log

import (
	"fmt"
	"time"
)

// Record is one record of a topic. On the way in, Partition -1 means: by the
// murmur2 hash of the key (see notify.Partition), or any partition when Key is nil;
// Offset is ignored, and a zero Time means now. Time has millisecond precision.
type Record struct {
	Topic     string
	Partition int32
	Offset    int64
	Key       []byte
	Value     []byte
	Headers   []Header
	Time      time.Time
}

// Header is a named value beside a record's value.
type Header struct {
	Key   string
	Value []byte
}

// LostHeader marks a record that stands for records which the log has lost: it
// has the last of their offsets, and nothing else. Groups take it for done, and
// so go on behind them; readers are handed it, to know that there is a gap.
const LostHeader = "notifyd-lost"

// Lost reports whether the record stands for lost ones.
func (r *Record) Lost() bool {
	return len(r.Headers) == 1 && r.Headers[0].Key == LostHeader && r.Value == nil
}

// size is what a record is counted as against byte limits.
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

// String is "topic/partition".
func (tp TopicPartition) String() string { return fmt.Sprintf("%s/%d", tp.Topic, tp.Partition) }
