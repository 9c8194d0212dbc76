// Package schedule stores notifications that are due later, and cancels and moves them while they
// wait. pkg/timer releases them.
//
// A request that is due later is stored as one engine.Schedule and one timer row per chunk. A
// schedule that was never cancelled or moved has no head. So its release needs no compare and swap.
//
// A cancel or a move takes these steps:
//
//	hint    stored durably in the partitions of the schedule's timers. A release that
//	        reads the hint checks the head first. A release loads rows and hints together,
//	        at the earliest the look-ahead before the rows are due.
//	clock   if the fire time is less than Guard (look-ahead, write timeout and skew) away,
//	        a release may already have read the rows without the hint. Then the call
//	        returns too_late and writes nothing more.
//	rows    for a move: the rows of the next generation are stored.
//	head    one compare and swap. Its result is the answer, however late it is:
//	        the release of a hinted row swaps the same head before it sends.
//	forget  rows that no longer count are removed: the rows of the earlier generation, or
//	        the rows of a move that lost. A reader that finds rows missing reads the head again.
//
// Generations: the rows of a moved schedule carry the version that its head will get. A release
// drops rows whose generation is lower than the generation in the head. Rows with a higher
// generation belong to a move that has not yet swapped the head, or never will. After the minute of
// these rows is closed, the release decides: it increases the version of the head, so that the swap of
// the move fails. So a generation equals the head version that its move stored, and is never used
// twice.
//
// Errors: too_late, cancelled and moved_too_often (notify.KindConflict) are final. After
// notify.KindUnavailable a move may or may not have happened, so the caller must read the schedule.
// Start reading at Service.Cancel in touch.go.
package schedule
