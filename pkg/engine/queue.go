package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// These limits apply to every queue. They come from SQS. SQS allows 12 hours for the first
// visibility of a received message and all its extensions together. MaxVisibility is 2 seconds less.
// This leaves room for the half second that the SQS engine adds to a visibility, and for rounding up.
const (
	MaxMessage    = 64 << 10         // bytes of a body
	MaxQueueDelay = 15 * time.Minute // greatest delay of one Enqueue or Release
	MaxVisibility = 12*time.Hour - 2*time.Second
)

// CheckMessages returns notify.KindInvalid if Enqueue must refuse one of the messages.
func CheckMessages(ms []Message) error {
	for i := range ms {
		if err := CheckDelay(ms[i].Delay); err != nil {
			return err
		}
		if len(ms[i].Body) > MaxMessage {
			return notify.Invalid("bad_message", "body", fmt.Sprintf("a message must have at most 65,536 bytes, but it has %d", len(ms[i].Body)))
		}
	}
	return nil
}

// CheckDelay returns notify.KindInvalid for a delay out of range.
func CheckDelay(d time.Duration) error {
	if d < 0 || d > MaxQueueDelay {
		return notify.Invalid("bad_message", "delay", fmt.Sprintf("a message can be delayed by 0 to 15 minutes, not by %s", d))
	}
	return nil
}

// CheckVisibility returns notify.KindInvalid for a visibility out of range.
func CheckVisibility(d time.Duration) error {
	if d <= 0 || d > MaxVisibility {
		return notify.Invalid("bad_message", "visibility", fmt.Sprintf("a visibility must be more than 0 and at most %s, not %s", MaxVisibility, d))
	}
	return nil
}

// Message is a message of a delay queue.
type Message struct {
	Body  []byte        // at most MaxMessage bytes
	Delay time.Duration // 0 to MaxQueueDelay; the engine rounds it up to its precision
	// Backlog is true if the message belongs in the backlog lane. That lane is for messages
	// that are already late.
	Backlog bool
}

// BacklogShare limits the backlog lane. While messages wait in the other lane, one of every
// BacklogShare received messages comes from the backlog lane. While the other lane is
// empty, all received messages may come from the backlog lane.
const BacklogShare = 4

// Delivery is a received message. The process that received the message owns it until the
// visibility ends. After that time another process can receive the message.
type Delivery struct {
	Receipt  string // names this delivery; each receive of a message gets a new receipt
	Body     []byte
	Receives int       // how often the message was received, including this time
	Enqueued time.Time // when the message became durable
	Backlog  bool      // true: the message is in the backlog lane
}

// QueueDepth counts the messages of a queue at one moment.
type QueueDepth struct {
	Ready    int // messages that can be received now
	Delayed  int // messages that were enqueued or released with a delay that is not over
	InFlight int // messages that were received and not acknowledged, and whose visibility is not over
	Dead     int
	Backlog  int       // messages in the backlog lane that are not dead
	Oldest   time.Time // enqueue time of the oldest ready message; zero: none
}

// Queue gives each message to a process at least once, and to only one process at a time.
// Receive returns a message at most MaxReceives times (a setting of the engine). A message
// that was received MaxReceives times and never acknowledged is dead. The engine keeps dead
// messages separately, and Depth counts them.
type Queue interface {
	// Enqueue stores messages. When it returns nil, all messages are durable. After an
	// error any of the messages may be stored. If a delay is out of range, Enqueue returns
	// notify.KindInvalid and stores no message.
	Enqueue(ctx context.Context, ms []Message) error
	// Receive waits until a message is ready or ctx ends. It returns up to max messages.
	// BacklogShare limits how many of them come from the backlog lane. No other Receive returns
	// these messages until the duration visibility is over. If ctx ends, Receive returns no
	// message and no error.
	Receive(ctx context.Context, max int, visibility time.Duration) ([]Delivery, error)
	// Extend makes the visibility of the deliveries end at now plus the given duration. It
	// ignores receipts that are not valid any more.
	Extend(ctx context.Context, receipts []string, visibility time.Duration) error
	// Ack removes messages. If a receipt is not valid any more, Ack ignores it, and the message
	// is received again.
	Ack(ctx context.Context, receipts []string) error
	// Release makes a message ready again after the given delay. The receive still counts
	// towards MaxReceives. Release ignores a receipt that is not valid any more.
	Release(ctx context.Context, receipt string, delay time.Duration) error
	// Depth counts the messages.
	Depth(ctx context.Context) (QueueDepth, error)
}
