package provider

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// verdict is a line of an error table: what an answer means for the item.
type verdict struct {
	class notify.Class
	// after is used where the provider named no time of its own.
	after time.Duration
	then  action
}

// action is what the client itself does upon an answer, beyond reporting it.
type action uint8

const (
	// renewToken: our bearer token was refused as old.
	renewToken action = iota + 1
	// leaveConn: the server wants this connection to be given up.
	leaveConn
	// otherProject: the token is of another project than the credentials. Until the
	// credentials are proven it is they that are wrong, see tokenGuard.
	otherProject
	// senderFault: the sender was refused; where our configuration chose it,
	// that is a configuration error.
	senderFault
)

// byStatus is what a status without a known reason means, for every provider.
func byStatus(status int) verdict {
	switch {
	case status >= 200 && status < 300:
		return verdict{class: notify.ClassAccepted}
	case status == 401 || status == 403 || status == 407:
		return verdict{class: notify.ClassConfig}
	case status == 408 || status == 425:
		return verdict{class: notify.ClassRetry}
	case status == 429:
		return verdict{class: notify.ClassThrottled, after: time.Second}
	case status >= 500:
		return verdict{class: notify.ClassUnavailable}
	case status >= 300 && status < 400:
		return verdict{class: notify.ClassConfig} // a base URL that redirects
	}
	return verdict{class: notify.ClassPermanent}
}

// byStatusTaken is byStatus for providers whose message may be queued although the
// answer is an error: of a gateway that lost it, or of a server that failed behind the
// queue. 503 says that it was not processed.
func byStatusTaken(status int) verdict {
	if status >= 500 && status != 503 {
		return verdict{class: notify.ClassAmbiguous}
	}
	return byStatus(status)
}

// httpCode is the code of an answer that named no reason: "http_503".
func httpCode(status int) string { return "http_" + strconv.Itoa(status) }

// snake turns a provider's reason ("BadDeviceToken", "QUOTA_EXCEEDED") into the
// form of our codes.
func snake(prefix, s string) string {
	var b strings.Builder
	b.WriteString(prefix)
	lower := false // the byte before was a lower-case letter or a digit
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

// failure is what became of an exchange that brought no answer.
type failure struct {
	class notify.Class
	code  string
	err   error // the cause, for people; nil: not kept
}

// classify translates the error of a round trip. sent says whether the request
// may have been complete on the wire.
func classify(ctx context.Context, err error, sent bool) failure {
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

// failed translates an error of our own side of a call: a token that could not
// be had, a connection that is not there, a template without its variable.
func failed(ctx context.Context, provider string, err error) notify.Result {
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

// failing is failed as a failure of an exchange.
func failing(ctx context.Context, provider string, err error) *failure {
	r := failed(ctx, provider, err)
	return &failure{class: r.Class, code: r.Code, err: err}
}
