// Package schedule stores notifications that are due later, and cancels and moves them while they
// wait. pkg/timer releases them.
//
// A request that is due later is stored as one engine.Schedule and one timer row per chunk. The
// head of a schedule is one more row, with its state, generation and fire time. Only a cancel, a
// move, or a release that finds a hint writes a head. So the release of most schedules needs no
// compare and swap.
//
// A cancel or a move takes these steps:
//
//	hint    A hint is stored durably in the partitions of the schedule's timers. A release
//	        that finds the hint reads the head before it sends. A release loads rows and
//	        hints together, at most the timer engine's look-ahead before the rows are due.
//	clock   The clock is checked. If the fire time is less than Guard away, a release may
//	        have loaded the rows before the hint was stored. Then the call returns too_late
//	        and writes nothing more. Guard is the sum of look-ahead, write timeout and
//	        clock skew.
//	rows    Only for a move: the rows of the next generation are stored.
//	head    The head is swapped. The result of this one compare and swap is the answer,
//	        however late it comes, because the release of rows with a hint swaps the same
//	        head before it sends.
//	forget  Rows that no longer count are removed: the rows of the earlier generation, or
//	        the rows of a move that lost. A reader that does not find all rows reads the
//	        head again.
//
// Generations: the generation of a moved schedule's rows is the version that the move gives to the
// head. A release drops rows of a lower generation than that in the head. Rows of a higher generation
// belong to a move that has not swapped the head yet, or never will. When the minute of these rows
// is closed (see pkg/timer), the release increases the version of the head, so that the swap of the
// move fails. So a generation equals the version of the head that its move stored, and is never used
// twice.
//
// Errors: too_late, cancelled and moved_too_often (notify.KindConflict) are final. After
// notify.KindUnavailable a move may or may not have happened, so the caller must read the schedule.
// Start reading at Service.Cancel in touch.go.
package schedule
