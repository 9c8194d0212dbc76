package provider

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// answerRule says what one kind of answer means for the item that was sent. Each provider has a
// table of these rules.
type answerRule struct {
	class notify.Class
	// after is how long to wait before the next try if the answer has no header Retry-After.
	after time.Duration
	then  answerAction
}

// answerAction is what the client does after an answer, in addition to reporting it.
type answerAction uint8

const (
	// renewToken: the provider refused the bearer token because the token is too old.
	renewToken answerAction = iota + 1
	// leaveConn: the server wants the client to close the connection.
	leaveConn
	// otherProject: the device token belongs to another project than the credentials. Until a push
	// was accepted, the credentials may be wrong instead of the device token; see tokenGuard.
	otherProject
	// senderFault: the provider refused the sender. If the configuration chose the sender, the
	// configuration is wrong.
	senderFault
)

// ruleByStatus returns the rule for an HTTP status. It is used for an answer without a known
// reason, and it is the same for every provider.
func ruleByStatus(status int) answerRule {
	switch {
	case status >= 200 && status < 300:
		return answerRule{class: notify.ClassAccepted}
	case status == 401 || status == 403 || status == 407:
		return answerRule{class: notify.ClassConfig}
	case status == 408 || status == 425:
		return answerRule{class: notify.ClassRetry}
	case status == 429:
		return answerRule{class: notify.ClassThrottled, after: time.Second}
	case status >= 500:
		return answerRule{class: notify.ClassUnavailable}
	case status >= 300 && status < 400:
		return answerRule{class: notify.ClassConfig} // the base URL redirects
	}
	return answerRule{class: notify.ClassPermanent}
}

// ruleByStatusQueued is like ruleByStatus, but for providers that may have queued the message
// although they answer with an error. This happens if a gateway loses the answer, or if a server
// fails after it has queued the message. Of the statuses from 500, only 503 means that the message
// was not processed.
func ruleByStatusQueued(status int) answerRule {
	if status >= 500 && status != 503 {
		return answerRule{class: notify.ClassAmbiguous}
	}
	return ruleByStatus(status)
}

// httpCode returns the code for an answer without a reason, for example "http_503".
func httpCode(status int) string { return "http_" + strconv.Itoa(status) }

// snakeCase converts a provider's reason ("BadDeviceToken", "QUOTA_EXCEEDED") to the form of our
// codes.
func snakeCase(prefix, s string) string {
	var b strings.Builder
	b.WriteString(prefix)
	lower := false // the previous byte was a lower-case letter or a digit
	for i := 0; i < len(s) && i < 64; i++ {
		switch c := s[i]; {
		case c >= 'A' && c <= 'Z':
			if lower {
				b.WriteByte('_')
			}
			b.WriteByte(c + 'a' - 'A')
			lower = false
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
			b.WriteByte(c)
			lower = true
		default:
			b.WriteByte('_')
			lower = false
		}
	}
	return b.String()
}

// failure says why a request got no answer, and what this means for the item.
type failure struct {
	class notify.Class
	code  string
	err   error // the cause, shown to operators; nil: unknown
}

// classifyFailure returns the failure for an error of a round trip. If the parameter sent is true, the
// server may have received the whole request.
func classifyFailure(ctx context.Context, err error, sent bool) failure {
	switch {
	case sent && errors.Is(err, context.DeadlineExceeded):
		return failure{class: notify.ClassAmbiguous, code: "timeout"}
	case sent && ctx.Err() != nil:
		return failure{class: notify.ClassAmbiguous, code: "cancelled"}
	case sent:
		return failure{class: notify.ClassAmbiguous, code: "connection_lost"}
	case ctx.Err() != nil:
		return failure{class: notify.ClassRetry, code: "cancelled"}
	case errors.Is(err, context.DeadlineExceeded):
		return failure{class: notify.ClassUnavailable, code: "timeout"}
	}
	return failure{class: notify.ClassUnavailable, code: "connection_failed"}
}

func (f failure) result(provider string) notify.Result {
	return notify.Result{Class: f.class, Code: f.code, Provider: provider}
}

// resultOf returns the result for an error that occurred before a call was made. For example, there
// is no token or no connection, or a variable of a template is missing.
func resultOf(ctx context.Context, provider string, err error) notify.Result {
	r := notify.Result{Class: notify.ClassUnavailable, Code: "unavailable", Provider: provider}
	e, ok := errors.AsType[*notify.Error](err)
	if !ok {
		if ctx.Err() != nil {
			r.Class, r.Code = notify.ClassRetry, "cancelled"
		}
		return r
	}
	r.Code, r.RetryAfter = e.Code, e.RetryAfter
	switch e.Kind {
	case notify.KindUnauthorized, notify.KindForbidden:
		r.Class = notify.ClassConfig
	case notify.KindInvalid, notify.KindTooLarge, notify.KindPermanent:
		r.Class = notify.ClassPermanent
	case notify.KindThrottled:
		r.Class = notify.ClassThrottled
	}
	return r
}

// failureOf does the same as resultOf, but returns the result as a failure.
func failureOf(ctx context.Context, provider string, err error) *failure {
	r := resultOf(ctx, provider, err)
	return &failure{class: r.Class, code: r.Code, err: err}
}
