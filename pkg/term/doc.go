// Package term is the command-line behaviour that notifyd and notifyctl share: exit codes and the form
// of an error (exit.go), checks of commands and flags that suggest the right name after a typing error
// (tree.go), one printer for every output format (printer.go), the configured servers (contexts.go),
// and the masking of secrets in logs and bundles (redact.go).
//
// Data goes to standard output. Messages for the user go to standard error. Clean escapes text from
// outside before the text reaches a terminal. Start with Polish and Printer.
package term
