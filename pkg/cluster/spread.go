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
	// spreadTrust is how long a process goes by a number of parts that it has read.
	spreadTrust = 30 * time.Second
	// spreadLead is how far ahead a raise is announced. Until then every process has read
	// it, or has stopped trusting what it had read before. What is above spreadTrust is the
	// greatest difference of two clocks that does no harm.
	spreadLead = 2 * spreadTrust
)

// Spread is the number of parts that something is spread over. It is a row of engine.Meta
// that every process over the same store follows. Its methods may be called from any
// goroutine.
type Spread struct {
	meta  engine.Meta
	name  string // of the row
	alone bool
	// made returns how many parts there are, of which a raise is made before it is
	// announced; nil: that cannot be asked.
	made func(ctx context.Context) (int, error)

	mu     sync.Mutex
	stored notify.Spread
	read   time.Time // when the read that returned stored began; monotonic
}

// OpenSpread reads the number of parts that is stored under a name of meta, and stores
// first if there is none. With alone, no other process uses the store, and what was read
// counts for good.
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

// MadeBefore tells s how to find out how many parts there are, where a raise makes its
// parts before it is announced. While the row cannot be read, s then goes on with the
// number that it knows for as long as there are no more parts than that. It must be called
// before s is used.
func (s *Spread) MadeBefore(parts func(ctx context.Context) (int, error)) { s.made = parts }

// Follow reads what is stored.
func (s *Spread) Follow(ctx context.Context) error {
	began := time.Now()
	stored, err := ReadSpread(ctx, s.meta, s.name)
	if err != nil {
		stored = s.Last()
		if s.made == nil || stored.Most() == 0 {
			return err
		}
		if there, merr := s.made(ctx); merr != nil || there > stored.Most() {
			return errors.Join(err, merr)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !began.Before(s.read) {
		s.stored, s.read = stored, began
	}
	return nil
}

// Last returns the number of parts as it was read last, however long ago that was.
func (s *Spread) Last() notify.Spread {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stored
}

// ReadSpread returns what is stored under a name of meta; the zero Spread when nothing is.
func ReadSpread(ctx context.Context, meta engine.Meta, name string) (s notify.Spread, err error) {
	row, err := meta.GetMeta(ctx, name)
	if err == nil && len(row) > 0 {
		if s, err = notify.ParseSpread(string(row)); err != nil {
			err = fmt.Errorf("stored row %s: %w", name, err)
		}
	}
	return s, err
}

// Now returns the number of parts as it was read last. If that was too long ago, another
// number may count meanwhile, and Now returns notify.KindUnavailable (spread_unknown).
func (s *Spread) Now() (notify.Spread, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if age := time.Since(s.read); age >= spreadTrust && !s.alone {
		return notify.Spread{}, notify.Unavailable("spread_unknown", time.Second, fmt.Errorf("%s was read last %s ago", s.name, age.Round(time.Second)))
	}
	return s.stored, nil
}

// RaiseSpread raises the number of parts that is stored under a name of meta to parts, for
// requests made spreadLead after now or later. It returns what is stored then. A number
// that is not greater than what is stored changes nothing. now is the time by the clocks
// of the processes over meta.
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
