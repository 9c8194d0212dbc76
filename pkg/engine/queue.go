package engine

import (
	"context"
	"time"
)

// MaxQueueDelay is the longest delay of one hop; SQS has the same.
const MaxQueueDelay = 15 * time.Minute

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
// acknowledgement is dead: kept apart, given to nobody.
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
	// Dead returns up to max dead messages, oldest first.
	Dead(ctx context.Context, max int) ([]Delivery, error)
}
