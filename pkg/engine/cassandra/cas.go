package cassandra

import (
	"context"
	"math/rand/v2"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
)

// swapTries is how often a conditional write is tried. The write is tried again if its
// answer was lost and the row shows that the write was not applied.
const swapTries = 8

// swapOutcome is the result of a conditional write whose answer was lost. The row is read
// to find the outcome.
type swapOutcome int

const (
	swapUndone  swapOutcome = iota // the row is unchanged: the write may be tried again
	swapDone                       // the write was applied
	swapLost                       // another write was applied instead of this write
	swapUnknown                    // another write changed the row last: this write may have been applied before
)

// casOnce sends a conditional write once. The driver neither retries it nor sends it to several
// nodes. If the write was not applied, row has the stored values of the columns in its condition.
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

// runConditional runs a conditional write until it is known whether the write was applied. If an
// answer is lost or does not show the outcome, runConditional calls readBack. readBack must read
// with the consistency SERIAL: such a read first ends a conditional write that is still running,
// by completing it or making it fail.
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

// versionSwap describes a conditional write that changes the version of a row.
type versionSwap struct {
	what     string // what is written, for error messages
	from, to int64  // versions before and after the write; 0: no row
	writer   int64  // the nonce that the write stores; 0 if the write removes the row
	readBack stmt   // reads the version and the writer of the row
	// elseLost says what swapVersion returns if the answer was lost and the row now has neither of
	// the two versions. If elseLost is true, swapVersion returns false: the write counts as not
	// applied. If elseLost is false, it returns an error. Set elseLost only if an applied write
	// would still be visible in the row, or if the caller need not know whether its write was
	// applied.
	elseLost bool
}

// swapVersion runs a conditional write until it is known whether the write was applied. This stays
// unknown if the answer was lost and another write has changed the row since: then the row has
// neither of the two versions of w. In that case swapVersion returns an error, or false if
// w.elseLost is true.
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

// orNull returns the argument of the condition "IF version = ?". Version 0 means that the
// row does not exist. For version 0 orNull returns nil, which is null in CQL.
func orNull(version int64) any {
	if version == 0 {
		return nil
	}
	return version
}

// backoff sleeps for a random time, whose upper limit grows with the number of tries. Without
// backoff, writers of one row that always try at the same moment would all fail.
func backoff(ctx context.Context, try int) error {
	select {
	case <-time.After(rand.N(time.Duration(10<<min(try, 6)) * time.Millisecond)):
		return nil
	case <-ctx.Done():
		return translate(ctx.Err())
	}
}
