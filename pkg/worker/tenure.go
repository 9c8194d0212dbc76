package worker

import (
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
)

// renewAfter is the age of a tenure after which the next write takes a new one:
// stores that group files by time want stamps that are about now.
const renewAfter = time.Hour

// stamps are what a partition stamps its outcome rows with. The rules that keep a
// later owner's rows safe from this one, and its calls counted, are in
// docs/internals-owners.md.
type stamps struct {
	mu    sync.Mutex
	of    engine.Tenure // Start 0: none yet
	used  int64
	taken time.Time
}

// tenure returns the partition's tenure, and takes one if it has none.
func (p *partition) tenure() (engine.Tenure, error) {
	p.stamps.mu.Lock()
	defer p.stamps.mu.Unlock()
	if p.stamps.of.Start == 0 {
		if err := p.takeOverLocked(); err != nil {
			return engine.Tenure{}, err
		}
	}
	return p.stamps.of, nil
}

// stamp returns the stamp of the next row, above all that it returned before. It
// returns an error only once the partition is gone.
func (p *partition) stamp() (int64, error) {
	s := &p.stamps
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of.Start == 0 || s.used == engine.TenureStamps-1 || time.Since(s.taken) > renewAfter {
		if err := p.takeOverLocked(); err != nil {
			return 0, err
		}
	}
	s.used++
	return s.of.Stamp(s.used), nil
}

func (p *partition) takeOverLocked() error {
	var t engine.Tenure
	err := p.w.until(p.ctx, "status store", func() (err error) {
		t, err = p.w.cfg.Status.TakeOver(p.ctx, p.tp.Topic, p.tp.Partition)
		return err
	})
	if err != nil {
		return err
	}
	// A tenure that was begun after another member got the partition would be
	// above the other's, and is not used.
	if err := log.Held(p.ctx); err != nil {
		return err
	}
	p.stamps.of, p.stamps.used, p.stamps.taken = t, 0, time.Now()
	return nil
}
