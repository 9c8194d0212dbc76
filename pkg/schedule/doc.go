// Package schedule stores notifications that are due later, and cancels and moves them while they
// wait. pkg/timer releases them.
//
// A request that is due later is one engine.Schedule and a timer per chunk. A schedule that was
// never cancelled or moved has no head, so its release costs no compare and swap.
//
// A cancel or a move takes these steps:
//
//	hint    stored durably in the partitions of its timers: a release that sees it asks
//	        the head first. A release loads rows, and hints with them, at most the
//	        look-ahead before they are due.
//	clock   less than Guard (look-ahead, write timeout and skew) before the fire
//	        time a release may have read the rows without the hint: the call returns
//	        too_late and writes nothing more.
//	rows    of the next generation, for a move.
//	head    one compare and swap. Its result is the answer, however late it
//	        comes: a release of a hinted row swaps the same head first.
//	forget  the rows that no longer count: of the generation before, or of a move
//	        that lost. A reader that finds rows missing reads the head again.
//
// Generations: the rows of a moved schedule carry the version that its head will get. A release
// drops rows of a lower generation than the head's. Rows of a higher generation belong to a move
// that has not won yet, or never will. Once their minute is closed, the release settles this by
// raising the head's version, so that the swap of the move fails. A generation is therefore the
// version that the head gets by it, and is never used twice.
//
// Errors: too_late, cancelled and moved_too_often (notify.KindConflict) are final. After
// notify.KindUnavailable a move may have happened, and the caller has to look. Start reading at
// Service.Cancel in touch.go.
package schedule
