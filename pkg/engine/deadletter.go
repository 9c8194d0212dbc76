package engine

import (
	"context"

	"github.com/notifyd/notifyd/pkg/notify"
)

// DeadLetter is the index row of one notification that failed for good, or that is UNKNOWN
// (notify.State.InFailedFeed says which are kept). The topic notifications-failed holds the
// same notifications; feeds and filters read the index, never the topic.
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
	Job         string         `json:"job,omitempty"`         // the job that moved it to State
	Until       int64          `json:"until_ms"`              // Purge removes it after this time
	Trace       string         `json:"traceparent,omitempty"` // of the request, W3C
	Extra       map[string]any `json:"extra,omitempty"`
}

// Ended returns the state of the notification when the dead letter was written: UNKNOWN or
// FAILED. Only UNKNOWN has the class ambiguous.
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

// DeadLetterFilter selects dead letters.
type DeadLetterFilter struct {
	Since, Until int64                  // LastFailed is in [Since, Until), ms since 1970; 0: no bound
	Want         func(*DeadLetter) bool // returns true for those to select; nil: all
}

// Matches reports whether the filter selects d.
func (f *DeadLetterFilter) Matches(d *DeadLetter) bool {
	return (f.Since == 0 || d.LastFailed >= f.Since) && (f.Until == 0 || d.LastFailed < f.Until) && (f.Want == nil || f.Want(d))
}

// LetterMove moves one dead letter from one state to another.
type LetterMove struct {
	ID            notify.ID
	Epoch         uint16
	From, FromJob string // it is moved only if job FromJob moved it to state From
	To, Job       string // its next state, and the job that moves it there
}

// DeadLetters is the index of dead letters. It is also the ledger of replays: each dead
// letter leaves LetterDead only once.
type DeadLetters interface {
	// Put stores dead letters. Storing the same (ID, Epoch) again changes nothing. Each
	// new dead letter gets the next Seq of its caller and the next Ord of the index. No
	// number is given twice.
	Put(ctx context.Context, ds []DeadLetter) error
	// Get returns one dead letter. It returns notify.KindNotFound if there is none.
	Get(ctx context.Context, id notify.ID, epoch uint16) (DeadLetter, error)
	// Feed returns a caller's dead letters with Seq > after, ascending. Feed, Walk and Last
	// return only what no failure takes back, so a reader may remember the Seq or Ord.
	Feed(ctx context.Context, caller string, after uint64, max int) ([]DeadLetter, error)
	// List returns dead letters that f selects, newest first, after the cursor. A nil
	// cursor begins the listing. List returns a nil cursor at the end.
	List(ctx context.Context, f DeadLetterFilter, cursor []byte, max int) ([]DeadLetter, []byte, error)
	// Walk calls fn with the dead letters that have Ord in (after, upTo], in ascending
	// order, until fn returns an error. Walk returns that error. It holds few dead letters
	// in memory. Each is read at some moment of the call. An engine of one process reads
	// all of them as of the same moment.
	Walk(ctx context.Context, after, upTo uint64, fn func(*DeadLetter) error) error
	// Last returns the greatest Ord given so far; 0: none.
	Last(ctx context.Context) (uint64, error)
	// Move applies each move whose From and FromJob match, and returns for each whether it
	// was applied. A dead letter that is named twice is moved once. In an engine of one
	// process all moves are one durable step. In an engine of many machines an error may
	// leave some applied: the caller calls again, and a dead letter that already carries
	// its Job counts as moved.
	Move(ctx context.Context, ms []LetterMove) (moved []bool, err error)
	// Purge removes dead letters with Until <= now (ms since 1970) and returns how many it
	// removed.
	Purge(ctx context.Context, now int64) (int, error)
}
