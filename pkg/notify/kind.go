package notify

import (
	"context"
	"errors"
	"strings"
	"time"
)

// Kind says what an error means for the code that handles it. Each engine and each provider has
// one function that translates foreign errors into a Kind. The API maps a Kind to an HTTP
// status, the CLI to an exit code.
type Kind uint8

const (
	// KindInternal is the zero value: an error without a Kind is a fault of notifyd.
	KindInternal Kind = iota
	// KindInvalid: the input breaks a rule; trying again cannot help.
	KindInvalid
	// KindUnauthorized: credentials are missing or invalid.
	KindUnauthorized
	// KindForbidden: valid credentials that lack a scope.
	KindForbidden
	// KindNotFound: it does not exist, or it belongs to another caller.
	KindNotFound
	// KindGone: it existed and was removed by retention.
	KindGone
	// KindConflict: the state of the thing forbids the request.
	KindConflict
	// KindMismatch: an idempotency key reused with another body.
	KindMismatch
	// KindTooLarge: a body or field over its limit.
	KindTooLarge
	// KindThrottled: a rate limit; RetryAfter says when.
	KindThrottled
	// KindUnavailable: a dependency is down; safe to try again.
	KindUnavailable
	// KindPermanent: the other side refused; a retry would be refused again.
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

// Error is the error type that packages exchange. Msg states the rule. Field is the dotted path
// of the wrong input, if there is one.
type Error struct {
	Kind       Kind
	Code       string        // stable, snake_case, e.g. "expires_in_past"
	Field      string        // e.g. "receivers[3].user_id"; empty when none
	Msg        string        // for people; never carries secrets or addresses
	RetryAfter time.Duration // 0: unknown
	Err        error         // cause; shown to operators, not to callers
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

// Invalid reports that field breaks the rule msg.
func Invalid(code, field, msg string) *Error {
	return &Error{Kind: KindInvalid, Code: code, Field: field, Msg: msg}
}

// Unavailable wraps a failure of the dependency named by code.
func Unavailable(code string, retryAfter time.Duration, err error) *Error {
	return &Error{Kind: KindUnavailable, Code: code, Msg: code + " is unavailable", RetryAfter: retryAfter, Err: err}
}

// NotFound returns the error for a missing object; what is its kind ("notification",
// "dead_letter").
func NotFound(what string) *Error {
	return &Error{Kind: KindNotFound, Code: what + "_not_found", Msg: "no such " + strings.ReplaceAll(what, "_", " ")}
}

// KindOf returns the Kind of the outermost *Error in err's chain. Without one it returns
// KindUnavailable for an expired deadline, and KindInternal for everything else.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return KindUnavailable
	}
	return KindInternal
}

// RetryAfterOf returns the RetryAfter of err, or 0.
func RetryAfterOf(err error) time.Duration {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.RetryAfter
	}
	return 0
}
