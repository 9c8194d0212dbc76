package provider_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/provider"
	"github.com/notifyd/notifyd/pkg/simulator"
)

// tests runs the test of each provider; to says where by provider, nil: nowhere.
func (w *world) tests(t *testing.T, to map[string]string) map[string][]provider.Trial {
	t.Helper()
	return map[string][]provider.Trial{
		"apns": w.apns.Test(t.Context(), to["apns"]), "fcm": w.fcm.Test(t.Context(), to["fcm"]),
		"twilio": w.twilio.Test(t.Context(), "twilio", to["twilio"]), "sendgrid": w.sendgrid.Test(t.Context(), "sendgrid", to["sendgrid"]),
	}
}

// found fails the test unless every trial of a provider has this verdict, status and code.
func found(t *testing.T, trials []provider.Trial, calls int, verdict string, status int, code string) {
	t.Helper()
	if len(trials) != calls {
		t.Errorf("%d calls, want %d: %+v", len(trials), calls, trials)
	}
	for _, one := range trials {
		if one.Verdict != verdict || one.Status != status || one.Code != code || (one.Detail == "") != (verdict == provider.VerdictOK) || one.Took <= 0 || one.Called == "" {
			t.Errorf("%+v, want %s, %d, %q", one, verdict, status, code)
		}
	}
}

// A dry run is answered by every provider and delivers nothing; with an address one
// message is delivered, and no receipt of ours follows.
func TestTrials(t *testing.T) {
	t.Parallel()
	w := newWorld(t, simulator.Config{}, 20*time.Second)
	cred := w.sim.Credentials()
	dry := w.tests(t, nil)
	found(t, dry["apns"], 1, "ok", 400, "apns_bad_device_token")
	found(t, dry["fcm"], 1, "ok", 200, "")
	found(t, dry["twilio"], len(cred.Twilio), "ok", 200, "")
	found(t, dry["sendgrid"], len(cred.SendGrid.Pools), "ok", 200, "")
	sum := w.sim.Ledger().Summary()
	for name, p := range sum.Providers {
		if p.Accepted != 0 || p.Requests == 0 {
			t.Errorf("dry run of %s: %+v", name, p)
		}
	}
	to := map[string]string{"apns": "apns:" + simulator.DeviceToken(1), "fcm": "fcm:" + simulator.RegistrationToken(1), "twilio": simulator.Phone(1), "sendgrid": simulator.Mailbox(1)}
	for name, trials := range w.tests(t, to) {
		status := map[string]int{"apns": 200, "fcm": 200, "twilio": 201, "sendgrid": 202}[name]
		found(t, trials, 1, "ok", status, "")
		if strings.Contains(trials[0].Called, simulator.DeviceToken(1)) {
			t.Errorf("the address is shown: %s", trials[0].Called)
		}
		if p := w.sim.Ledger().Summary().Providers[name]; p.Accepted != 1 {
			t.Errorf("%s: %+v", name, p)
		}
	}
	for _, m := range w.sim.Inbox() {
		if !strings.Contains(m.Body, "test of notifyd") && m.To != "00" {
			t.Errorf("%+v", m)
		}
		if m.ID != "" && (m.Provider == simulator.Twilio || m.Provider == simulator.SendGrid) {
			t.Errorf("its events would be receipts of ours: %+v", m)
		}
	}
	second := "twilio:" + cred.Twilio[1].SID
	if one := w.twilio.Test(t.Context(), second, ""); len(one) != 1 || one[0].Account != second {
		t.Errorf("an account: %+v", one)
	}
	if none := w.twilio.Test(t.Context(), "twilio:AC0", ""); len(none) != 0 {
		t.Errorf("an unknown account: %+v", none)
	}
}

// Trials tell causes apart: credentials, project or topic, the connection, and a provider in
// trouble.
func TestTrialVerdicts(t *testing.T) {
	t.Parallel()
	project := func(name, to string) func(c *simulator.Credentials) {
		return func(c *simulator.Credentials) {
			c.FCM.ServiceAccountJSON = bytes.Replace(c.FCM.ServiceAccountJSON, []byte(name), []byte(to), 1)
		}
	}
	refused := newWorld(t, simulator.Config{}, 20*time.Second, func(c *simulator.Credentials) {
		c.APNs.KeyID, c.SendGrid.APIKey = "WRONGKEY00", "SG.wrong"
		for i := range c.Twilio {
			c.Twilio[i].Token = "wrong"
		}
	}, project("simulator@", "nobody@")).tests(t, nil)
	found(t, refused["apns"], 1, "credentials_refused", 403, "apns_invalid_provider_token")
	found(t, refused["fcm"], 1, "credentials_refused", 0, "fcm_oauth_refused")
	found(t, refused["twilio"], len(refused["twilio"]), "credentials_refused", 401, "twilio_20003")
	found(t, refused["sendgrid"], len(refused["sendgrid"]), "credentials_refused", 401, "http_401")

	other := newWorld(t, simulator.Config{}, 20*time.Second, func(c *simulator.Credentials) { c.APNs.Topic = "com.example.other" },
		project(`"notifyd-dev"`, `"notifyd-prod"`))
	wrong := other.tests(t, nil)
	found(t, wrong["apns"], 1, "wrong_project", 400, "apns_topic_disallowed")
	found(t, wrong["fcm"], 1, "wrong_project", 403, "fcm_permission_denied")

	w := newWorld(t, simulator.Config{}, 20*time.Second)
	rule := func(r simulator.Rule) func() {
		added := must[simulator.Rule](t)(w.sim.AddRule(r))
		return func() { w.sim.RemoveRule(added.Number) }
	}
	remove := rule(simulator.Rule{Do: simulator.Outage})
	for name, trials := range w.tests(t, nil) {
		if name == "fcm" { // its token endpoint is out as well
			found(t, trials, 1, "unreachable", 0, "fcm_oauth")
		} else if trials[0].Verdict != "unavailable" || trials[0].Status != 503 {
			t.Errorf("%s: %+v", name, trials)
		}
	}
	remove()
	remove = rule(simulator.Rule{Do: simulator.Drop})
	for name, trials := range w.tests(t, nil) {
		if trials[0].Verdict != "unreachable" || trials[0].Status != 0 || trials[0].Detail == "" {
			t.Errorf("%s: %+v", name, trials)
		}
	}
	remove()
	defer rule(simulator.Rule{Do: simulator.Throttle})()
	for name, trials := range w.tests(t, nil) {
		if name != "fcm" && (trials[0].Verdict != "throttled" || trials[0].Status != 429) {
			t.Errorf("%s: %+v", name, trials)
		}
	}
	// None of this told a breaker, nor blocked an account.
	for _, a := range append(w.twilio.Accounts(), w.sendgrid.Accounts()...) {
		if a.Breaker.State != limit.Closed || !a.Blocked.IsZero() {
			t.Errorf("%+v", a)
		}
	}
}
