package worker

import (
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
)

// renewAfter is the age of a tenure after which the next write begins a new tenure. The stamps of a
// tenure are close to the time at which it began. Stores that group files by time need stamps close
// to the current time.
const renewAfter = time.Hour

// rowStamps makes the stamps of a partition's outcome rows. With stamps, a row that this owner
// writes late cannot replace a row of a later owner. docs/internals-owners.md has the rules of
// stamps.
type rowStamps struct {
	mu      sync.Mutex    // guards the fields below
	tenure  engine.Tenure // Start 0: no tenure yet
	used    int64         // the last stamp used in the tenure
	takenAt time.Time     // when the store gave the tenure
}

// currentTenure returns the partition's tenure. It gets one from the store if the partition has
// none.
func (p *partition) currentTenure() (engine.Tenure, error) {
	p.stamps.mu.Lock()
	defer p.stamps.mu.Unlock()
	if p.stamps.tenure.Start == 0 {
		if err := p.takeOverLocked(); err != nil {
			return engine.Tenure{}, err
		}
	}
	return p.stamps.tenure, nil
}

// nextStamp returns the stamp of the next row, greater than all earlier stamps. It returns an error
// only if the partition is gone.
func (p *partition) nextStamp() (int64, error) {
	s := &p.stamps
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tenure.Start == 0 || s.used == engine.TenureStamps-1 || time.Since(s.takenAt) > renewAfter {
		if err := p.takeOverLocked(); err != nil {
			return 0, err
		}
	}
	s.used++
	return s.tenure.Stamp(s.used), nil
}

// takeOverLocked gets a new tenure from the store. The caller holds stamps.mu, so other rows of the
// partition wait until the store has answered.
func (p *partition) takeOverLocked() error {
	var t engine.Tenure
	err := p.w.retryUntil(p.ctx, "status store", func() (err error) {
		t, err = p.w.cfg.Status.TakeOver(p.ctx, p.tp.Topic, p.tp.Partition)
		return err
	})
	if err != nil {
		return err
	}
	// Do not use the tenure if another member already has the partition: rows with this tenure
	// would win over the rows of that member.
	if err := log.AwaitOwnership(p.ctx); err != nil {
		return err
	}
	p.stamps.tenure, p.stamps.used, p.stamps.takenAt = t, 0, time.Now()
	return nil
}
