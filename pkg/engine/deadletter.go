package engine

import (
	"context"

	"github.com/notifyd/notifyd/pkg/notify"
)

// DeadLetter is the index row of one notification that is FAILED or UNKNOWN, or of one
// trigger that is FAILED. notify.State.InFailedFeed decides which notifications get an
// index row. The topic notifications-failed contains the same notifications, and the topic
// triggers-dlq contains the triggers. Feeds and filters read the index, never the topics.
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
	State       string         `json:"state"`                 // LetterDead, LetterReplayed, LetterDiscarded
	Job         string         `json:"job,omitempty"`         // the job that set State
	Until       int64          `json:"until_ms"`              // Purge removes the row after this time
	Trace       string         `json:"traceparent,omitempty"` // W3C traceparent of the request
	Extra       map[string]any `json:"extra,omitempty"`
}

// Ended returns the state that the notification had when the dead letter was written:
// UNKNOWN if the class is ambiguous, otherwise FAILED.
func (d *DeadLetter) Ended() notify.State {
	if d.Class == notify.ClassAmbiguous.String() {
		return notify.Unknown
	}
	return notify.Failed
}

// States of a dead letter.
const (
	LetterDead      = "dead"
	LetterReplayed  = "replayed"  // sent again, with a later epoch
	LetterDiscarded = "discarded" // never sent again; purged when its retention ends
)

// DeadLetterFilter selects dead letters.
type DeadLetterFilter struct {
	Since, Until int64                  // LastFailed is in [Since, Until), ms since 1970; 0: no bound
	Want         func(*DeadLetter) bool // returns true for a dead letter to select; nil: all
}

// Matches reports whether the filter selects d.
func (f *DeadLetterFilter) Matches(d *DeadLetter) bool {
	return (f.Since == 0 || d.LastFailed >= f.Since) && (f.Until == 0 || d.LastFailed < f.Until) && (f.Want == nil || f.Want(d))
}

// LetterMove moves one dead letter from one state to another.
type LetterMove struct {
	ID            notify.ID
	Epoch         uint16
	From, FromJob string // the move is applied only if State is From and Job is FromJob
	To, Job       string // the new State, and the job that sets it
}

// DeadLetters is the index of dead letters. It also prevents that a dead letter is replayed twice:
// if several jobs move it out of LetterDead, only one job succeeds.
type DeadLetters interface {
	// Put stores dead letters. Storing the same (ID, Epoch) again changes nothing. Each new
	// dead letter gets the next Seq of its caller and the next Ord of the index. No Seq of
	// a caller and no Ord is used twice.
	Put(ctx context.Context, ds []DeadLetter) error
	// Get returns one dead letter. It returns notify.KindNotFound if the dead letter does
	// not exist.
	Get(ctx context.Context, id notify.ID, epoch uint16) (DeadLetter, error)
	// Feed returns a caller's dead letters with Seq > afterSeq, in ascending order of Seq. Feed,
	// Walk and Last return only dead letters and numbers that are durable. So a reader may store
	// the last Seq or Ord that it has read and continue there after a crash.
	Feed(ctx context.Context, caller string, afterSeq uint64, max int) ([]DeadLetter, error)
	// List returns dead letters that f selects, newest first, after the cursor. A nil
	// cursor begins the listing. List returns a nil cursor at the end.
	List(ctx context.Context, f DeadLetterFilter, cursor []byte, max int) ([]DeadLetter, []byte, error)
	// Walk calls fn with the dead letters that have Ord in (afterOrd, lastOrd], in
	// ascending order of Ord. It stops when fn returns an error, and returns that error. It
	// keeps few dead letters in memory. In an engine of one process, fn gets all dead
	// letters as they were at one moment. In an engine of many machines, fn gets each dead
	// letter as it was at a different moment of the call.
	Walk(ctx context.Context, afterOrd, lastOrd uint64, fn func(*DeadLetter) error) error
	// Last returns the greatest Ord that any dead letter has ever had. It returns 0 if no
	// dead letter was ever stored.
	Last(ctx context.Context) (uint64, error)
	// Move applies each move whose From and FromJob match the stored dead letter. moved[i] is true
	// if ms[i] was applied. If two moves name the same dead letter, only one of the two is
	// applied. In an engine of one process, all moves are one durable step. In an engine of many
	// machines, some moves may be applied although Move returns an error. The caller must then
	// call Move again with the same moves: if the dead letter already has the Job of its move, the
	// move counts as applied.
	Move(ctx context.Context, ms []LetterMove) (moved []bool, err error)
	// Purge removes dead letters with Until <= nowMs (ms since 1970) and returns how many it
	// removed.
	Purge(ctx context.Context, nowMs int64) (int, error)
}
