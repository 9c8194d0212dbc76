package log

import (
	"cmp"
	"context"
	"strconv"

	"github.com/notifyd/notifyd/pkg/notify"
)

// The names of the headers that Poison adds to a record for notifications-poison. They follow the
// headers that the record already has.
const (
	HeaderOriginTopic     = "notify-origin-topic"
	HeaderOriginPartition = "notify-origin-partition"
	HeaderOriginOffset    = "notify-origin-offset"
	HeaderCause           = "notify-cause"
	// HeaderCut is set if the record was too large and its value was cut. It holds the original size of
	// the value in bytes.
	HeaderCut = "notify-cut"
)

// keptValue, keptKey and keptCause are how many bytes Poison keeps of a record that is too large.
// They are enough to recognise the record.
const (
	keptValue = 64 << 10
	keptKey   = 1 << 10
	keptCause = 1 << 10
)

// Appender appends records durably, as Producer does.
type Appender interface {
	Append(ctx context.Context, recs []Record) error
}

// Poisoner copies a record to the poison topic if the record cannot be processed.
type Poisoner struct {
	Log   Appender
	Topic string // default notifications-poison
}

// Poison appends a copy of the record m, with its origin and the error cause, to the poison topic.
// Then it marks the record as done. If the append fails, Poison returns an error and does not mark
// the record as done. A crash between the two steps leaves two copies with the same origin.
//
// With the headers of its origin, a record of another producer may be larger than our size limit.
// Then Poison appends only the beginning of the record (HeaderCut). Otherwise the record would be
// retried for ever and would block its partition.
func (p *Poisoner) Poison(ctx context.Context, m *Msg, cause error) error {
	topic := cmp.Or(p.Topic, notify.TopicPoison)
	why := "unknown"
	if cause != nil {
		why = cause.Error()
	}
	hs := append(m.Headers[:len(m.Headers):len(m.Headers)], origin(m)...)
	hs = append(hs, Header{HeaderCause, []byte(why)})
	aside := Record{Topic: topic, Partition: -1, Key: m.Key, Value: m.Value, Headers: hs, Time: m.Time}
	err := p.Log.Append(ctx, []Record{aside})
	if notify.KindOf(err) == notify.KindTooLarge {
		aside.Key, aside.Value = m.Key[:min(len(m.Key), keptKey)], m.Value[:min(len(m.Value), keptValue)]
		aside.Headers = append(origin(m),
			Header{HeaderCause, []byte(why[:min(len(why), keptCause)])},
			Header{HeaderCut, strconv.AppendInt(nil, int64(len(m.Value)), 10)},
		)
		err = p.Log.Append(ctx, []Record{aside})
	}
	if err == nil {
		m.Done()
	}
	return err
}

// origin returns the headers that name the topic, partition and offset of a record.
func origin(m *Msg) []Header {
	return []Header{
		{HeaderOriginTopic, []byte(m.Topic)},
		{HeaderOriginPartition, strconv.AppendInt(nil, int64(m.Partition), 10)},
		{HeaderOriginOffset, strconv.AppendInt(nil, m.Offset, 10)},
	}
}
