package notify

import (
	"context"
	"errors"
	"strings"
	"time"
)

// Kind says what an error means for the code that handles it. Each engine that uses a library has a
// function translate, which turns the errors of the library into an Error with a Kind. The API maps
// a Kind to an HTTP status, the CLI to an exit code.
type Kind uint8

const (
	// KindInternal is the zero value. An error without a Kind is a fault of notifyd.
	KindInternal Kind = iota
	// KindInvalid: the input breaks a rule. Trying again cannot help.
	KindInvalid
	// KindUnauthorized: credentials are missing or invalid.
	KindUnauthorized
	// KindForbidden: the credentials are valid but lack a scope.
	KindForbidden
	// KindNotFound: the object does not exist, or it belongs to another caller.
	KindNotFound
	// KindGone: the object existed, and retention removed it.
	KindGone
	// KindConflict: the state of the object does not allow the request.
	KindConflict
	// KindMismatch: an idempotency key was used again with another body.
	KindMismatch
	// KindTooLarge: a body or a field exceeds its limit.
	KindTooLarge
	// KindThrottled: a rate limit was reached. RetryAfter says how long to wait.
	KindThrottled
	// KindUnavailable: a dependency is down. Trying again is safe.
	KindUnavailable
	// KindPermanent: the other side refused. It would refuse a retry too.
	KindPermanent
)

var kindNames = [...]string{
	"internal", "invalid", "unauthorized", "forbidden", "not_found", "gone",
	"conflict", "mismatch", "too_large", "throttled", "unavailable", "permanent",
}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "internal"
}

// Error is the error type that the packages return. Msg states the rule that was broken. Field is the
// dotted path of the wrong input, if the error is about an input.
type Error struct {
	Kind       Kind
	Code       string        // stable, snake_case, e.g. "expires_in_past"
	Field      string        // such as "receivers[3].user_id"; empty: the error is about no field
	Msg        string        // for people; never contains secrets or addresses
	RetryAfter time.Duration // how long to wait before a retry; 0: unknown
	Err        error         // the cause; operators see it, callers do not
}

func (e *Error) Error() string {
	s := e.Msg
	if s == "" {
		s = e.Kind.String()
	}
	if e.Field != "" {
		s = e.Field + ": " + s
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Invalid returns a KindInvalid error. The parameter field names the input, and msg states the rule
// that the input breaks.
func Invalid(code, field, msg string) *Error {
	return &Error{Kind: KindInvalid, Code: code, Field: field, Msg: msg}
}

// Unavailable returns a KindUnavailable error for a failure of a dependency, which the parameter
// code names.
func Unavailable(code string, retryAfter time.Duration, err error) *Error {
	return &Error{Kind: KindUnavailable, Code: code, Msg: code + " is unavailable", RetryAfter: retryAfter, Err: err}
}

// NotFound returns the error for an object that does not exist. The parameter what is the type of
// the object, for example "notification" or "dead_letter".
func NotFound(what string) *Error {
	return &Error{Kind: KindNotFound, Code: what + "_not_found", Msg: "no such " + strings.ReplaceAll(what, "_", " ")}
}

// KindOf returns the Kind of the first *Error in err's chain. If there is no *Error, KindOf returns
// KindUnavailable for an expired deadline and KindInternal for all other errors.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return KindUnavailable
	}
	return KindInternal
}

// RetryAfterOf returns the RetryAfter of the first *Error in err's chain, or 0.
func RetryAfterOf(err error) time.Duration {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.RetryAfter
	}
	return 0
}
