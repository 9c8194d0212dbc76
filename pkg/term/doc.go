// Package term holds the manners that notifyd and notifyctl share on a command
// line: exit codes, the shape of an error, suggestions for what was mistyped,
// and one printer for every output format.
//
// Data goes to standard output, everything said about it to standard error.
package term
