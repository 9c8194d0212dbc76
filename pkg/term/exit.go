package term

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Exit codes. They are part of the interface: scripts branch on them.
const (
	ExitOK          = 0
	ExitError       = 1   // something failed
	ExitUsage       = 2   // wrong flags or arguments, bad input, a missing --yes
	ExitPartial     = 3   // some items failed
	ExitAuth        = 4   // the token is missing or invalid, or it lacks a scope
	ExitNotFound    = 5   // the thing does not exist
	ExitConflict    = 6   // the state of the thing does not allow the operation, or the plan of a job is stale
	ExitUnavailable = 7   // the server is down or too slow; trying again is safe
	ExitPending     = 8   // the command stopped waiting before the awaited result was there
	ExitFindings    = 9   // a check found something
	ExitGuard       = 10  // the guard of a replay stopped the job
	ExitSLO         = 99  // a threshold of a load run was missed
	ExitInterrupt   = 130 // Ctrl-C
	ExitTerminated  = 143 // SIGTERM
)

// Error is an error with an exit code and advice on what to do next.
type Error struct {
	Exit int
	Err  error
	Next []string // commands or advice
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Usage formats an error for a command line that is wrong. With this error the program exits with
// ExitUsage.
func Usage(format string, args ...any) error {
	return &Error{Exit: ExitUsage, Err: fmt.Errorf(format, args...)}
}

// Exitf formats an error with which the program exits with the given code.
func Exitf(code int, format string, args ...any) error {
	return &Error{Exit: code, Err: fmt.Errorf(format, args...)}
}

// ExitCode returns the exit code for err. It returns ExitOK if err is nil.
func ExitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Exit
	}
	if errors.Is(err, context.Canceled) {
		return ExitInterrupt
	}
	switch notify.KindOf(err) {
	case notify.KindInvalid, notify.KindTooLarge:
		return ExitUsage
	case notify.KindUnauthorized, notify.KindForbidden:
		return ExitAuth
	case notify.KindNotFound, notify.KindGone:
		return ExitNotFound
	case notify.KindConflict, notify.KindMismatch:
		return ExitConflict
	case notify.KindUnavailable, notify.KindThrottled:
		return ExitUnavailable
	}
	return ExitError
}

// Report writes err to w. If the format is "json" or "jsonl", Report writes JSON. Otherwise it
// writes
//
//	error: what happened, with the wrong input
//	  code:  the error code
//	  why:   the cause
//	  retry: when to try again
//	  next:  what to do
func Report(w io.Writer, err error, format string) {
	var next []string
	if e, ok := errors.AsType[*Error](err); ok {
		next = e.Next
	}
	var ne *notify.Error
	errors.As(err, &ne)
	msg, why := strings.TrimSpace(err.Error()), ""
	if ne != nil && ne.Err != nil {
		why = ne.Err.Error()
		msg = strings.TrimSuffix(strings.TrimSuffix(msg, why), ": ")
	}
	if format == "json" || format == "jsonl" {
		out := struct {
			Error struct {
				Code      string   `json:"code,omitempty"`
				Field     string   `json:"field,omitempty"`
				Message   string   `json:"message"`
				Why       string   `json:"why,omitempty"`
				Hint      []string `json:"hint,omitempty"`
				Exit      int      `json:"exit"`
				Retryable bool     `json:"retryable"`
			} `json:"error"`
		}{}
		out.Error.Message, out.Error.Why = msg, why
		out.Error.Hint, out.Error.Exit = next, ExitCode(err)
		out.Error.Retryable = out.Error.Exit == ExitUnavailable
		if ne != nil {
			out.Error.Code, out.Error.Field = ne.Code, ne.Field
		}
		b, _ := json.Marshal(out) // cannot fail: out holds only strings, numbers and booleans
		fmt.Fprintf(w, "%s\n", escapeLines(b))
		return
	}
	lines := strings.Split(msg, "\n") // the message holds one problem on each line
	for i := range lines {
		lines[i] = Clean(lines[i])
	}
	fmt.Fprintf(w, "error: %s\n", strings.Join(lines, "\n       "))
	if ne != nil && ne.Code != "" {
		fmt.Fprintf(w, "  code:  %s\n", Clean(ne.Code))
	}
	if why != "" {
		fmt.Fprintf(w, "  why:   %s\n", Clean(why))
	}
	if ne != nil && ne.RetryAfter > 0 {
		fmt.Fprintf(w, "  retry: after %s\n", ne.RetryAfter)
	}
	for i, n := range next {
		label := "next: "
		if i > 0 {
			label = "      "
		}
		fmt.Fprintf(w, "  %s %s\n", label, Clean(n))
	}
}
