// Package load drives notifyd and says what it saw.
//
// The load is open: when a message is due is a pure function of time, and what
// it is a pure function of (seed, sequence), so a slow server does not slow the
// schedule down, and a run can be repeated. Workers take requests in order of
// their due time; a request that starts late is sent all the same, and its
// latency counts from when it was due.
//
// Three histograms are kept: lag (sent - due: the generator's own), service
// (done - sent: the server's), response (done - due: what a caller would feel).
//
// After the run every accepted id is looked up in the simulators' ledger: lost
// and duplicate are counted, not estimated.
package load
