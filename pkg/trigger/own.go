package trigger

import (
	"context"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
)

// MaxOwnPayload is the largest payload, in bytes, of a trigger that the server makes for itself.
const MaxOwnPayload = 32 << 10

// CheckCallback returns a callback URL in canonical form. It returns notify.KindInvalid if the URL
// is not valid, or not under one of the base URLs in the parameter bases. The parameter field is
// the name of the field in that error.
func CheckCallback(field, raw string, bases []string, plain Plain) (string, error) {
	u, err := checkUnder(field, raw, bases, bool(plain))
	if err != nil {
		return "", err
	}
	return u.String(), nil
}

func checkUnder(field, raw string, bases []string, plain bool) (*callbackURL, error) {
	u, err := parseURL(field, raw, plain)
	if err == nil && !underStoredBase(u, bases, plain) {
		err = notify.Invalid("url_not_registered", field, "is not under one of the caller's registered base URLs")
	}
	return u, err
}

// checkURL returns the parsed URL if triggers of the caller may call it, otherwise an error.
func (s *Service) checkURL(raw string, owner *engine.Caller) (*callbackURL, error) {
	u, err := checkUnder("callback_url", raw, owner.CallbackURLs, s.cfg.Egress.allowsHTTP())
	if err != nil {
		return nil, err
	}
	return u, s.cfg.Egress.admit("callback_url", u)
}

// RegisterInternal makes a trigger for the server's own purposes, in the name of a caller. The
// trigger is due now. Its id is made from the parameter base. It has a JSON payload of at most
// MaxOwnPayload bytes, and a W3C traceparent (empty: none).
//
// If a trigger with this id exists already, RegisterInternal returns that trigger unchanged, and
// the result created is false. So a repeat after a crash finds out what was made. Two calls with
// the same base must not run at the same time.
//
// All rules of Register apply except the size of the payload. RegisterInternal may return
// notify.KindThrottled (too many triggers wait), KindInvalid (the URL), KindForbidden, KindConflict
// (no secret) or KindUnavailable (the trigger may exist).
func (s *Service) RegisterInternal(ctx context.Context, caller string, base notify.Base, url string, payload []byte, trace string) (row engine.Trigger, created bool, err error) {
	stored, err := s.cfg.Triggers.Get(ctx, []string{idOf(base)})
	if err != nil {
		return row, false, unavailable("trigger_store", err)
	}
	if stored[0].ID != "" {
		return stored[0], false, nil
	}
	owner, err := callerOf(ctx, s, caller)
	if err != nil {
		return row, false, err
	}
	u, err := s.checkURL(url, owner)
	switch {
	case err != nil:
		return row, false, err
	case len(payload) > MaxOwnPayload:
		return row, false, &notify.Error{Kind: notify.KindTooLarge, Code: "payload_too_large", Field: "payload", Msg: "must have at most 32 KiB"}
	case !jsontext.Value(payload).IsValid():
		return row, false, notify.Invalid("bad_json", "payload", "is not valid JSON")
	}
	now := time.Now().UnixMilli()
	it := &createItem{base: base, row: engine.Trigger{
		ID: idOf(base), Caller: owner.ID, URL: u.String(), Payload: payload, Form: engine.PayloadJSON,
		Created: now, FireAt: now, NextAt: now, State: engine.TriggerPending, Trace: trace,
	}}
	if _, err := s.storeItems(ctx, owner, []*createItem{it}, request.Basis{Base: base, Accepted: now}); err != nil {
		return row, false, err
	}
	it.row.Version = 1
	return it.row, true, nil
}
