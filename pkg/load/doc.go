// Package load sends load to notifyd and measures how notifyd handles it.
//
// A Scenario has phases that run one after the other. The steps of a phase run side by side. The
// load is open: the due time of a message depends only on the arrival of its step (arrival.go), so
// a slow server does not slow the schedule down. The content of a message depends only on the seed
// and the message's number (data.go). So a run can be repeated, or split over machines. Workers
// send requests in the order of their due times. A request that starts late is still sent, and its
// latency counts from its due time.
//
//	Scenario -> Run -> step.go     workers: make a request, wait, send, record
//	                   coordinator.go  once a second: collects the histograms of the
//	                                   workers, judges thresholds, asks the ledger
//	                   snapshot.go     the immutable view of the run for all readers
//	                   promises.go     matches accepted messages with their arrivals
//	                   remote.go       if agents send: adds their frames to the recorders
//	                                   that workers of this process would use
//	                   ledger.go       after sending: the outcome of each message
//	                   verdict.go      decides whether the server caused the figures
//
// Each step has three histograms: lag (sent - due), service (done - sent: time in the server) and
// response (done - due: what a caller would feel). The ledger adds end-to-end times, which are
// delivered - due. For scheduled messages it adds signed lateness.
//
// The simulated providers keep a ledger of the messages that they received. The run reads this
// ledger while it sends. It matches the first arrival of every accepted id with the acknowledgement
// of that id, in bounded memory. So end-to-end times are not sampled. Lost and duplicate messages
// are counted, not estimated.
//
// What may go wrong: the generator may be the limit instead of the server. Then the verdict says
// so, and the figures say nothing about the server. Start reading at Run.Run.
package load
