package provider

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// apnsReasons is the table of APNs' error answers, by reason.
var apnsReasons = map[string]answerRule{
	// Answers about the device.
	"BadDeviceToken":         {class: notify.ClassDeadAddress},
	"DeviceTokenNotForTopic": {class: notify.ClassDeadAddress},
	"Unregistered":           {class: notify.ClassDeadAddress},
	"ExpiredToken":           {class: notify.ClassDeadAddress},
	"TooManyRequests":        {class: notify.ClassRetry}, // too many pushes to this device

	// Answers about the request.
	"PayloadEmpty":       {class: notify.ClassPermanent},
	"PayloadTooLarge":    {class: notify.ClassPermanent},
	"BadCollapseId":      {class: notify.ClassPermanent},
	"BadExpirationDate":  {class: notify.ClassPermanent},
	"BadMessageId":       {class: notify.ClassPermanent},
	"BadPriority":        {class: notify.ClassPermanent},
	"BadTopic":           {class: notify.ClassPermanent},
	"MissingTopic":       {class: notify.ClassPermanent},
	"MissingDeviceToken": {class: notify.ClassPermanent},
	"TopicDisallowed":    {class: notify.ClassPermanent},
	"InvalidPushType":    {class: notify.ClassPermanent},
	"DuplicateHeaders":   {class: notify.ClassPermanent},
	"BadPath":            {class: notify.ClassPermanent},
	"MethodNotAllowed":   {class: notify.ClassPermanent},

	// Answers about our credentials.
	"ExpiredProviderToken":        {class: notify.ClassRetry, then: renewToken},
	"InvalidProviderToken":        {class: notify.ClassConfig},
	"MissingProviderToken":        {class: notify.ClassConfig},
	"BadCertificate":              {class: notify.ClassConfig},
	"BadCertificateEnvironment":   {class: notify.ClassConfig},
	"Forbidden":                   {class: notify.ClassConfig},
	"UnrelatedKeyIdInToken":       {class: notify.ClassConfig},
	"BadEnvironmentKeyIdInToken":  {class: notify.ClassConfig},
	"TooManyProviderTokenUpdates": {class: notify.ClassThrottled, after: 5 * time.Minute},

	// Answers about APNs itself.
	"IdleTimeout":         {class: notify.ClassRetry, then: leaveConn},
	"InternalServerError": {class: notify.ClassUnavailable},
	"ServiceUnavailable":  {class: notify.ClassUnavailable},
	"Shutdown":            {class: notify.ClassUnavailable, then: leaveConn},
}

// apnsResult classifies an answer by its reason. If the reason is unknown, it uses the status.
func apnsResult(a *providerAnswer, now time.Time) (notify.Result, answerAction) {
	if a.status == 200 {
		return notify.Result{Class: notify.ClassAccepted, Provider: "apns"}, 0
	}
	var body struct {
		Reason string `json:"reason"`
	}
	_ = json.Unmarshal(a.body, &body) // a page of a proxy has no reason
	v, known := apnsReasons[body.Reason]
	code := httpCode(a.status)
	switch {
	case known:
		code = snakeCase("apns_", body.Reason)
	case a.status == 410:
		v = answerRule{class: notify.ClassDeadAddress}
	case a.status == 429:
		v = answerRule{class: notify.ClassRetry}
	default:
		v = ruleByStatus(a.status)
	}
	r := notify.Result{Class: v.class, Code: code, Provider: "apns", RetryAfter: a.retryAfter(now)}
	r.RetryAfter = cmp.Or(r.RetryAfter, v.after)
	return r, v.then
}
