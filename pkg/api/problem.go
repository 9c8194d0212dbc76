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
	Field     string `json:"field,omitempty"` // dotted path of the invalid input
	RequestID string `json:"request_id,omitempty"`
}

// Error codes of KindInvalid that are about syntax and not about a rule. Each has its own HTTP
// status.
const (
	CodeMalformed            = "malformed" // the body or a parameter cannot be parsed: 400
	CodeUnsupportedMediaType = "unsupported_media_type"
	CodeBodyTimeout          = "body_timeout"
	CodeMethodNotAllowed     = "method_not_allowed"
	CodeRouteNotFound        = "route_not_found"
)

// kindStatus is the HTTP status of each kind of error. Only StatusOf and KindOf use it.
var kindStatus = map[notify.Kind]int{
	notify.KindInvalid: http.StatusUnprocessableEntity, notify.KindUnauthorized: http.StatusUnauthorized, notify.KindForbidden: http.StatusForbidden,
	notify.KindNotFound: http.StatusNotFound, notify.KindGone: http.StatusGone, notify.KindConflict: http.StatusConflict,
	notify.KindMismatch: http.StatusUnprocessableEntity, notify.KindTooLarge: http.StatusRequestEntityTooLarge,
	notify.KindThrottled: http.StatusTooManyRequests, notify.KindUnavailable: http.StatusServiceUnavailable,
	notify.KindPermanent: http.StatusBadGateway,
}

// StatusOf returns the HTTP status for the kind and the error code of an error.
func StatusOf(kind notify.Kind, code string) int {
	if kind == notify.KindInvalid {
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
	}
	if status, ok := kindStatus[kind]; ok {
		return status
	}
	return http.StatusInternalServerError
}

// KindOf returns the kind of an error answer, from its HTTP status and its error code.
func KindOf(status int, code string) notify.Kind {
	switch {
	case status == http.StatusUnprocessableEntity && code == CodeMismatch:
		return notify.KindMismatch
	case status == http.StatusUnprocessableEntity:
		return notify.KindInvalid
	// An answer without an error code comes from a proxy that reached no server.
	case status == http.StatusGatewayTimeout, status == http.StatusBadGateway && code == "":
		return notify.KindUnavailable
	}
	for kind, of := range kindStatus {
		if of == status {
			return kind
		}
	}
	if status >= 400 && status < 500 {
		return notify.KindInvalid
	}
	return notify.KindInternal
}

// CodeMismatch is the error code for an Idempotency-Key that was used with another body.
const CodeMismatch = "idempotency_mismatch"

// Err returns the problem as a *notify.Error.
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
