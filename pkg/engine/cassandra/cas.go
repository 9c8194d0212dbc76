package cassandra

import (
	"context"
	"math/rand/v2"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
)

// swapTries is how often a conditional write is repeated whose outcome was not
// known and which was then seen not to be done.
const swapTries = 8

// verdict is what a look at a row says about a conditional write of ours whose
// answer did not come.
type verdict int

const (
	undone  verdict = iota // the row is as it was: it may be tried again
	done                   // the row is ours
	lost                   // the row is another's, written instead of ours
	unknown                // others have written since: ours may have been before
)

// cas runs a conditional write once: never twice, never speculatively. If it was
// not applied, row holds the columns that the condition names.
func (s *Store) cas(ctx context.Context, stmts ...stmt) (applied bool, row map[string]any, err error) {
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

// settle runs a conditional write until it is known whether it was applied. An
// answer that does not come, or says that it may have been, is followed by a
// look, which reads at SERIAL: such a read finishes or buries what is under way.
func (s *Store) settle(ctx context.Context, what string, look func() (verdict, error), stmts ...stmt) (won bool, err error) {
	unsure := false
	for try := range swapTries {
		applied, _, err := s.cas(ctx, stmts...)
		switch {
		case err == nil && (applied || !unsure):
			return applied, nil
		case err != nil && !unsure && (refused(err) || ctx.Err() != nil):
			return false, translate(err)
		case err != nil && ctx.Err() != nil:
			return false, translate(err)
		}
		unsure = true
		v, err := look()
		if err != nil {
			return false, err
		}
		switch v {
		case done:
			return true, nil
		case lost:
			return false, nil
		case unknown:
			return false, unsettled(what)
		case undone:
		}
		if err := pause(ctx, try); err != nil {
			return false, err
		}
	}
	return false, unsettled(what)
}

// swap is a conditional write that takes a row from one version to another.
type swap struct {
	what     string // names the row in errors
	from, to int64  // versions; 0: there is no row
	writer   int64  // the nonce that the write stores; 0 if it removes the row
	look     stmt   // reads the version and the writer of the row
	// elseLost says that the write counts as lost if the row has neither version. It is
	// set where the row would still show the write, or where the caller does not need
	// to know which writer won.
	elseLost bool
}

// swap runs a conditional write until it is known whether it was applied. It fails if
// the answer is lost and the row has changed more than once since: the row does not show
// then whether this write was one of the changes.
func (s *Store) swap(ctx context.Context, w swap, stmts ...stmt) (won bool, err error) {
	return s.settle(ctx, w.what, func() (verdict, error) {
		var version, writer int64
		_, err := s.getSerial(ctx, w.look.cql, w.look.args, &version, &writer)
		switch {
		case err != nil:
			return 0, err
		case version == w.from:
			return undone, nil
		case version == w.to && writer == w.writer:
			return done, nil
		case version == w.to || w.elseLost:
			return lost, nil
		}
		return unknown, nil
	}, stmts...)
}

// orNull returns a version as the operand of a condition: a row that is not there has
// null.
func orNull(version int64) any {
	if version == 0 {
		return nil
	}
	return version
}

// pause waits a random while that grows with tries: writers of one row that
// compete in step all lose.
func pause(ctx context.Context, try int) error {
	select {
	case <-time.After(rand.N(time.Duration(10<<min(try, 6)) * time.Millisecond)):
		return nil
	case <-ctx.Done():
		return translate(ctx.Err())
	}
}
