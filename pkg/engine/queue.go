package engine

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Limits of every queue; they come from SQS. MaxVisibility has a margin because SQS allows
// 12 hours for the first visibility of a receive and all its extensions together.
const (
	MaxMessage    = 64 << 10         // bytes of a body
	MaxQueueDelay = 15 * time.Minute // of one Enqueue or Release
	MaxVisibility = 12*time.Hour - 2*time.Second
)

// CheckMessages returns notify.KindInvalid if Enqueue must refuse ms.
func CheckMessages(ms []Message) error {
	for i := range ms {
		if err := CheckDelay(ms[i].Delay); err != nil {
			return err
		}
		if len(ms[i].Body) > MaxMessage {
			return notify.Invalid("bad_message", "body", "a message has at most 65,536 bytes")
		}
	}
	return nil
}

// CheckDelay returns notify.KindInvalid for a delay out of range.
func CheckDelay(d time.Duration) error {
	if d < 0 || d > MaxQueueDelay {
		return notify.Invalid("bad_message", "delay", "a message is delayed by 0 to 15 minutes")
	}
	return nil
}

// CheckVisibility returns notify.KindInvalid for a visibility out of range.
func CheckVisibility(d time.Duration) error {
	if d <= 0 || d > MaxVisibility {
		return notify.Invalid("bad_message", "visibility", "a visibility is more than 0 and less than 12 hours")
	}
	return nil
}

// Message is a message of a delay queue.
type Message struct {
	Body  []byte        // at most MaxMessage bytes
	Delay time.Duration // 0 to MaxQueueDelay; rounded up to the precision of the engine
	// Backlog puts the message into the backlog lane, for messages that are late already.
	Backlog bool
}

// BacklogShare bounds the backlog lane. While messages wait in the other lane, one of
// BacklogShare received messages comes from the backlog lane. Otherwise all may.
const BacklogShare = 4

// Delivery is a received message. The process that received it owns it until its
// visibility ends; then the message can be received again.
type Delivery struct {
	Receipt  string // names this delivery; each receive of a message has its own
	Body     []byte
	Receives int       // how often the message was received, including this time
	Enqueued time.Time // when it became durable
	Backlog  bool      // its lane
}

// QueueDepth counts the messages of a queue at one moment.
type QueueDepth struct {
	Ready    int // can be received now
	Delayed  int // not visible yet: enqueued or released with a delay
	InFlight int // received, not acknowledged, visibility not over
	Dead     int
	Backlog  int       // messages in the backlog lane that are not dead
	Oldest   time.Time // enqueue time of the oldest ready message; zero: none
}

// Queue hands each message to one process at a time, at least once. Receive returns a
// message at most MaxReceives times (a setting of the engine). If it is not acknowledged
// by then, it is dead: the engine keeps it apart and Depth counts it.
type Queue interface {
	// Enqueue stores messages. All are durable when it returns nil. After an error any of
	// them may be stored. If a delay is out of range, it returns notify.KindInvalid and
	// stores nothing.
	Enqueue(ctx context.Context, ms []Message) error
	// Receive waits until a message is ready or ctx ends. It returns up to max messages,
	// from both lanes as BacklogShare says, and hides them for visibility. If ctx ends, it
	// returns no message and no error.
	Receive(ctx context.Context, max int, visibility time.Duration) ([]Delivery, error)
	// Extend sets the end of the deliveries' visibility to that long from now. It ignores
	// receipts that are not valid any more.
	Extend(ctx context.Context, receipts []string, visibility time.Duration) error
	// Ack removes messages. It ignores receipts that are not valid any more; their messages
	// are received again.
	Ack(ctx context.Context, receipts []string) error
	// Release makes a message ready again after delay. The receive still counts. It ignores
	// a receipt that is not valid any more.
	Release(ctx context.Context, receipt string, delay time.Duration) error
	// Depth counts the messages.
	Depth(ctx context.Context) (QueueDepth, error)
}
