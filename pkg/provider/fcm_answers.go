package provider

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// fcmCodes is the table of FCM's error answers, by the errorCode of FcmError. If there is no
// errorCode, the status of the error is used.
var fcmCodes = map[string]answerRule{
	"INVALID_ARGUMENT":       {class: notify.ClassPermanent}, // a dead address instead if FCM says that the token is not valid, see fcmResult
	"UNREGISTERED":           {class: notify.ClassDeadAddress},
	"NOT_FOUND":              {class: notify.ClassDeadAddress},
	"SENDER_ID_MISMATCH":     {class: notify.ClassDeadAddress, then: otherProject},
	"QUOTA_EXCEEDED":         {class: notify.ClassThrottled},
	"RESOURCE_EXHAUSTED":     {class: notify.ClassThrottled},
	"THIRD_PARTY_AUTH_ERROR": {class: notify.ClassConfig},
	"UNAUTHENTICATED":        {class: notify.ClassConfig, then: renewToken},
	"PERMISSION_DENIED":      {class: notify.ClassConfig},
	"INTERNAL":               {class: notify.ClassUnavailable},
	"UNAVAILABLE":            {class: notify.ClassUnavailable},
}

type fcmError struct {
	Error struct {
		Message string `json:"message"`
		Status  string `json:"status"`
		Details []struct {
			Type      string `json:"@type"`
			ErrorCode string `json:"errorCode"`
		} `json:"details"`
	} `json:"error"`
}

func (e *fcmError) code() string {
	for _, d := range e.Error.Details {
		if strings.HasSuffix(d.Type, "fcm.v1.FcmError") && d.ErrorCode != "" {
			return d.ErrorCode
		}
	}
	return e.Error.Status
}

// fcmResult classifies an answer by its errorCode. If the errorCode is unknown, it uses the HTTP
// status. quotaBlock is the time to wait after a throttled answer that names no time.
func fcmResult(a *providerAnswer, now time.Time, quotaBlock time.Duration) (notify.Result, answerAction) {
	r := notify.Result{Provider: "fcm"}
	if a.status == 200 {
		var ok struct {
			Name string `json:"name"`
		}
		_ = json.Unmarshal(a.body, &ok) // accepted, with or without a name
		r.ProviderID = ok.Name
		return r, 0
	}
	var e fcmError
	_ = json.Unmarshal(a.body, &e) // a page of a proxy has no errorCode
	code := e.code()
	v, known := fcmCodes[code]
	r.Code = snakeCase("fcm_", code)
	if !known {
		v = ruleByStatus(a.status)
		r.Code = httpCode(a.status)
	}
	message := strings.ToLower(e.Error.Message)
	switch {
	case code == "NOT_FOUND" && a.status != 404:
		v.class = notify.ClassPermanent
	case code == "INVALID_ARGUMENT" && strings.Contains(message, "registration token is not a valid"):
		v.class, r.Code = notify.ClassDeadAddress, "fcm_invalid_token"
	case v.class == notify.ClassThrottled && (strings.Contains(message, "device") || strings.Contains(message, "topic")):
		// This limit applies to one device or topic only, so other calls need not wait.
		v.class = notify.ClassRetry
	}
	r.Class = v.class
	if r.RetryAfter = a.retryAfter(now); r.RetryAfter == 0 {
		r.RetryAfter = v.after
		if v.class == notify.ClassThrottled || (v.class == notify.ClassRetry && a.status == 429) {
			r.RetryAfter = quotaBlock
		}
	}
	return r, v.then
}
