package notify

import (
	"context"
	"errors"
	"strings"
	"time"
)

// Kind says what an error means to whoever must act on it. Engines and
// providers translate foreign errors into a Kind in one function each; one
// switch per consumer decides what to do. The API maps it to an HTTP status,
// the CLI to an exit code.
type Kind uint8

const (
	// KindInternal is the zero value: an error nobody classified is ours.
	KindInternal Kind = iota
	// KindInvalid: the input breaks a rule; trying again cannot help.
	KindInvalid
	// KindUnauthorized: no, or not valid, credentials.
	KindUnauthorized
	// KindForbidden: valid credentials that lack a scope.
	KindForbidden
	// KindNotFound: no such thing, or not this caller's.
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
	// KindPermanent: the far side refused for good.
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

// Error is the one error type that crosses package borders. Msg names the
// rule; Field names the offending input, as a dotted path, when there is one.
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

// NotFound reports a missing thing; what names it ("notification", "dead_letter").
func NotFound(what string) *Error {
	return &Error{Kind: KindNotFound, Code: what + "_not_found", Msg: "no such " + strings.ReplaceAll(what, "_", " ")}
}

// KindOf returns the Kind of err: of the outermost *Error in its chain,
// KindUnavailable for an expired deadline, KindInternal otherwise.
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
