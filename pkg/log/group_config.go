package log

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/setting"
)

// Handler makes one PartitionHandler for each partition that this member gets.
type Handler interface {
	// Assigned returns the handler of the partition's records. ctx ends at once if the partition is
	// lost, and after the drain if the partition is revoked. Assigned is called during a rebalance
	// and must not block.
	Assigned(ctx context.Context, tp TopicPartition) PartitionHandler
}

// PartitionHandler handles the records of one partition.
type PartitionHandler interface {
	// Handle gets the next records in offset order. It may return before the records are done, but
	// the handler must mark each record with Msg.Done later. One goroutine makes all calls of
	// Handle, one after the other. ctx is the context that Assigned got.
	//
	// If Handle returns an error or panics, the group calls Events.Failed. After a backoff it
	// delivers again the records of msgs that are not done, each in a call of its own and with a
	// higher Attempt. So a handler that continues in another goroutine may get a record again while
	// it still processes that record. If one of these calls returns notify.ErrNewer, the partition
	// stops at the record of that call until this member loses the partition (Events.Held).
	Handle(ctx context.Context, msgs []*Msg) error
}

// Drainer is a PartitionHandler that can stop in the middle of a record. Drain is called when the
// partition is revoked, and when Run ends. It starts no new work, finishes or abandons running
// work, and returns when no work runs any more or when ctx ends. If a handler is not a Drainer, the
// group waits until every record that the handler got is done.
type Drainer interface {
	Drain(ctx context.Context)
}

// GroupConfig configures a Group. The zero value of a field means its default.
type GroupConfig struct {
	Conn   Conn
	Group  string   // required
	Topics []string // required

	// Owner names the process. If the members of several groups have the same owners, each owner
	// gets the same partition numbers in all these groups, for topics with the same number of
	// partitions. Empty: each group assigns its partitions independently of other groups.
	Owner string
	// Counts, if set, returns the earlier and the present numbers of partitions of a topic, ascending.
	// If Counts and Owner are set, adding partitions to a topic does not move its other partitions.
	// Counts may be called from any goroutine.
	Counts func(topic string) []int

	// MaxPollRecords is the maximum number of records in one call of Handle.
	MaxPollRecords int `default:"10000" min:"1"`
	// MaxInFlight and MaxInFlightBytes limit the records of a partition that were read and are not
	// done, because these records are delivered again after a crash. When one of the limits is
	// reached, the partition is paused. It continues when the number and the size of these records
	// have fallen to half of the limits or less. One read may exceed the limits.
	MaxInFlight      int `default:"20000" min:"1"`
	MaxInFlightBytes int `default:"32MiB" min:"1"`
	// CommitEvery is the interval at which the low-water marks are committed.
	CommitEvery time.Duration `default:"1s" min:"0"`
	// Hasty returns true if another group or partition waits for commits of this group. The
	// low-water marks are then committed every 100 ms. The group calls Hasty before each wait. It
	// may be nil.
	Hasty func() bool
	// RevokeWait is the longest wait, when partitions are revoked, until the handler's records are
	// done. During this wait the member reads no records of any partition.
	RevokeWait time.Duration `default:"5s" min:"0"`
	// DrainTimeout is the longest wait until the handler's records are done when the context of Run
	// ends.
	DrainTimeout time.Duration `default:"20s" min:"0"`
	// SessionTimeout is the time after which the group removes a member that sends no heartbeats.
	SessionTimeout time.Duration `default:"10s" min:"0"`
	// FetchWait is how long a fetch waits for records. So it is also the longest wait for the first
	// record of a new or resumed partition.
	FetchWait time.Duration `default:"250ms" min:"0"`
	// RetryBackoff is the first wait after a failed Handle. The wait doubles up to 5 s.
	RetryBackoff time.Duration `default:"100ms" min:"0"`
	// Poison is called instead of Handle for a record whose Attempt has reached MaxAttempts
	// (default 5). It copies the record to another topic and marks it done (Poisoner.Poison). If
	// Poison is nil, a record is retried for ever.
	Poison      func(ctx context.Context, m *Msg, cause error) error
	MaxAttempts int `default:"5" min:"1"`
	// Events are called when something happens in the group.
	Events GroupEvents
}

// GroupEvents are optional functions. They must return quickly and may be called from any goroutine.
type GroupEvents struct {
	// Failed: Handle returned an error or panicked. After a panic, cause is a *Panic. The call counts
	// as an attempt.
	Failed func(tp TopicPartition, cause error)
	// Held: the partition has stopped at a record of a newer release. Held is called once for each
	// time that a partition stops.
	Held func(tp TopicPartition, cause error)
	// Reset: a committed offset is not in the log. The group continues at the first record in the log,
	// so it skips no existing record. If the committed offset is above the end of the log, the log has
	// lost records, or the topic was created again. The group then reads all existing records again,
	// and the worker drops the duplicates.
	Reset func(r Reset)
	// Trouble: the client reports an error after which it continues. For example, a broker is
	// unavailable, a permission is missing, or a commit was refused.
	Trouble func(err error)
	// Assigned: this member got a partition. Gone: this member does not have the partition any
	// more. If lost is true, nothing was committed, because another member may already own the
	// partition.
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

// Reset describes a committed offset that is not in the log.
type Reset struct {
	TP         TopicPartition
	Committed  int64
	Start, End int64 // first offset of the log, and offset after its last record
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
