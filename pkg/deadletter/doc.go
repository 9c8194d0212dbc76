// Package deadletter indexes dead letters, serves them to callers and operators, and runs the jobs
// that replay, discard or export them. It also contains the audit log of operators' actions and the
// live tail of outcomes.
//
// Indexer reads notifications-failed and stores dead letters. Feeds serves them to callers. An
// operator requests a plan (plan.go), which reads the index and changes nothing. Manager.Apply
// starts the plan's job with a frozen set of letters (jobs.go). Manager.Run runs jobs under a lease
// (run.go), batch by batch (replay.go). During a replay, a guard checks the outcomes of the
// replayed letters (guard.go).
//
// A crash loses no letter and repeats only actions that are safe to repeat. A batch first marks its
// letters in the index. Then it publishes records whose keys are computed from the letters. Last,
// it advances the job's cursor. The state of a letter changes only by compare and swap, so two jobs
// never replay the same letter.
//
// A filter of dead letters may contain an expression. It is a jq program that the person who sends
// the filter has written. The program runs in this process, so where.go and wherefuncs.go limit its
// time and memory.
//
// Start reading at Manager in jobs.go.
package deadletter
