package api

import (
	"net/http"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Problem is the body of every error answer (RFC 9457).
type Problem struct {
	Type      string `json:"type"` // urn:notifyd:<code>
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Detail    string `json:"detail,omitempty"`
	Code      string `json:"code"`            // stable, snake_case
	Field     string `json:"field,omitempty"` // dotted path of the input at fault
	RequestID string `json:"request_id,omitempty"`
}

// Codes of KindInvalid that are about syntax or form and not about a rule; they
// have a status of their own.
const (
	CodeMalformed            = "malformed" // body or parameter that cannot be read at all: 400
	CodeUnsupportedMediaType = "unsupported_media_type"
	CodeBodyTimeout          = "body_timeout"
	CodeMethodNotAllowed     = "method_not_allowed"
	CodeRouteNotFound        = "route_not_found"
)

// StatusOf maps an error's kind to the HTTP status. It is the one place that
// does; KindOf is its inverse.
func StatusOf(kind notify.Kind, code string) int {
	switch kind {
	case notify.KindInvalid:
		switch code {
		case CodeUnsupportedMediaType:
			return http.StatusUnsupportedMediaType
		case CodeMethodNotAllowed:
			return http.StatusMethodNotAllowed
		case CodeBodyTimeout:
			return http.StatusRequestTimeout
		case CodeMalformed, "bad_json", "bad_utf8", "bad_protobuf", "bad_column":
			return http.StatusBadRequest
		}
		return http.StatusUnprocessableEntity
	case notify.KindUnauthorized:
		return http.StatusUnauthorized
	case notify.KindForbidden:
		return http.StatusForbidden
	case notify.KindNotFound:
		return http.StatusNotFound
	case notify.KindGone:
		return http.StatusGone
	case notify.KindConflict:
		return http.StatusConflict
	case notify.KindMismatch:
		return http.StatusUnprocessableEntity
	case notify.KindTooLarge:
		return http.StatusRequestEntityTooLarge
	case notify.KindThrottled:
		return http.StatusTooManyRequests
	case notify.KindUnavailable:
		return http.StatusServiceUnavailable
	case notify.KindPermanent:
		return http.StatusBadGateway
	}
	return http.StatusInternalServerError
}

// KindOf is the kind of an answer, from its status and its problem's code.
func KindOf(status int, code string) notify.Kind {
	switch status {
	case http.StatusUnauthorized:
		return notify.KindUnauthorized
	case http.StatusForbidden:
		return notify.KindForbidden
	case http.StatusNotFound:
		return notify.KindNotFound
	case http.StatusGone:
		return notify.KindGone
	case http.StatusConflict:
		return notify.KindConflict
	case http.StatusRequestEntityTooLarge:
		return notify.KindTooLarge
	case http.StatusTooManyRequests:
		return notify.KindThrottled
	case http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return notify.KindUnavailable
	case http.StatusBadGateway:
		if code == "" { // no problem of ours: a proxy that found nobody
			return notify.KindUnavailable
		}
		return notify.KindPermanent
	case http.StatusUnprocessableEntity:
		if code == CodeMismatch {
			return notify.KindMismatch
		}
		return notify.KindInvalid
	}
	if status >= 400 && status < 500 {
		return notify.KindInvalid
	}
	return notify.KindInternal
}

// CodeMismatch is the code of an Idempotency-Key that came with another body.
const CodeMismatch = "idempotency_mismatch"

// Err is the problem as an error of the domain.
func (p *Problem) Err(retryAfter time.Duration) *notify.Error {
	msg := p.Detail
	if msg == "" {
		msg = p.Title
	}
	return &notify.Error{
		Kind: KindOf(p.Status, p.Code), Code: p.Code, Field: p.Field,
		Msg: msg, RetryAfter: retryAfter,
	}
}
