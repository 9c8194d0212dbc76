package engine

import (
	"context"

	"github.com/notifyd/notifyd/pkg/notify"
)

// DeadLetter is one notification that failed for good: the index row beside
// notifications-failed, so that browsing never reads a topic.
type DeadLetter struct {
	ID          notify.ID      `json:"id"`
	Epoch       uint16         `json:"epoch"`
	Seq         uint64         `json:"seq"` // position in its caller's feed, set by Put
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
	State       string         `json:"state"` // "dead", "replayed", "discarded"
	Until       int64          `json:"until_ms"`
	Extra       map[string]any `json:"extra,omitempty"`
}

// DeadLetterFilter selects dead letters; empty fields select all.
type DeadLetterFilter struct {
	Caller, Channel, Category, Class, Code, Provider, Template, State string
	Since, Until                                                      int64 // LastFailed in [Since, Until), ms since 1970; 0: open
}

// DeadLetters is the index of what failed for good.
type DeadLetters interface {
	// Put stores dead letters; the same (ID, Epoch) again changes nothing but
	// State. Each new one gets the next Seq of its caller.
	Put(ctx context.Context, ds []DeadLetter) error
	// Get returns one; notify.KindNotFound when there is none.
	Get(ctx context.Context, id notify.ID, epoch uint16) (DeadLetter, error)
	// Feed returns a caller's dead letters with Seq > after, ascending.
	Feed(ctx context.Context, caller string, after uint64, max int) ([]DeadLetter, error)
	// List returns matching dead letters, newest first, behind the cursor; a
	// nil cursor starts, and a nil one is returned at the end.
	List(ctx context.Context, f DeadLetterFilter, cursor []byte, max int) ([]DeadLetter, []byte, error)
	// Purge removes those with Until <= now (ms since 1970) and returns how many.
	Purge(ctx context.Context, now int64) (int, error)
}
