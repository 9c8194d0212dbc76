package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

const (
	// spreadTrust is how long a process uses a number of parts after it has read it.
	spreadTrust = 30 * time.Second
	// spreadLead is how long before it counts a raise is stored. By then every process has
	// read the new number, or has stopped using the old one. The part above spreadTrust is
	// the greatest difference of two clocks that does no harm.
	spreadLead = 2 * spreadTrust
)

// Spread is the number of parts that something is spread over, such as timers over shards. It
// is a row of engine.Meta that every process over the same store follows. Its methods are
// safe for concurrent use.
type Spread struct {
	meta  engine.Meta
	name  string // of the row
	alone bool
	// countMade returns how many parts exist; see MadeBefore. nil: that cannot be asked.
	countMade func(ctx context.Context) (int, error)

	mu     sync.Mutex // guards the fields below
	stored notify.Spread
	readAt time.Time // when the read of stored began; monotonic
}

// OpenSpread reads the number of parts that is stored under name in meta, and stores first if
// there is none. alone says that no other process uses the store: the number that was read
// then never becomes too old to use.
func OpenSpread(ctx context.Context, meta engine.Meta, name string, first int, alone bool) (*Spread, error) {
	s := &Spread{meta: meta, name: name, alone: alone}
	for {
		err := s.Follow(ctx)
		if err != nil || s.stored.Most() > 0 {
			return s, err
		}
		if _, err := meta.SwapMeta(ctx, name, nil, []byte(notify.SpreadOver(first).String())); err != nil {
			return nil, err
		}
	}
}

// MadeBefore sets a function that counts the parts that exist, such as the queues of a delay
// queue. It is for parts that a raise makes before it stores their new number. While the row
// cannot be read, s then goes on with the number that it knows, as long as there are not more
// parts than that. Call it before s is used.
func (s *Spread) MadeBefore(parts func(ctx context.Context) (int, error)) { s.countMade = parts }

// Follow reads the stored number.
func (s *Spread) Follow(ctx context.Context) error {
	began := time.Now()
	stored, err := ReadSpread(ctx, s.meta, s.name)
	if err != nil {
		stored = s.Last()
		if s.countMade == nil || stored.Most() == 0 {
			return err
		}
		if there, merr := s.countMade(ctx); merr != nil || there > stored.Most() {
			return errors.Join(err, merr)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !began.Before(s.readAt) {
		s.stored, s.readAt = stored, began
	}
	return nil
}

// Last returns the number of parts as of the last read, however long ago that was.
func (s *Spread) Last() notify.Spread {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stored
}

// ReadSpread returns the Spread that is stored under name in meta, or the zero Spread if there
// is none.
func ReadSpread(ctx context.Context, meta engine.Meta, name string) (s notify.Spread, err error) {
	row, err := meta.GetMeta(ctx, name)
	if err == nil && len(row) > 0 {
		if s, err = notify.ParseSpread(string(row)); err != nil {
			err = fmt.Errorf("stored row %s: %w", name, err)
		}
	}
	return s, err
}

// Now returns the number of parts as of the last read. If that was spreadTrust ago or longer,
// another number may count by now, and it returns notify.KindUnavailable (spread_unknown).
func (s *Spread) Now() (notify.Spread, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if age := time.Since(s.readAt); age >= spreadTrust && !s.alone {
		return notify.Spread{}, notify.Unavailable("spread_unknown", time.Second, fmt.Errorf("%s was read last %s ago", s.name, age.Round(time.Second)))
	}
	return s.stored, nil
}

// RaiseSpread raises the number of parts that is stored under name in meta. The new number
// counts for requests made spreadLead after now or later. now must be the time by the clocks
// of the processes. It returns what is stored then. A number that is not greater than the
// stored one changes nothing. It returns raised_lately if an earlier raise does not count yet.
func RaiseSpread(ctx context.Context, meta engine.Meta, name string, parts int, now time.Time) (notify.Spread, error) {
	for {
		was, err := ReadSpread(ctx, meta, name)
		if err != nil || was.Most() >= parts {
			return was, err
		}
		next := notify.SpreadOver(parts)
		var old []byte
		if was.Most() > 0 {
			old = []byte(was.String())
			if next, err = was.Raised(parts, now.Add(spreadLead)); err != nil {
				return was, &notify.Error{Kind: notify.KindConflict, Code: "raised_lately", Msg: fmt.Sprintf("%s was raised to %d at %s; try again after that", name, was.Most(), was.Since().UTC().Format(time.RFC3339)), RetryAfter: spreadLead}
			}
		}
		if stored, err := meta.SwapMeta(ctx, name, old, []byte(next.String())); err != nil || stored {
			return next, err
		}
	}
}
