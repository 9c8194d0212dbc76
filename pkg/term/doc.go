// Package term is the command-line behaviour that notifyd and notifyctl share:
//
//	exit.go      exit codes, and the form of an error
//	tree.go      checks of commands and flags, which suggest the right name after a typing error
//	printer.go   one printer for every output format
//	contexts.go  the configured servers
//	redact.go    masks secrets in logs and debug bundles
//
// Data goes to standard output. Messages for the user go to standard error. Clean escapes text from
// outside before the text reaches a terminal. Start with Polish and Printer.
package term
