package provider

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// sendGridStatus is the table of SendGrid's answers by HTTP status, because SendGrid has no error
// codes. For a status that is not in the table, ruleByStatusQueued is used.
var sendGridStatus = map[int]answerRule{
	400: {class: notify.ClassPermanent},
	401: {class: notify.ClassConfig},
	403: {class: notify.ClassConfig}, // may also mean a temporary block or a wrong sender, see sendGridResult
	404: {class: notify.ClassConfig},
	405: {class: notify.ClassConfig},
	406: {class: notify.ClassConfig},
	413: {class: notify.ClassPermanent},
	415: {class: notify.ClassConfig},
	451: {class: notify.ClassConfig}, // data residency
	429: {class: notify.ClassThrottled},
}

const sendGridCooldown = 5 * time.Minute

// sendGridOutcome says what an answer means for the receivers of a request.
type sendGridOutcome struct {
	result notify.Result         // for all receivers that are not in bad
	bad    map[int]notify.Result // results of bad receivers, by index in the request
	split  bool                  // the caller must send the two halves of the request separately
	sender bool                  // the account may not send from this address
}

type sendGridErrors struct {
	Errors []struct {
		Message string `json:"message"`
		Field   string `json:"field"` // "personalizations.3.to.0.email", or null
	} `json:"errors"`
}

// sendGridResult classifies the answer to a request with n receivers.
func sendGridResult(a *providerAnswer, n int, now time.Time) sendGridOutcome {
	var v sendGridOutcome
	if a.status >= 200 && a.status < 300 {
		v.result = notify.Result{Class: notify.ClassAccepted, ProviderID: a.header.Get("X-Message-Id")}
		return v
	}
	line, known := sendGridStatus[a.status]
	if !known {
		line = ruleByStatusQueued(a.status)
	}
	v.result = notify.Result{Class: line.class, Code: httpCode(a.status), RetryAfter: a.retryAfter(now)}
	var body sendGridErrors
	_ = json.Unmarshal(a.body, &body) // if the body cannot be decoded, only the status counts
	switch a.status {
	case 400:
		v.result.Code = "sendgrid_bad_request"
		v.findBad(&body, n)
	case 403:
		for _, e := range body.Errors {
			if m := strings.ToLower(e.Message); strings.Contains(m, "too many") || strings.Contains(m, "temporar") {
				v.result.Class, v.result.Code = notify.ClassThrottled, "sendgrid_temporary_block"
				v.result.RetryAfter = max(v.result.RetryAfter, sendGridCooldown)
			}
			v.sender = v.sender || e.Field == "from" || strings.HasPrefix(e.Field, "from.")
		}
	case 413:
		v.result.Code = "payload_too_large"
		v.split = true
	case 429:
		v.result.Code = "sendgrid_rate_limit"
		if at, err := strconv.ParseInt(a.header.Get("X-RateLimit-Reset"), 10, 64); err == nil {
			// Wait at least a second: the clocks may differ, and shorter waits could cause a storm
			// of requests.
			wait := min(max(time.Unix(at, 0).Sub(now), time.Second), time.Hour)
			v.result.RetryAfter = max(v.result.RetryAfter, wait)
		}
	}
	return v
}

// findBad finds the receivers that caused SendGrid to refuse a request.
func (v *sendGridOutcome) findBad(body *sendGridErrors, n int) {
	shared, vague := false, len(body.Errors) == 0
	for _, e := range body.Errors {
		rest, perReceiver := strings.CutPrefix(e.Field, "personalizations.")
		at, field, _ := strings.Cut(rest, ".")
		i, err := strconv.Atoi(at)
		switch {
		case perReceiver && err == nil && i >= 0 && i < n:
			if v.bad == nil {
				v.bad = make(map[int]notify.Result)
			}
			r := notify.Result{Class: notify.ClassPermanent, Code: "sendgrid_bad_request"}
			if strings.HasPrefix(field, "to") && (strings.HasSuffix(field, "email") || strings.Contains(strings.ToLower(e.Message), "valid address")) {
				r.Class, r.Code = notify.ClassDeadAddress, "sendgrid_invalid_address"
			}
			v.bad[i] = r
		case perReceiver || e.Field == "":
			vague = true
		default:
			shared = true
		}
	}
	switch {
	case shared: // an error of sender, subject or content concerns every receiver
		v.bad = nil
	case len(v.bad) > 0:
	case vague:
		v.split = true
	}
}
