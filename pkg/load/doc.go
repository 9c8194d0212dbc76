// Package load drives notifyd and says what it saw.
//
// A Scenario has phases one after the other, and in each of them steps side by
// side. The load is open: when a message is due is a pure function of time
// (arrival.go), and what it is a pure function of the seed and its number
// (data.go), so a slow server does not slow the schedule down, and a run can be
// repeated or split over machines. Workers take requests in order of their due
// time; a request that starts late is sent all the same, and its latency counts
// from when it was due.
//
//	Scenario -> Run -> step.go     workers: make, wait, send, record
//	                   coordinator.go  once a second: takes the workers' histograms,
//	                                   judges thresholds, asks the ledger
//	                   snapshot.go     what everybody else sees: immutable
//	                   promises.go     joins what was accepted with what came
//	                   remote.go       other processes send: puts their frames where
//	                                   the workers would have recorded
//	                   ledger.go       in the end: what became of each message
//	                   verdict.go      whether the figures are the server's
//
// Three histograms are kept a step: lag (sent - due), service (done - sent: the
// server's), response (done - due: what a caller would feel). The ledger adds
// end-to-end (delivered - due) and, for what is scheduled, signed lateness.
//
// What came first of every accepted id is read from the ledger of the simulated
// providers, while the run goes on: end-to-end times are not sampled, and lost and
// duplicate are counted, not estimated. promises.go joins the two in bounded memory.
package load
