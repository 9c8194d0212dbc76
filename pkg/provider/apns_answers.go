package provider

import (
	"encoding/json"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// apnsReasons is the table of APNs' error answers.
var apnsReasons = map[string]verdict{
	// the device
	"BadDeviceToken":         {class: notify.ClassDeadAddress, then: badAddress},
	"DeviceTokenNotForTopic": {class: notify.ClassDeadAddress, then: badAddress},
	"Unregistered":           {class: notify.ClassDeadAddress},
	"ExpiredToken":           {class: notify.ClassDeadAddress},
	"TooManyRequests":        {class: notify.ClassRetry}, // to this device

	// the request
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

	// our credentials
	"ExpiredProviderToken":        {class: notify.ClassRetry, then: renewToken},
	"InvalidProviderToken":        {class: notify.ClassConfig},
	"MissingProviderToken":        {class: notify.ClassConfig},
	"BadCertificate":              {class: notify.ClassConfig},
	"BadCertificateEnvironment":   {class: notify.ClassConfig},
	"Forbidden":                   {class: notify.ClassConfig},
	"UnrelatedKeyIdInToken":       {class: notify.ClassConfig},
	"BadEnvironmentKeyIdInToken":  {class: notify.ClassConfig},
	"TooManyProviderTokenUpdates": {class: notify.ClassThrottled, after: 5 * time.Minute},

	// the service
	"IdleTimeout":         {class: notify.ClassRetry, then: leaveConn},
	"InternalServerError": {class: notify.ClassUnavailable},
	"ServiceUnavailable":  {class: notify.ClassUnavailable},
	"Shutdown":            {class: notify.ClassUnavailable, then: leaveConn},
}

// apnsResult classifies an answer: by its reason, else by its status.
func apnsResult(a *answer, now time.Time) (notify.Result, action) {
	if a.status == 200 {
		return notify.Result{Class: notify.ClassAccepted, Provider: "apns"}, 0
	}
	var body struct {
		Reason string `json:"reason"`
	}
	_ = json.Unmarshal(a.body, &body) // a proxy's page has no reason
	v, known := apnsReasons[body.Reason]
	code := httpCode(a.status)
	switch {
	case known:
		code = snake("apns_", body.Reason)
	case a.status == 410:
		v = verdict{class: notify.ClassDeadAddress}
	case a.status == 429:
		v = verdict{class: notify.ClassRetry}
	default:
		v = byStatus(a.status)
	}
	r := notify.Result{Class: v.class, Code: code, Provider: "apns", RetryAfter: a.retryAfter(now)}
	if r.RetryAfter == 0 {
		r.RetryAfter = v.after
	}
	return r, v.then
}

// spike guards against marking every device dead because a topic or an
// environment is wrong: when all of the first answers say so, it is our
// configuration. One success refutes that for good, since topic and environment
// are fixed while the process runs.
//
// Only tokens of users count: whoever may send may name 200 made-up tokens, and
// must not stop everybody's pushes by them. Nor does such an answer say that a
// token is dead before there was a success.
type spike struct {
	proven atomic.Bool
	dead   atomic.Int64 // answers about users' tokens before the first success
	given  atomic.Int64 // the same about tokens of requests
}

// spikeLeast is how many dead addresses the guard waits for before it judges.
const spikeLeast = 200

// accepted notes a success.
func (s *spike) accepted() {
	if !s.proven.Load() {
		s.proven.Store(true)
	}
}

// judge says what the answer that an item's address is bad means.
func (s *spike) judge(it *notify.Item, r *notify.Result, log *slog.Logger) {
	switch {
	case s.proven.Load():
	case it.Given:
		r.Class = notify.ClassPermanent
		if s.given.Add(1) == spikeLeast {
			log.Warn("tokens of requests are refused, and none was accepted yet: topic or environment may be wrong", "refused", spikeLeast, "code", r.Code)
		}
	case s.dead.Add(1) >= spikeLeast:
		r.Class, r.Code = notify.ClassConfig, "apns_bad_token_spike"
	}
}
