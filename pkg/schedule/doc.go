// Package schedule puts notifications off, and cancels and moves them while
// they wait. pkg/timer releases them.
//
// A request that is due later is one engine.Schedule and a timer per chunk. As
// long as nobody touches it, that is all: a release costs no compare and swap.
//
// Who cancels or moves it goes these steps:
//
//	hint    durable, in the partitions of its timers: whoever releases them asks
//	        the head first. Releases load rows, and hints with them, at most the
//	        look-ahead before they are due.
//	clock   less than Guard (look-ahead, write timeout and skew) before the fire
//	        time a release may have read the rows without the hint: too_late,
//	        and nothing more is written.
//	rows    of the next generation, when it is moved.
//	head    one compare and swap. Its result is the answer, however late it
//	        comes: a release of a hinted row swaps the same row first.
//	forget  the rows that count no more: of the generation before, or of a move
//	        that lost. Whoever finds rows missing looks at the head again.
//
// Generations: a moved schedule's rows carry the number its head will have. Rows
// of a lower generation than the head's are dropped by the release. Rows of a
// higher one belong to a move that has not won yet, or never will; once their minute
// is closed the release settles that by raising the head's version, so that the move finds out. A
// generation is therefore the version the head gets by it, and never used twice.
package schedule
