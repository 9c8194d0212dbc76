package cassandra

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
)

// While a write to a partition is under way, later writes to it wait and are sent as one.
// Writes to another partition do not wait.
func TestCombinerJoinsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan error)
		var sizes []int
		c := &combiner{write: func(_ context.Context, sets [][]stmt) error {
			sizes = append(sizes, len(sets))
			return <-free
		}}
		errs := make(chan error, 10)
		write := func(part string) { go func() { errs <- c.submit(t.Context(), part, stmt{}) }() }
		write("a")
		synctest.Wait()
		for range 5 {
			write("a")
		}
		synctest.Wait()
		if len(sizes) != 1 {
			t.Fatalf("%d writes of a partition at once", len(sizes))
		}
		write("b")
		synctest.Wait()
		if len(sizes) != 2 {
			t.Fatal("another partition waits")
		}
		free <- nil
		free <- nil
		synctest.Wait()
		if len(sizes) != 3 || sizes[2] != 5 {
			t.Fatalf("what waited was written as %v", sizes)
		}
		broken := errors.New("broken")
		free <- broken
		synctest.Wait()
		failed := 0
		for range 7 {
			if err := <-errs; errors.Is(err, broken) {
				failed++
			}
		}
		if failed != 5 {
			t.Errorf("the error of a write was told to %d of its 5 callers", failed)
		}
		if len(c.next) != 0 {
			t.Errorf("%d partitions are still held", len(c.next))
		}
	})
}

// A caller that leaves neither ends the write of the others nor keeps the partition busy.
func TestCombinerOutlivesItsCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		c := &combiner{write: func(ctx context.Context, _ [][]stmt) error {
			select {
			case <-free:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}}
		first, leave := context.WithCancel(t.Context())
		errs := make(chan error, 2)
		go func() { errs <- c.submit(first, "a", stmt{}) }()
		synctest.Wait()
		second, leaveToo := context.WithCancel(t.Context())
		go func() { errs <- c.submit(second, "a", stmt{}) }()
		stays := make(chan error, 1)
		go func() { stays <- c.submit(t.Context(), "a", stmt{}) }()
		synctest.Wait()
		leave()
		leaveToo()
		for range 2 {
			if err := <-errs; err == nil {
				t.Error("who went away was told of success")
			}
		}
		close(free)
		if err := <-stays; err != nil {
			t.Errorf("who stayed: %v", err)
		}
	})
}

// A set that fits into one batch is never cut, however many wait with it.
func TestBatchesKeepSetsWhole(t *testing.T) {
	t.Parallel()
	row := func(bytes int) stmt { return stmt{args: []any{make([]byte, bytes)}} }
	third := maxBatch / 3
	sets := [][]stmt{{row(third), row(third)}, {row(10)}, {row(third), row(third)}, {row(maxBatch / 2), row(maxBatch / 2), row(maxBatch / 2)}, {row(20)}}
	var got []int
	for _, b := range joinSets(sets) {
		got = append(got, len(b))
	}
	// The first with the second; the third, which does not fit beside them; the fourth
	// is too large for one; the fifth goes with the third.
	if want := []int{3, 1, 1, 1, 3}; !slices.Equal(got, want) {
		t.Errorf("batches of %v statements, want %v", got, want)
	}
}
