package provider

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

var testNow = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func said(status int, body string, header ...string) *providerAnswer {
	a := &providerAnswer{status: status, header: http.Header{}, body: []byte(body)}
	for i := 0; i < len(header); i += 2 {
		a.header.Set(header[i], header[i+1])
	}
	return a
}

func TestAPNsAnswers(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	f := func(status int, reason string, class notify.Class, code string, then answerAction, after time.Duration) {
		t.Helper()
		seen[reason] = true
		r, a := apnsResult(said(status, `{"reason":"`+reason+`","timestamp":1}`), testNow)
		if r.Class != class || r.Code != code || a != then || r.RetryAfter != after || r.Provider != "apns" {
			t.Errorf("%d %s: %+v, action %d", status, reason, r, a)
		}
	}
	f(400, "BadDeviceToken", notify.ClassDeadAddress, "apns_bad_device_token", 0, 0)
	f(400, "DeviceTokenNotForTopic", notify.ClassDeadAddress, "apns_device_token_not_for_topic", 0, 0)
	f(410, "Unregistered", notify.ClassDeadAddress, "apns_unregistered", 0, 0)
	f(410, "ExpiredToken", notify.ClassDeadAddress, "apns_expired_token", 0, 0)
	f(429, "TooManyRequests", notify.ClassRetry, "apns_too_many_requests", 0, 0)
	for _, reason := range []string{"PayloadEmpty", "BadCollapseId", "BadExpirationDate", "BadMessageId", "BadPriority", "BadTopic",
		"MissingTopic", "MissingDeviceToken", "TopicDisallowed", "InvalidPushType", "DuplicateHeaders"} {
		f(400, reason, notify.ClassPermanent, snakeCase("apns_", reason), 0, 0)
	}
	f(404, "BadPath", notify.ClassPermanent, "apns_bad_path", 0, 0)
	f(405, "MethodNotAllowed", notify.ClassPermanent, "apns_method_not_allowed", 0, 0)
	f(413, "PayloadTooLarge", notify.ClassPermanent, "apns_payload_too_large", 0, 0)
	f(400, "IdleTimeout", notify.ClassRetry, "apns_idle_timeout", leaveConn, 0)
	f(403, "ExpiredProviderToken", notify.ClassRetry, "apns_expired_provider_token", renewToken, 0)
	for _, reason := range []string{"InvalidProviderToken", "MissingProviderToken", "BadCertificate", "BadCertificateEnvironment",
		"Forbidden", "UnrelatedKeyIdInToken", "BadEnvironmentKeyIdInToken"} {
		f(403, reason, notify.ClassConfig, snakeCase("apns_", reason), 0, 0)
	}
	f(429, "TooManyProviderTokenUpdates", notify.ClassThrottled, "apns_too_many_provider_token_updates", 0, 5*time.Minute)
	f(500, "InternalServerError", notify.ClassUnavailable, "apns_internal_server_error", 0, 0)
	f(503, "ServiceUnavailable", notify.ClassUnavailable, "apns_service_unavailable", 0, 0)
	f(503, "Shutdown", notify.ClassUnavailable, "apns_shutdown", leaveConn, 0)
	for reason := range apnsReasons {
		if !seen[reason] {
			t.Errorf("no test for %s", reason)
		}
	}
	// An unknown reason, or none: the status decides.
	f(410, "Novel", notify.ClassDeadAddress, "http_410", 0, 0)
	f(429, "Novel", notify.ClassRetry, "http_429", 0, 0)
	f(400, "Novel", notify.ClassPermanent, "http_400", 0, 0)
	f(403, "Novel", notify.ClassConfig, "http_403", 0, 0)
	f(503, "", notify.ClassUnavailable, "http_503", 0, 0)
	f(301, "", notify.ClassConfig, "http_301", 0, 0)

	if r, _ := apnsResult(said(502, "<html>bad gateway</html>", "Retry-After", "7"), testNow); r.Class != notify.ClassUnavailable || r.Code != "http_502" || r.RetryAfter != 7*time.Second {
		t.Errorf("a proxy's page: %+v", r)
	}
	if r, _ := apnsResult(said(200, ""), testNow); r.Class != notify.ClassAccepted || r.Code != "" || r.ProviderID != "" {
		t.Errorf("accepted: %+v", r)
	}
}

func TestFCMAnswers(t *testing.T) {
	t.Parallel()
	f := func(status int, state, code, message string, class notify.Class, want string, after time.Duration, header ...string) {
		t.Helper()
		details := "[]"
		if code != "" {
			details = `[{"@type":"type.googleapis.com/google.rpc.BadRequest"},{"@type":"type.googleapis.com/google.firebase.fcm.v1.FcmError","errorCode":"` + code + `"}]`
		}
		m, _ := json.Marshal(message)
		body := fmt.Sprintf(`{"error":{"code":%d,"message":%s,"status":%q,"details":%s}}`, status, m, state, details)
		r, _ := fcmResult(said(status, body, header...), testNow, time.Minute)
		if r.Class != class || r.Code != want || r.RetryAfter != after || r.Provider != "fcm" {
			t.Errorf("%d %s %s: %+v", status, state, code, r)
		}
	}
	f(400, "INVALID_ARGUMENT", "INVALID_ARGUMENT", "The registration token is not a valid FCM registration token", notify.ClassDeadAddress, "fcm_invalid_token", 0)
	f(400, "INVALID_ARGUMENT", "", "Invalid JSON payload received.", notify.ClassPermanent, "fcm_invalid_argument", 0)
	f(401, "UNAUTHENTICATED", "", "", notify.ClassConfig, "fcm_unauthenticated", 0)
	f(401, "UNAUTHENTICATED", "THIRD_PARTY_AUTH_ERROR", "", notify.ClassConfig, "fcm_third_party_auth_error", 0)
	f(403, "PERMISSION_DENIED", "SENDER_ID_MISMATCH", "", notify.ClassDeadAddress, "fcm_sender_id_mismatch", 0)
	f(403, "PERMISSION_DENIED", "", "", notify.ClassConfig, "fcm_permission_denied", 0)
	f(404, "NOT_FOUND", "UNREGISTERED", "Requested entity was not found.", notify.ClassDeadAddress, "fcm_unregistered", 0)
	f(404, "NOT_FOUND", "", "Requested entity was not found.", notify.ClassDeadAddress, "fcm_not_found", 0)
	f(429, "RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED", "Quota exceeded for quota metric", notify.ClassThrottled, "fcm_quota_exceeded", time.Minute)
	f(429, "RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED", "Quota exceeded", notify.ClassThrottled, "fcm_quota_exceeded", 9*time.Second, "Retry-After", "9")
	f(429, "RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED", "Device message rate exceeded", notify.ClassRetry, "fcm_quota_exceeded", time.Minute)
	f(429, "RESOURCE_EXHAUSTED", "", "", notify.ClassThrottled, "fcm_resource_exhausted", time.Minute)
	f(500, "INTERNAL", "INTERNAL", "", notify.ClassUnavailable, "fcm_internal", 0)
	f(503, "UNAVAILABLE", "UNAVAILABLE", "", notify.ClassUnavailable, "fcm_unavailable", 30*time.Second, "Retry-After", testNow.Add(30*time.Second).Format(http.TimeFormat))
	f(502, "", "", "", notify.ClassUnavailable, "http_502", 0)
	f(418, "TEAPOT", "", "", notify.ClassPermanent, "http_418", 0)

	r, _ := fcmResult(said(200, `{"name":"projects/p/messages/0:1"}`), testNow, time.Minute)
	if r.Class != notify.ClassAccepted || r.ProviderID != "projects/p/messages/0:1" {
		t.Errorf("accepted: %+v", r)
	}
}

func TestTwilioAnswers(t *testing.T) {
	t.Parallel()
	seen := map[int]bool{}
	f := func(status, code int, class notify.Class, want string, after time.Duration, header ...string) {
		t.Helper()
		seen[code] = true
		r, _ := twilioResult(said(status, fmt.Sprintf(`{"code":%d,"message":"to +15550001 no","status":%d}`, code, status), header...), testNow)
		if r.Class != class || r.Code != want || r.RetryAfter != after {
			t.Errorf("%d %d: %+v", status, code, r)
		}
	}
	f(429, 20429, notify.ClassThrottled, "twilio_20429", 0)
	f(429, 20429, notify.ClassThrottled, "twilio_20429", 3*time.Second, "Retry-After", "3")
	f(429, 14107, notify.ClassRetry, "twilio_14107", time.Minute)
	f(429, 21611, notify.ClassRetry, "twilio_21611", time.Minute)
	f(400, 30001, notify.ClassRetry, "twilio_30001", time.Minute)
	f(400, 30450, notify.ClassRetry, "twilio_30450", 20*time.Minute)
	for _, code := range []int{20003, 20005, 20008, 20404, 30002, 21701, 21703, 21704} {
		f(401, code, notify.ClassConfig, twilioCode(code), 0)
	}
	for _, code := range []int{21211, 21217, 21614, 21635} {
		f(400, code, notify.ClassDeadAddress, twilioCode(code), 0)
	}
	f(400, 21610, notify.ClassOptedOut, "twilio_21610", 0)
	for _, code := range []int{21212, 21408, 21606, 21608, 21612, 21659, 21660, 21602, 21617, 21655, 21656, 30007} {
		f(400, code, notify.ClassPermanent, twilioCode(code), 0)
	}
	for code := range twilioCodes {
		if !seen[code] {
			t.Errorf("no test for %d", code)
		}
	}
	f(400, 21999, notify.ClassPermanent, "twilio_21999", 0)
	f(500, 20500, notify.ClassAmbiguous, "twilio_20500", 0)
	f(502, 0, notify.ClassAmbiguous, "http_502", 0)
	f(504, 0, notify.ClassAmbiguous, "http_504", 0)
	f(503, 0, notify.ClassUnavailable, "http_503", 0)
	f(429, 0, notify.ClassThrottled, "http_429", 0)
	f(401, 0, notify.ClassConfig, "http_401", 0)

	r, _ := twilioResult(said(201, `{"sid":"SM1","status":"queued","error_code":null}`), testNow)
	if r.Class != notify.ClassAccepted || r.ProviderID != "SM1" {
		t.Errorf("accepted: %+v", r)
	}
	if r, _ = twilioResult(said(201, `{"sid":`), testNow); r.Class != notify.ClassAccepted {
		t.Errorf("accepted, the body cut off: %+v", r)
	}
}

func TestSendGridAnswers(t *testing.T) {
	t.Parallel()
	f := func(status int, body string, class notify.Class, code string, after time.Duration, header ...string) sendGridOutcome {
		t.Helper()
		v := sendGridResult(said(status, body, header...), 4, testNow)
		if v.result.Class != class || v.result.Code != code || v.result.RetryAfter != after {
			t.Errorf("%d %s: %+v", status, body, v)
		}
		return v
	}
	f(401, `{"errors":[{"message":"The provided authorization grant is invalid","field":null}]}`, notify.ClassConfig, "http_401", 0)
	if v := f(403, `{"errors":[{"message":"The from address does not match a verified Sender Identity","field":"from"}]}`, notify.ClassConfig, "http_403", 0); !v.sender {
		t.Error("it is about the sender")
	}
	if v := f(403, `{"errors":[{"message":"access forbidden","field":null}]}`, notify.ClassConfig, "http_403", 0); v.sender {
		t.Error("it is not about the sender")
	}
	f(403, `{"errors":[{"message":"Too many bad requests. Temporary block","field":null}]}`, notify.ClassThrottled, "sendgrid_temporary_block", 5*time.Minute)
	for _, status := range []int{404, 405, 406, 415, 451} {
		f(status, "", notify.ClassConfig, httpCode(status), 0)
	}
	for _, status := range []int{500, 502, 504, 520} {
		f(status, "", notify.ClassAmbiguous, httpCode(status), 0)
	}
	f(503, "", notify.ClassUnavailable, "http_503", 0)
	f(429, "", notify.ClassThrottled, "sendgrid_rate_limit", 0)
	f(429, "", notify.ClassThrottled, "sendgrid_rate_limit", 42*time.Second, "X-RateLimit-Reset", fmt.Sprint(testNow.Unix()+42))
	f(429, "", notify.ClassThrottled, "sendgrid_rate_limit", time.Second, "X-RateLimit-Reset", fmt.Sprint(testNow.Unix()-5))
	if v := f(413, "", notify.ClassPermanent, "payload_too_large", 0); !v.split {
		t.Error("413 does not split")
	}
	if v := f(202, "", notify.ClassAccepted, "", 0, "X-Message-Id", "abc"); v.result.ProviderID != "abc" {
		t.Errorf("accepted: %+v", v)
	}

	// whom a 400 is about
	if v := f(400, `{"errors":[{"message":"bad","field":null}]}`, notify.ClassPermanent, "sendgrid_bad_request", 0); !v.split || v.bad != nil {
		t.Errorf("nobody named: %+v", v)
	}
	if v := f(400, `not json`, notify.ClassPermanent, "sendgrid_bad_request", 0); !v.split {
		t.Errorf("no body: %+v", v)
	}
	if v := f(400, `{"errors":[{"field":"from.email"},{"field":"personalizations.1.to.0.email"}]}`, notify.ClassPermanent, "sendgrid_bad_request", 0); v.split || v.bad != nil {
		t.Errorf("the content is bad: %+v", v)
	}
	v := f(400, `{"errors":[{"field":"personalizations.1.to.0.email"},{"field":"personalizations.3.custom_args"}]}`, notify.ClassPermanent, "sendgrid_bad_request", 0)
	if v.split || len(v.bad) != 2 || v.bad[1].Class != notify.ClassDeadAddress || v.bad[3].Class != notify.ClassPermanent {
		t.Errorf("two named: %+v", v)
	}
	if v := f(400, `{"errors":[{"field":"personalizations.9.to.0.email"}]}`, notify.ClassPermanent, "sendgrid_bad_request", 0); !v.split || v.bad != nil {
		t.Errorf("an index that is not there: %+v", v)
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	f := func(v string, want time.Duration) {
		t.Helper()
		if got := said(429, "", "Retry-After", v).retryAfter(testNow); got != want {
			t.Errorf("%q: %v, want %v", v, got, want)
		}
	}
	f("", 0)
	f("5", 5*time.Second)
	f("1.5", 1500*time.Millisecond)
	f("-5", 0)
	f("NaN", 0)
	f("1e300", 0)
	f("soon", 0)
	f(testNow.Add(time.Minute).Format(http.TimeFormat), time.Minute)
	f(testNow.Add(-time.Minute).Format(http.TimeFormat), 0)
}

func TestTokenGuard(t *testing.T) {
	t.Parallel()
	g := tokenGuard{code: "fcm_bad_token_spike", log: slog.New(slog.DiscardHandler)}
	judge := func(given bool, then answerAction) notify.Result {
		r := notify.Result{Class: notify.ClassDeadAddress, Code: "fcm_unregistered"}
		g.correctDeadToken(&notify.Item{FromRequest: given}, &r, then)
		return r
	}
	for range 10 * guardLeast { // somebody's made-up tokens
		for _, then := range []answerAction{0, otherProject} {
			if r := judge(true, then); r.Class != notify.ClassPermanent {
				t.Fatalf("%+v of a request's token", r)
			}
		}
	}
	for range 10 { // of another project: that of the key, as far as is known
		if r := judge(false, otherProject); r.Class != notify.ClassConfig || r.Code != "fcm_unregistered" {
			t.Fatalf("%+v of a token of another project", r)
		}
	}
	for i := range guardLeast - 1 {
		if r := judge(false, 0); r.Class != notify.ClassPermanent {
			t.Fatalf("given up after %d answers: %+v", i+1, r)
		}
	}
	if r := judge(false, 0); r.Class != notify.ClassConfig || r.Code != "fcm_bad_token_spike" {
		t.Fatalf("200 dead of 200 do not stop it: %+v", r)
	}
	g.noteAccepted()
	for range 10 * guardLeast {
		for _, given := range []bool{true, false} {
			for _, then := range []answerAction{0, otherProject} {
				if r := judge(given, then); r.Class != notify.ClassDeadAddress {
					t.Fatalf("credentials that worked are doubted: %+v", r)
				}
			}
		}
	}
}
