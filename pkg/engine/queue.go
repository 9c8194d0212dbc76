package engine

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Limits of every queue. SQS has them, too: 12 hours for all visibilities of one
// receive together, so there is a margin.
const (
	MaxMessage    = 64 << 10         // bytes of a body
	MaxQueueDelay = 15 * time.Minute // of one hop
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

// Message is what a delay queue carries: at most 64 KiB.
type Message struct {
	Body  []byte
	Delay time.Duration // 0 to MaxQueueDelay; rounded up to what the engine can
	// Backlog puts the message into a lane for what is late anyway.
	Backlog bool
}

// BacklogShare bounds the backlog lane: while messages of the other one wait,
// one of so many that are received comes from it; when none wait, all may.
const BacklogShare = 4

// Delivery is a received message. It belongs to the receiver until its
// visibility ends; then it is received again.
type Delivery struct {
	Receipt  string // names this delivery; a later one of the message has another
	Body     []byte
	Receives int       // how often the message was received, this time counted
	Enqueued time.Time // when it became durable
	Backlog  bool      // its lane
}

// QueueDepth is a moment's picture of a queue.
type QueueDepth struct {
	Ready    int // may be received now
	Delayed  int // not visible yet, never received or released with a delay
	InFlight int // received, not acknowledged, visibility not over
	Dead     int
	Backlog  int       // of those that are not dead, in the backlog lane
	Oldest   time.Time // enqueue time of the oldest ready one; zero: none
}

// Queue hands messages to one of its receivers at a time, at least once each.
// A message received more than the engine's MaxReceives times without an
// acknowledgement is dead: kept apart, counted by Depth, handed out no more.
type Queue interface {
	// Enqueue stores messages, each durable when it returns nil. After an error
	// any of them may be stored. A delay out of range is notify.KindInvalid and
	// stores nothing.
	Enqueue(ctx context.Context, ms []Message) error
	// Receive waits until a message is ready or ctx ends, and takes up to max
	// for visibility, of the lanes as BacklogShare says. An ended ctx is no error: it returns none.
	Receive(ctx context.Context, max int, visibility time.Duration) ([]Delivery, error)
	// Extend makes deliveries end their visibility that long from now. One that
	// is not the receiver's any more is left out without an error.
	Extend(ctx context.Context, receipts []string, visibility time.Duration) error
	// Ack removes messages. A receipt that is over changes nothing: the message
	// is received again.
	Ack(ctx context.Context, receipts []string) error
	// Release gives a message back, to be received after delay; the receive
	// counts. A receipt that is over changes nothing.
	Release(ctx context.Context, receipt string, delay time.Duration) error
	// Depth counts.
	Depth(ctx context.Context) (QueueDepth, error)
}
