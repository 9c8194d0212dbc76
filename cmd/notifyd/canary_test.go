package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/provider"
	"github.com/notifyd/notifyd/pkg/server"
	"github.com/notifyd/notifyd/pkg/simulator"
)

// TestNothingPrivateIsTold sends marked content to marked addresses, with
// success, errors, broken connections, forged receipts and bad requests, at log
// level debug, and then looks for the marks in the log, the metrics, the
// doctor's findings and the lag.
func TestNothingPrivateIsTold(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	sim, err := simulator.New(simulator.Config{Dir: filepath.Join(dir, "simulator")})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	simDone := make(chan error, 1)
	go func() { simDone <- sim.Run(ctx) }()
	defer func() {
		stop()
		if err := <-simDone; err != nil {
			t.Error(err)
		}
	}()
	values, _, _, err := devConfig(dir, filepath.Join(dir, "simulator"), devAddrs{api: "127.0.0.1:0", admin: "127.0.0.1:0", kafka: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	values["logging.level"], values["logging.format"], values["log.sync"] = "debug", "json", false
	values["workers.max_retries"], values["workers.batch_age"] = 1, "20ms"
	l, err := app.Load(nil, nil, values)
	if err != nil {
		t.Fatal(err)
	}
	var log output
	n, err := app.New(l.Config, newLogger(&log, &l.Config))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	nctx, end := context.WithCancel(context.Background())
	go func() { done <- n.Run(nctx) }()
	stopped := false
	finish := func() {
		if !stopped {
			stopped = true
			end()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	defer finish()
	if err := sim.SetReceipts(simulator.Receipts{Undelivered: 0.5, SendGridURL: "http://" + n.Addr() + "/v1/receipts/sendgrid"}); err != nil {
		t.Fatal(err)
	}
	token, err := signToken(filepath.Join(dir, "key.pem"), server.TokenSpec{Caller: "shop", Issuer: "notifyd", Audience: "notifyd", Scopes: api.Scopes[:], TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	tr := api.NewTransport(0)
	defer tr.CloseIdleConnections()
	cl := &api.Client{
		BaseURL: "http://" + n.Addr(), HTTPClient: &http.Client{Transport: tr}, Retries: 5000, Backoff: 10 * time.Millisecond,
		Token: func(context.Context) (string, error) { return token, nil },
	}
	if err := cl.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}

	const mark = "canaryX7Q"
	creds := sim.Credentials()
	secrets := []string{mark, token, creds.SendGrid.APIKey}
	for _, a := range creds.Twilio {
		b, err := json.Marshal(a)
		var account provider.TwilioAccount
		if err == nil {
			err = json.Unmarshal(b, &account)
		}
		if err != nil || account.Token == "" {
			t.Fatalf("account %s: %v", b, err)
		}
		secrets = append(secrets, account.Token)
	}
	for _, file := range []string{"key.pem", "simulator/apns.p8"} {
		b, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, strings.Split(string(b), "\n")[1])
	}
	content := func(ch string) api.Content {
		c := api.Content{Body: "body " + mark + " {{name}}", Variables: json.RawMessage(`{"name":"` + mark + `"}`)}
		if ch != "sms" {
			c.Title = "title " + mark
		}
		if ch == "push" {
			c.Data = json.RawMessage(`{"k":"` + mark + `"}`)
		}
		return c
	}
	var ids []string
	next := uint64(900)
	all := func() {
		t.Helper()
		next++
		for ch, address := range map[string]string{
			"push": "apns:" + simulator.DeviceToken(next), "sms": simulator.Phone(next), "email": mark + "-" + simulator.Mailbox(next),
		} {
			category := "transactional"
			if ch == "sms" {
				category = "otp"
			}
			send := api.Notification{Channel: ch, Category: category, To: api.Receiver{UserID: "u-1", Address: address}, Content: content(ch)}
			sent, err := cl.Send(t.Context(), send, "")
			if err != nil {
				t.Fatalf("%s: %v", ch, err)
			}
			_, plain, _ := strings.Cut(address, ":")
			if plain == "" {
				plain = address
			}
			ids, secrets = append(ids, sent.NotificationID), append(secrets, plain)
		}
		fcm := "fcm:" + simulator.RegistrationToken(next)
		sent, err := cl.Send(t.Context(), api.Notification{
			Channel: "push", Category: "transactional", To: api.Receiver{UserID: "u-1", Address: fcm}, Content: content("push"),
		}, "")
		if err != nil {
			t.Fatal(err)
		}
		ids, secrets = append(ids, sent.NotificationID), append(secrets, strings.TrimPrefix(fcm, "fcm:"))
		for _, id := range ids[len(ids)-4:] {
			terminal(t, cl, id)
		}
	}
	all() // success
	for _, rule := range []simulator.Rule{
		{Do: simulator.Fail, Status: 400}, {Do: simulator.Outage, Count: 4}, {Do: simulator.Reset, Count: 8}, {Do: simulator.Drop, Count: 4},
		{Do: simulator.Throttle, Count: 4, RetryAfter: simulator.Duration(time.Second)},
	} {
		r, err := sim.AddRule(rule)
		if err != nil {
			t.Fatal(err)
		}
		all()
		sim.RemoveRule(r.Number)
	}
	// Requests that are refused, and receipts nobody signed.
	for path, body := range map[string]string{
		"/v1/notifications":     `{"channel":"` + mark + `","to":{"user_id":"` + mark + `","address":"+15550009999"}}`,
		"/v1/receipts/twilio":   "To=%2B15550009999&Body=" + mark,
		"/v1/receipts/sendgrid": `[{"email":"` + mark + `@example.com"}]`,
		"/v1/nowhere/" + mark:   "{",
	} {
		for _, auth := range []string{"Bearer " + token, "Bearer " + mark} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, cl.BaseURL+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", auth)
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("X-Twilio-Signature", mark)
			resp, err := cl.HTTPClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode < 400 {
				t.Errorf("%s: %s", path, resp.Status)
			}
		}
	}
	secrets = append(secrets, "15550009999")

	told := map[string]string{}
	for name, url := range map[string]string{
		"doctor": cl.BaseURL + "/v1/ops/doctor", "lag": cl.BaseURL + "/v1/ops/lag", "metrics": "http://" + n.Admin() + "/metrics",
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := cl.HTTPClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		told[name] = string(b)
	}
	finish()
	told["log"] = log.String()
	for what, want := range map[string]string{"log": `"level"`, "metrics": "notifyd_outcomes_total", "doctor": `"check"`, "lag": "push-workers"} {
		if !strings.Contains(told[what], want) {
			t.Errorf("the %s holds no %s: nothing was looked at", what, want)
		}
	}
	for what, text := range told {
		for _, secret := range secrets {
			if at := strings.Index(text, secret); at >= 0 {
				t.Errorf("%q stands in the %s: ...%s...", secret, what, text[max(0, at-200):min(len(text), at+100)])
			}
		}
	}
	t.Logf("%d marks not found in %d bytes of log", len(secrets), len(told["log"]))
}

// terminal waits until a notification is done with.
func terminal(t *testing.T, cl *api.Client, id string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(time.Minute)
	for {
		st, err := cl.Notification(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if s, _ := notify.ParseState(st.Status); s.Terminal() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s stays %s (%s)", id, st.Status, st.Code)
		}
		<-tick.C
	}
}
