// Package deadletter serves the people on call: the index of dead letters, the tail of
// outcomes, the doctor, and the metrics of all stages.
//
// It reads the stores and the log and appends to the same topics as anyone
// else; no stage calls it.
package deadletter
