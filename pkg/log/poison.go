package log

import (
	"cmp"
	"context"
	"strconv"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Headers of records in notifications-poison, after those of the original.
const (
	HeaderOriginTopic     = "notify-origin-topic"
	HeaderOriginPartition = "notify-origin-partition"
	HeaderOriginOffset    = "notify-origin-offset"
	HeaderCause           = "notify-cause"
	// HeaderCut is how many bytes the value had, of a record that was too large to
	// be put aside whole.
	HeaderCut = "notify-cut"
)

// What is kept of a record that is too large, in bytes: enough to see what it is.
const (
	keptValue = 64 << 10
	keptKey   = 1 << 10
	keptCause = 1 << 10
)

// Appender appends records durably, as Producer does.
type Appender interface {
	Append(ctx context.Context, recs []Record) error
}

// Poisoner puts records nobody can handle aside.
type Poisoner struct {
	Log   Appender
	Topic string // default notifications-poison
}

// Poison appends a copy of m, with its origin and the cause, and marks m done.
// When it cannot, m is not done and the error says why. A crash in between
// leaves two copies, of the same origin.
//
// The log may hold records that with their origin are larger than it takes from
// us: those of other producers. Of such a one the beginning is put aside
// (HeaderCut): it would else be tried for ever, and its partition stand.
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

// origin says where a record was.
func origin(m *Msg) []Header {
	return []Header{
		{HeaderOriginTopic, []byte(m.Topic)},
		{HeaderOriginPartition, strconv.AppendInt(nil, int64(m.Partition), 10)},
		{HeaderOriginOffset, strconv.AppendInt(nil, m.Offset, 10)},
	}
}
