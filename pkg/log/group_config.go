package log

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/setting"
)

// Handler makes the handlers of the partitions that the group gives to this member.
type Handler interface {
	// Assigned returns the handler of the partition's records. ctx ends when the partition is
	// lost, or after the drain when it is revoked. Assigned is called during a rebalance and
	// must not block.
	Assigned(ctx context.Context, tp TopicPartition) PartitionHandler
}

// PartitionHandler takes the records of one partition.
type PartitionHandler interface {
	// Handle gets the next records, in offset order. It may return before they are done, but
	// each must be marked with Msg.Done in the end. One goroutine makes all calls, one at a
	// time. ctx is the context given to Assigned.
	//
	// An error or a panic is reported to Events.Failed. The records of msgs that are not done
	// are then delivered again after a backoff, one record a call, with Attempt raised. So a
	// handler that continues asynchronously must expect its own records again. After
	// notify.ErrNewer the records are also delivered one a call, and the partition stops at
	// the first record that returns ErrNewer again, until this member loses the partition
	// (Events.Held).
	Handle(ctx context.Context, msgs []*Msg) error
}

// Drainer is implemented by partition handlers that can stop in the middle of a record. Drain is
// called before the partition is given up. It starts nothing new, finishes or abandons running
// work, and returns when nothing runs any more or ctx ends. If a handler has no Drain, the group
// waits until every record handed out is done.
type Drainer interface {
	Drain(ctx context.Context)
}

// GroupConfig configures a Group. The zero value of a field means its default.
type GroupConfig struct {
	Conn   Conn
	Group  string   // required
	Topics []string // required

	// Owner names the process. In all groups with the same owners an owner gets the same
	// partitions of topics of the same size. Empty: each group assigns its partitions
	// independently.
	Owner string
	// Counts, if set, returns the past and present numbers of partitions of a topic, ascending.
	// With it and Owner, partitions that are added to a topic move none of its others. It may
	// be called from any goroutine.
	Counts func(topic string) []int

	// MaxPollRecords is the most records one Handle gets.
	MaxPollRecords int `default:"10000" min:"1"`
	// MaxInFlight and MaxInFlightBytes bound, for each partition, the records polled and not
	// done, which a crash delivers again. The partition is paused at these limits and resumed
	// below half of them. One poll may exceed them.
	MaxInFlight      int `default:"20000" min:"1"`
	MaxInFlightBytes int `default:"32MiB" min:"1"`
	// CommitEvery is how often the marks are committed.
	CommitEvery time.Duration `default:"1s" min:"0"`
	// Hasty, if set, reports whether another group or partition waits for commits of this one.
	// While it returns true, marks are committed every 100 ms. It is called before each wait.
	Hasty func() bool
	// RevokeWait bounds the wait for records in flight when partitions are revoked. No partition
	// is polled during the wait.
	RevokeWait time.Duration `default:"5s" min:"0"`
	// DrainTimeout bounds the same wait when Run's context ends.
	DrainTimeout time.Duration `default:"20s" min:"0"`
	// SessionTimeout is the time after which the group gives up a silent member.
	SessionTimeout time.Duration `default:"10s" min:"0"`
	// FetchWait is how long a fetch waits for data, and so the longest wait of a resumed or new
	// partition for its first record.
	FetchWait time.Duration `default:"250ms" min:"0"`
	// RetryBackoff is the first wait after a failed Handle, doubled up to 5 s.
	RetryBackoff time.Duration `default:"100ms" min:"0"`
	// Poison, if set, is called instead of Handle for a record whose Attempt has reached
	// MaxAttempts (default 5). It puts the record aside and marks it done (Poisoner.Poison).
	// Default: a record is retried for ever.
	Poison      func(ctx context.Context, m *Msg, cause error) error
	MaxAttempts int `default:"5" min:"1"`
	// Events are called for what happens in the group.
	Events GroupEvents
}

// GroupEvents are optional callbacks; they must be quick and may be called from
// any goroutine.
type GroupEvents struct {
	// Failed: Handle returned an error or panicked (then cause is a *Panic). It
	// counts as an attempt.
	Failed func(tp TopicPartition, cause error)
	// Held: the partition has stopped at a record of a newer release. Called once.
	Held func(tp TopicPartition, cause error)
	// Reset: a committed offset is not in the log. Reading continues at the first record that
	// is left, so no existing record is skipped. If the offset was beyond the end (the log lost
	// records, or the topic was created again), this replays all records that are left, and the
	// worker drops duplicates.
	Reset func(r Reset)
	// Trouble: the client reports an error from which it continues: a broker is unavailable, an
	// authorization is missing, a commit was refused.
	Trouble func(err error)
	// Assigned and Gone: a partition was assigned or given up. lost: another member had it
	// already, so nothing was committed.
	Assigned func(tp TopicPartition)
	Gone     func(tp TopicPartition, lost bool)
}

func (e *GroupEvents) failed(tp TopicPartition, err error) {
	if e.Failed != nil {
		e.Failed(tp, err)
	}
}

func (e *GroupEvents) trouble(err error) {
	if e.Trouble != nil && err != nil {
		e.Trouble(err)
	}
}

// Reset is a committed offset that the log does not hold.
type Reset struct {
	TP         TopicPartition
	Committed  int64
	Start, End int64 // of the log
}

// Panic is a panic of a handler.
type Panic struct {
	Value any
	Stack []byte
}

func (p *Panic) Error() string { return fmt.Sprintf("handler panicked: %v", p.Value) }

func (c GroupConfig) withDefaults() GroupConfig {
	c = setting.Fill(c)
	c.Conn = setting.Fill(c.Conn)
	return c
}

func (c GroupConfig) validate() error {
	switch {
	case c.Group == "":
		return errors.New("log: GroupConfig.Group is empty")
	case len(c.Topics) == 0:
		return errors.New("log: GroupConfig.Topics is empty")
	}
	return errors.Join(setting.Err("group", &c), c.Conn.validate())
}
