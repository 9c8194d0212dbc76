package cassandra

import (
	"context"
	"math/rand/v2"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
)

// swapTries is how often a conditional write is tried whose answer was lost and that was
// then found not to be applied.
const swapTries = 8

// swapOutcome is what became of a conditional write whose answer was lost, as the row shows.
type swapOutcome int

const (
	swapUndone  swapOutcome = iota // the row is as before: the write may be tried again
	swapDone                       // the row holds this write
	swapLost                       // another write was applied instead of this one
	swapUnknown                    // other writes followed: this one may have been applied before them
)

// casOnce sends a conditional write once: the driver neither retries it nor sends it to
// several nodes. If the write was not applied, row holds the columns of its condition.
func (s *Store) casOnce(ctx context.Context, stmts ...stmt) (applied bool, row map[string]any, err error) {
	s.counts.swaps.Add(1)
	row = map[string]any{}
	if len(stmts) == 1 {
		applied, err = s.session.Query(stmts[0].cql, stmts[0].args...).
			Consistency(s.cons).SerialConsistency(s.serial).
			Idempotent(false).SetSpeculativeExecutionPolicy(gocql.NonSpeculativeExecution{}).
			MapScanCASContext(ctx, row)
		return applied, row, err
	}
	b := s.session.Batch(gocql.LoggedBatch).Consistency(s.cons).SerialConsistency(s.serial).
		SpeculativeExecutionPolicy(gocql.NonSpeculativeExecution{})
	for _, x := range stmts {
		b.Entries = append(b.Entries, gocql.BatchEntry{Stmt: x.cql, Args: x.args})
	}
	applied, it, err := b.MapExecCASContext(ctx, row)
	if it != nil {
		if cerr := it.Close(); err == nil {
			err = cerr
		}
	}
	return applied, row, err
}

// runConditional runs a conditional write until it is known whether it was applied. If an
// answer is lost, or leaves the outcome open, it calls readBack. readBack must read at
// SERIAL: such a read completes a conditional write that is under way, or makes it fail.
func (s *Store) runConditional(ctx context.Context, what string, readBack func() (swapOutcome, error), stmts ...stmt) (won bool, err error) {
	unsure := false
	for try := range swapTries {
		applied, _, err := s.casOnce(ctx, stmts...)
		switch {
		case err == nil && (applied || !unsure):
			return applied, nil
		case err != nil && !unsure && (refused(err) || ctx.Err() != nil):
			return false, translate(err)
		case err != nil && ctx.Err() != nil:
			return false, translate(err)
		}
		unsure = true
		outcome, err := readBack()
		if err != nil {
			return false, err
		}
		switch outcome {
		case swapDone:
			return true, nil
		case swapLost:
			return false, nil
		case swapUnknown:
			return false, unknownOutcome(what)
		case swapUndone:
		}
		if err := backoff(ctx, try); err != nil {
			return false, err
		}
	}
	return false, unknownOutcome(what)
}

// versionSwap is a conditional write that takes a row from one version to another.
type versionSwap struct {
	what     string // names the row in errors
	from, to int64  // versions; 0: there is no row
	writer   int64  // the nonce that the write stores; 0 if it removes the row
	readBack stmt   // reads the version and the writer of the row
	// elseLost says that the write counts as lost if the row has neither version. It is
	// set where the row would still show the write, or where the caller does not need
	// to know which writer won.
	elseLost bool
}

// swapVersion runs a conditional write until it is known whether it was applied. It returns
// an error if the answer is lost and the row has changed more than once since then: the row
// does not show whether this write was one of the changes.
func (s *Store) swapVersion(ctx context.Context, w versionSwap, stmts ...stmt) (won bool, err error) {
	return s.runConditional(ctx, w.what, func() (swapOutcome, error) {
		var version, writer int64
		_, err := s.getSerial(ctx, w.readBack.cql, w.readBack.args, &version, &writer)
		switch {
		case err != nil:
			return 0, err
		case version == w.from:
			return swapUndone, nil
		case version == w.to && writer == w.writer:
			return swapDone, nil
		case version == w.to || w.elseLost:
			return swapLost, nil
		}
		return swapUnknown, nil
	}, stmts...)
}

// orNull returns a version as the operand of a condition. The version of a missing row is
// null.
func orNull(version int64) any {
	if version == 0 {
		return nil
	}
	return version
}

// backoff sleeps for a random time that grows with try. Without it, writers that compete for
// one row in step would all lose.
func backoff(ctx context.Context, try int) error {
	select {
	case <-time.After(rand.N(time.Duration(10<<min(try, 6)) * time.Millisecond)):
		return nil
	case <-ctx.Done():
		return translate(ctx.Err())
	}
}
