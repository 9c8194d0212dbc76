package provider

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// twilioCodes is the table of Twilio's error codes in answers to calls.
var twilioCodes = map[int]answerRule{
	// Answers about limits. The message was not processed.
	20429: {class: notify.ClassThrottled},
	14107: {class: notify.ClassRetry, after: time.Minute},
	21611: {class: notify.ClassRetry, after: time.Minute}, // the sender's queue is full
	30001: {class: notify.ClassRetry, after: time.Minute},

	// Answers about the account.
	20003: {class: notify.ClassConfig},
	20005: {class: notify.ClassConfig},
	20008: {class: notify.ClassConfig}, // test credentials
	20404: {class: notify.ClassConfig},
	30002: {class: notify.ClassConfig},
	21701: {class: notify.ClassConfig}, // messaging service
	21703: {class: notify.ClassConfig},
	21704: {class: notify.ClassConfig},

	// Answers about the receiver's number.
	21211: {class: notify.ClassDeadAddress},
	21217: {class: notify.ClassDeadAddress},
	21614: {class: notify.ClassDeadAddress},
	21635: {class: notify.ClassDeadAddress},
	21610: {class: notify.ClassOptedOut},

	// Answers about the receiver's number and the sender together.
	21212: {class: notify.ClassPermanent, then: senderFault},
	21408: {class: notify.ClassPermanent}, // no permission for the country
	21606: {class: notify.ClassPermanent, then: senderFault},
	21608: {class: notify.ClassPermanent}, // trial account, number not verified
	21612: {class: notify.ClassPermanent},
	21659: {class: notify.ClassPermanent, then: senderFault},
	21660: {class: notify.ClassPermanent, then: senderFault},

	// Answers about the content.
	21602: {class: notify.ClassPermanent},
	21617: {class: notify.ClassPermanent},
	21655: {class: notify.ClassPermanent},
	21656: {class: notify.ClassPermanent},
	30007: {class: notify.ClassPermanent},
	30450: {class: notify.ClassRetry, after: 20 * time.Minute}, // fraud guard
}

// twilioResult classifies an answer by its error code. If the code is unknown, it uses the status.
func twilioResult(a *providerAnswer, now time.Time) (notify.Result, answerAction) {
	var body struct {
		SID  string `json:"sid"`
		Code int    `json:"code"`
	}
	_ = json.Unmarshal(a.body, &body) // if the body cannot be decoded, only the status counts
	if a.status >= 200 && a.status < 300 {
		return notify.Result{Class: notify.ClassAccepted, ProviderID: body.SID}, 0
	}
	v, known := twilioCodes[body.Code]
	r := notify.Result{Code: twilioCode(body.Code)}
	if !known {
		v = ruleByStatusQueued(a.status)
		// If a 429 names no time, accounts.blockAccount chooses the time, and doubles it after each
		// further refusal.
		v.after = 0
		if body.Code == 0 {
			r.Code = httpCode(a.status)
		}
	}
	r.Class = v.class
	if r.RetryAfter = a.retryAfter(now); r.RetryAfter == 0 {
		r.RetryAfter = v.after
	}
	return r, v.then
}

func twilioCode(code int) string { return "twilio_" + strconv.Itoa(code) }
