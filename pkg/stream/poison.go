package stream

import (
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
func (p *Poisoner) Poison(ctx context.Context, m *Msg, cause error) error {
	topic := p.Topic
	if topic == "" {
		topic = notify.TopicPoison
	}
	why := "unknown"
	if cause != nil {
		why = cause.Error()
	}
	hs := append(m.Headers[:len(m.Headers):len(m.Headers)],
		Header{HeaderOriginTopic, []byte(m.Topic)},
		Header{HeaderOriginPartition, strconv.AppendInt(nil, int64(m.Partition), 10)},
		Header{HeaderOriginOffset, strconv.AppendInt(nil, m.Offset, 10)},
		Header{HeaderCause, []byte(why)},
	)
	err := p.Log.Append(ctx, []Record{{Topic: topic, Partition: -1, Key: m.Key, Value: m.Value, Headers: hs, Time: m.Time}})
	if err == nil {
		m.Done()
	}
	return err
}
