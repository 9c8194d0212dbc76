package engine

import (
	"context"

	"github.com/notifyd/notifyd/pkg/notify"
)

// DeadLetter is one notification that failed for good, or of which nobody knows whether
// it arrived (notify.State.InFailedFeed): the index row beside
// notifications-failed, so that browsing never reads a topic.
type DeadLetter struct {
	ID          notify.ID      `json:"id"`
	Epoch       uint16         `json:"epoch"`
	Seq         uint64         `json:"seq"` // position in its caller's feed, set by Put
	Ord         uint64         `json:"ord"` // position in the whole index, set by Put
	Caller      string         `json:"caller"`
	Campaign    string         `json:"campaign,omitempty"`
	Channel     string         `json:"channel"`
	Category    string         `json:"category"`
	User        string         `json:"user_id"`
	Template    string         `json:"template,omitempty"`
	Class       string         `json:"class"`
	Code        string         `json:"code"`
	Provider    string         `json:"provider,omitempty"`
	Attempts    int            `json:"attempts"`
	FirstFailed int64          `json:"first_failed_ms"`
	LastFailed  int64          `json:"last_failed_ms"`
	Expires     int64          `json:"expires_ms,omitempty"` // the notification's own deadline
	Chunk       notify.Chunk   `json:"-"`
	Topic       string         `json:"topic"`
	Partition   int32          `json:"partition"`
	Offset      int64          `json:"offset"`
	State       string         `json:"state"`         // LetterDead, LetterReplayed, LetterDiscarded
	Job         string         `json:"job,omitempty"` // that moved it to State
	Until       int64          `json:"until_ms"`
	Trace       string         `json:"traceparent,omitempty"` // of the request, W3C
	Extra       map[string]any `json:"extra,omitempty"`
}

// Ended returns how the notification had ended when the letter was written: UNKNOWN, or
// FAILED. The class ambiguous is that of UNKNOWN alone.
func (d *DeadLetter) Ended() notify.State {
	if d.Class == notify.ClassAmbiguous.String() {
		return notify.Unknown
	}
	return notify.Failed
}

// States of a dead letter.
const (
	LetterDead      = "dead"
	LetterReplayed  = "replayed"  // sent again, under the next epoch
	LetterDiscarded = "discarded" // put aside for good; purged with its retention
)

// DeadLetterFilter is what a list of dead letters holds: those that failed last in
// [Since, Until), ms since 1970; 0: open, and that Want returns true for; nil: all.
type DeadLetterFilter struct {
	Since, Until int64
	Want         func(*DeadLetter) bool
}

// Matches reports whether d is selected.
func (f *DeadLetterFilter) Matches(d *DeadLetter) bool {
	return (f.Since == 0 || d.LastFailed >= f.Since) && (f.Until == 0 || d.LastFailed < f.Until) && (f.Want == nil || f.Want(d))
}

// LetterMove moves one dead letter from a state to another.
type LetterMove struct {
	ID            notify.ID
	Epoch         uint16
	From, FromJob string // it is moved only if it is in state From, by job FromJob
	To, Job       string // its next state, and who moved it there
}

// DeadLetters is the index of what failed for good. It is the ledger of
// replays too: a dead letter leaves LetterDead once.
type DeadLetters interface {
	// Put stores dead letters; the same (ID, Epoch) again changes nothing. Each
	// new one gets the next Seq of its caller and the next Ord of all, which are
	// never given twice.
	Put(ctx context.Context, ds []DeadLetter) error
	// Get returns one; notify.KindNotFound when there is none.
	Get(ctx context.Context, id notify.ID, epoch uint16) (DeadLetter, error)
	// Feed returns a caller's dead letters with Seq > after, ascending. As with Walk and
	// Last, a failure takes back none of what it returns, so a reader may keep the Seq.
	Feed(ctx context.Context, caller string, after uint64, max int) ([]DeadLetter, error)
	// List returns matching dead letters, newest first, behind the cursor; a
	// nil cursor starts, and a nil one is returned at the end.
	List(ctx context.Context, f DeadLetterFilter, cursor []byte, max int) ([]DeadLetter, []byte, error)
	// Walk calls fn with the dead letters that have Ord in (after, upTo], in
	// that order, until it returns an error, which Walk returns. It holds few at
	// a time. fn sees each as it was at a moment of the call; in an engine of one
	// process, all at the same one.
	Walk(ctx context.Context, after, upTo uint64, fn func(*DeadLetter) error) error
	// Last returns the Ord that was given last; 0: none was.
	Last(ctx context.Context) (uint64, error)
	// Move moves those that are as their move says, and says of each whether it
	// was moved. One named twice is moved once. It is one durable step, but in an
	// engine of many machines, where an error leaves some moved: who calls again
	// takes those that carry its Job for moved.
	Move(ctx context.Context, ms []LetterMove) (moved []bool, err error)
	// Purge removes those with Until <= now (ms since 1970) and returns how many.
	Purge(ctx context.Context, now int64) (int, error)
}
