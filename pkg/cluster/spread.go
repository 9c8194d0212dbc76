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
	// spreadTrust is how long a process may use a stored number, such as the number of timer
	// shards, after it has read it.
	spreadTrust = 30 * time.Second
	// A new number takes effect spreadLead after it is stored. By then every process has read it
	// or no longer uses the old number. This is true if the clocks of any two processes differ by
	// less than spreadLead-spreadTrust.
	spreadLead = 2 * spreadTrust
)

// Spread is a number of parts, such as the number of timer shards. It is a row of engine.Meta that
// every process with the same store follows. Its methods are safe for concurrent use.
type Spread struct {
	meta  engine.Meta
	name  string // name of the row
	alone bool
	// countMade returns how many parts exist now; see MadeBefore. It is nil if they cannot be
	// counted.
	countMade func(ctx context.Context) (int, error)

	mu     sync.Mutex // guards the fields below
	stored notify.Spread
	readAt time.Time // when the read of stored began; monotonic
}

// OpenSpread reads the number of parts that is stored in meta under the given name. If no number is
// stored, it stores the parameter initial. If alone is true, no other process uses the store, so
// the process may use the number without reading it again.
func OpenSpread(ctx context.Context, meta engine.Meta, name string, initial int, alone bool) (*Spread, error) {
	s := &Spread{meta: meta, name: name, alone: alone}
	for {
		err := s.Follow(ctx)
		if err != nil || s.stored.Most() > 0 {
			return s, err
		}
		if _, err := meta.SwapMeta(ctx, name, nil, []byte(notify.SpreadOver(initial).String())); err != nil {
			return nil, err
		}
	}
}

// MadeBefore sets a function that counts the existing parts, such as the partitions of a topic. Use
// it only for parts that are created before their new number is stored. If Follow cannot read the
// stored number, it calls this function. If the function counts at most as many parts as the last
// number that was read, the stored number has not changed. So Follow keeps the last number and
// returns nil. Call MadeBefore before the Spread is used.
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

// Last returns the number of parts from the last read, however old it is.
func (s *Spread) Last() notify.Spread {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stored
}

// ReadSpread returns the Spread that is stored in meta under the given name, or the zero Spread if
// there is none.
func ReadSpread(ctx context.Context, meta engine.Meta, name string) (s notify.Spread, err error) {
	row, err := meta.GetMeta(ctx, name)
	if err == nil && len(row) > 0 {
		if s, err = notify.ParseSpread(string(row)); err != nil {
			err = fmt.Errorf("stored row %s: %w", name, err)
		}
	}
	return s, err
}

// Now returns the number of parts from the last read. If that read was spreadTrust ago or longer,
// another number may be in effect now, and Now returns notify.KindUnavailable ("spread_unknown").
func (s *Spread) Now() (notify.Spread, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if age := time.Since(s.readAt); age >= spreadTrust && !s.alone {
		return notify.Spread{}, notify.Unavailable("spread_unknown", time.Second, fmt.Errorf("this process last read the number %s %s ago; a number that is %s old or older may have changed and is not used", s.name, age.Round(time.Second), spreadTrust))
	}
	return s.stored, nil
}

// RaiseSpread raises the number of parts that is stored in meta under the given name, and returns
// the stored Spread. The new number applies to requests that are made at now + spreadLead or later.
// If the parameter parts is not greater than the stored number, nothing changes. RaiseSpread
// returns the error "raised_lately" if an earlier raise has not taken effect yet.
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
				return was, &notify.Error{Kind: notify.KindConflict, Code: "raised_lately", Msg: fmt.Sprintf("an earlier raise of %s to %d takes effect at %s; try again after that time", name, was.Most(), was.Since().UTC().Format(time.RFC3339)), RetryAfter: spreadLead}
			}
		}
		if stored, err := meta.SwapMeta(ctx, name, old, []byte(next.String())); err != nil || stored {
			return next, err
		}
	}
}
