// Package deadletter indexes dead letters, serves them to callers and operators, and runs
// the jobs that replay, discard or export them. It also has the audit log of operators'
// actions and the live tail of outcomes.
//
// Flow: Indexer reads notifications-failed and stores dead letters; Feeds serve them to
// callers. An operator asks for a plan (plan.go), which reads the index and changes nothing.
// Manager.Apply starts the plan's job with a frozen set of letters (jobs.go). Manager.Run
// carries jobs out under a lease (run.go), batch by batch (replay.go), while a guard watches
// the outcomes of the letters that were replayed (guard.go).
//
// A crash loses nothing and repeats only what is safe to repeat: a batch marks its letters in
// the index, publishes records whose keys follow from the letters, and moves the job's cursor
// last. The state of a letter changes by compare and swap alone, so the index is the ledger
// of replays.
//
// A filter's expression is a jq program of a caller's making that runs in this process;
// where.go and wherefuncs.go bound it.
//
// Start reading at Manager in jobs.go.
package deadletter
