// Package term is the command-line behaviour that notifyd and notifyctl share: exit codes and
// the form of an error (exit.go), checks of commands and flags with suggestions for a mistyped
// one (tree.go), one printer for every output format (printer.go), the configured servers
// (contexts.go), and the masking of secrets in logs and bundles (redact.go).
//
// Data goes to standard output. Messages about it go to standard error. Text that came from
// outside is escaped before it reaches a terminal (Clean). Start with Polish and Printer.
package term
