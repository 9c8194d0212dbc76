package log

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/setting"
)

// Handler is told of partitions as the group gives them to this member.
type Handler interface {
	// Assigned returns what handles the partition's records. ctx ends when the
	// partition is revoked or lost, after the wait of a drain. It is called
	// while the group rebalances and must not block.
	Assigned(ctx context.Context, tp TopicPartition) PartitionHandler
}

// PartitionHandler takes the records of one partition.
type PartitionHandler interface {
	// Handle takes the next records, in offset order, and may return before
	// they are done; each must be marked with Msg.Done at last. It is never
	// called twice at once, and by one goroutine. An error, or a panic, is
	// reported as Events.Failed, and what is not done of msgs by then is
	// delivered again after a backoff, one record a call, with Attempt raised:
	// a handler that goes on asynchronously must expect its own records. ctx is
	// the one given to Assigned. After an error that is notify.ErrNewer the records
	// are delivered one a call as well, and the partition stands at the first that
	// returns it again, until this member loses the partition (Events.Held).
	Handle(ctx context.Context, msgs []*Msg) error
}

// Drainer is implemented by partition handlers that can stop in the middle of a
// record. Drain is called when the partition is about to go: it starts nothing
// new, finishes or abandons what runs, and returns when nothing runs any more
// or ctx ends. Without it the group waits until every record handed out is done.
type Drainer interface {
	Drain(ctx context.Context)
}

// GroupConfig configures a Group. The zero value of a field means its default.
type GroupConfig struct {
	Conn   Conn
	Group  string   // required
	Topics []string // required

	// Owner names the process. In groups of the same owners, an owner gets the same
	// partitions of topics of the same size. Empty: partitions are assigned to each group
	// by itself.
	Owner string
	// Counts, when set, returns the numbers of partitions that a topic had and has, ascending:
	// with Owner, partitions that are added to a topic move none of its others. It may be
	// called from any goroutine.
	Counts func(topic string) []int

	// MaxPollRecords is the most records one Handle gets.
	MaxPollRecords int `default:"10000" min:"1"`
	// MaxInFlight and MaxInFlightBytes bound, per partition, the records polled and not done:
	// it is what a crash delivers again. Above them the partition is paused, below half of
	// them resumed; one poll may pass them.
	MaxInFlight      int `default:"20000" min:"1"`
	MaxInFlightBytes int `default:"32MiB" min:"1"`
	// CommitEvery is how often the marks are committed.
	CommitEvery time.Duration `default:"1s" min:"0"`
	// Hasty, when set, says when another group or partition waits for commits of this one:
	// while it is true they are made each 100 ms. It is asked before each wait.
	Hasty func() bool
	// RevokeWait bounds the wait for records in flight when partitions are revoked; no
	// partition is polled meanwhile.
	RevokeWait time.Duration `default:"5s" min:"0"`
	// DrainTimeout bounds the same wait when Run's context ends.
	DrainTimeout time.Duration `default:"20s" min:"0"`
	// SessionTimeout is how long the group waits for a member that is gone.
	SessionTimeout time.Duration `default:"10s" min:"0"`
	// FetchWait is how long a fetch waits for data, and so the most a resumed or new partition
	// waits for its first record.
	FetchWait time.Duration `default:"250ms" min:"0"`
	// RetryBackoff is the first wait after a failed Handle, doubled up to 5 s.
	RetryBackoff time.Duration `default:"100ms" min:"0"`
	// Poison, when set, is called instead of Handle for a record whose Attempt
	// reached MaxAttempts (default 5); it puts the record aside and marks it
	// (Poisoner.Poison). Default: a record is tried for ever.
	Poison      func(ctx context.Context, m *Msg, cause error) error
	MaxAttempts int `default:"5" min:"1"`
	// Events are told what happened.
	Events GroupEvents
}

// GroupEvents are optional callbacks; they must be quick and may be called from
// any goroutine.
type GroupEvents struct {
	// Failed: Handle returned an error or panicked (then cause is a *Panic). It
	// counts as an attempt.
	Failed func(tp TopicPartition, cause error)
	// Held: the partition stands at a record of a newer release. It is told once.
	Held func(tp TopicPartition, cause error)
	// Reset: a committed offset is not in the log. Reading goes on at the first record
	// still there, so nothing that exists is skipped. Where the offset lay beyond the end
	// (the log lost records, or the topic was made anew) that replays what is left, and
	// dedup drops what was done.
	Reset func(r Reset)
	// Trouble: the client reports an error it goes on from: a broker away, no
	// authorization, a commit refused.
	Trouble func(err error)
	// Assigned and Gone: partitions came and went; lost says without notice.
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
		return errors.New("stream: no group")
	case len(c.Topics) == 0:
		return errors.New("stream: no topics")
	}
	return errors.Join(setting.Err("group", &c), c.Conn.validate())
}
