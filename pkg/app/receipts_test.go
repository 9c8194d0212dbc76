package app

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/simulator"
)

// simulated runs a node together with simulated providers that send receipts to it.
func simulated(t *testing.T, receipts simulator.Receipts) (*life, *simulator.Simulator) {
	t.Helper()
	return simulatedWith(t, receipts, func(*Config) {}, func(*Node) {})
}

// simulatedWith does the same as simulated, but changes the configuration, and calls the function
// before with the node before the node runs.
func simulatedWith(t *testing.T, receipts simulator.Receipts, change func(*Config), before func(*Node)) (*life, *simulator.Simulator) {
	t.Helper()
	dir := t.TempDir()
	sim, err := simulator.New(simulator.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- sim.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	cfg := testConfig(t, t.TempDir())
	cfg.Providers.Stub = false
	write := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	urls, creds := sim.URLs(), sim.Credentials()
	accounts, err := json.Marshal(creds.Twilio)
	if err != nil {
		t.Fatal(err)
	}
	p := &cfg.Providers
	p.CAFile = filepath.Join(dir, "ca.pem")
	p.Twilio.URL, p.Twilio.AccountsFile = urls.Twilio, write("twilio.json", accounts)
	p.SendGrid.URL, p.SendGrid.KeyFile = urls.SendGrid, write("sendgrid.key", []byte(creds.SendGrid.APIKey))
	p.SendGrid.WebhookKey = write("webhook.key", []byte(creds.SendGrid.WebhookPublicKey))
	p.SendGrid.From, p.SendGrid.Pools = "test <no-reply@example.com>", creds.SendGrid.Pools
	cfg.Workers.BatchAge = 20 * time.Millisecond
	change(&cfg)
	l := run(t, cfg, seams{}, func(n *Node) {
		before(n)
		receipts.SendGridURL = "http://" + n.Addr() + "/v1/receipts/sendgrid"
		if err := sim.SetReceipts(receipts); err != nil {
			t.Fatal(err)
		}
	})
	return l, sim
}

func sms(user, phone string) api.Notification {
	return api.Notification{
		Channel: "sms", Category: "otp", To: api.Receiver{UserID: user, Address: phone}, Content: api.Content{Body: "Your code is 1"},
	}
}

func email(user, address string) api.Notification {
	return api.Notification{
		Channel: "email", Category: "transactional", To: api.Receiver{UserID: user, Address: address},
		Content: api.Content{Title: "Hello", Body: "It works"},
	}
}

// TestReceiptsMoveSentToDelivered goes the whole way: the call, SENT, the provider's signed webhook
// on the real route, DELIVERED.
func TestReceiptsMoveSentToDelivered(t *testing.T) {
	t.Parallel()
	l, sim := simulated(t, simulator.Receipts{Off: true})
	one, err := l.client.Send(t.Context(), sms("ann", simulator.Phone(1)), "")
	if err != nil {
		t.Fatal(err)
	}
	two, err := l.client.Send(t.Context(), email("ann", simulator.Mailbox(1)), "")
	if err != nil {
		t.Fatal(err)
	}
	l.becomes(t, one.NotificationID, "SENT") // and no further without a receipt
	l.becomes(t, two.NotificationID, "SENT")
	r := sim.Receipts()
	r.Off, r.Duplicates = false, 1
	if err := sim.SetReceipts(r); err != nil {
		t.Fatal(err)
	}
	if one, err = l.client.Send(t.Context(), sms("bob", simulator.Phone(2)), ""); err != nil {
		t.Fatal(err)
	}
	if two, err = l.client.Send(t.Context(), email("bob", simulator.Mailbox(2)), ""); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{one.NotificationID, two.NotificationID} {
		l.becomes(t, id, "DELIVERED")
		line, err := l.client.Timeline(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(line.Events, func(e api.TimelineEvent) bool { return e.Type == "receipt" && e.State == "DELIVERED" }) {
			t.Errorf("no receipt in the timeline of %s: %+v", id, line.Events)
		}
	}
}

func TestReceiptsOfFailures(t *testing.T) {
	t.Parallel()
	l, _ := simulated(t, simulator.Receipts{Undelivered: 1})
	one, err := l.client.Send(t.Context(), sms("ann", simulator.Phone(1)), "")
	if err != nil {
		t.Fatal(err)
	}
	two, err := l.client.Send(t.Context(), email("ann", simulator.Mailbox(1)), "")
	if err != nil {
		t.Fatal(err)
	}
	l.becomes(t, one.NotificationID, "FAILED")
	l.becomes(t, two.NotificationID, "FAILED")
	// Both notifications are in the caller's feed, once each, although a receipt may come twice.
	eventually(t, "the feed tells of both", func() bool {
		page, err := l.client.Failed(t.Context(), 0, 0, 10)
		if err != nil || len(page.Items) != 2 {
			return false
		}
		ids := []string{page.Items[0].NotificationID, page.Items[1].NotificationID}
		return slices.Contains(ids, one.NotificationID) && slices.Contains(ids, two.NotificationID)
	})
	// A mailbox that bounced is suppressed, and no more mails are sent to it.
	eventually(t, "the mailbox is suppressed", func() bool {
		u, err := l.client.User(t.Context(), "ann")
		return err == nil && len(u.Suppressed) == 1
	})
	three, err := l.client.Send(t.Context(), email("ann", simulator.Mailbox(1)), "")
	if err != nil {
		t.Fatal(err)
	}
	l.becomes(t, three.NotificationID, "SUPPRESSED")
}

// TestUnsubscribeMutesNewsletters: a user who unsubscribes in a marketing mail, or answers STOP,
// gets no more marketing messages. The user still gets the code to sign in.
func TestUnsubscribeMutesNewsletters(t *testing.T) {
	t.Parallel()
	l, sim := simulated(t, simulator.Receipts{})
	marketing := func(n api.Notification) api.Notification {
		n.Category = "marketing"
		return n
	}
	code := func(n api.Notification) api.Notification {
		n.Category = "otp"
		return n
	}
	send := func(n api.Notification) string {
		t.Helper()
		sent, err := l.client.Send(t.Context(), n, "")
		if err != nil {
			t.Fatal(err)
		}
		return sent.NotificationID
	}
	optedOut := func(user string, want ...string) {
		t.Helper()
		eventually(t, "the opt-out is stored", func() bool {
			u, err := l.client.User(t.Context(), user)
			if err != nil && notify.KindOf(err) != notify.KindNotFound {
				t.Fatal(err)
			}
			if err == nil && len(u.Suppressed) > 0 {
				t.Fatalf("suppressed %v", u.Suppressed)
			}
			return err == nil && slices.Equal(u.OptOut, want)
		})
	}
	for i, event := range []string{"unsubscribe", "spamreport"} {
		user, box := "mail-"+event, simulator.Mailbox(uint64(i))
		if _, err := sim.AddRule(simulator.Rule{Provider: simulator.SendGrid, Do: simulator.Receipt, Code: event, Count: 1}); err != nil {
			t.Fatal(err)
		}
		send(marketing(email(user, box)))
		optedOut(user, "email/marketing", "email/digest")
		l.becomes(t, send(marketing(email(user, box))), "SUPPRESSED")
		l.becomes(t, send(code(email(user, box))), "DELIVERED")
	}
	sim.OptOut(simulator.Phone(9))
	l.becomes(t, send(sms("sms", simulator.Phone(9))), "FAILED") // Twilio refuses it until START
	optedOut("sms", "sms/marketing", "sms/digest")
	sim.OptIn(simulator.Phone(9))
	l.becomes(t, send(sms("sms", simulator.Phone(9))), "DELIVERED")
}

// TestGatewayErrors: a gateway answers 502 although the provider has accepted the message. A code
// is sent again, and the row counts that. Marketing is not sent twice.
func TestGatewayErrors(t *testing.T) {
	t.Parallel()
	l, sim := simulated(t, simulator.Receipts{Off: true})
	for _, p := range []simulator.Provider{simulator.Twilio, simulator.SendGrid} {
		if _, err := sim.AddRule(simulator.Rule{Provider: p, Do: simulator.Gateway, Count: 1}); err != nil {
			t.Fatal(err)
		}
	}
	news := email("ann", simulator.Mailbox(1))
	news.Category = "marketing"
	mailed, err := l.client.Send(t.Context(), news, "")
	if err != nil {
		t.Fatal(err)
	}
	coded, err := l.client.Send(t.Context(), sms("ann", simulator.Phone(1)), "")
	if err != nil {
		t.Fatal(err)
	}
	l.becomes(t, mailed.NotificationID, "UNKNOWN")
	l.becomes(t, coded.NotificationID, "SENT")
	if n := sim.Ledger().Summary().Duplicates; n != 1 {
		t.Errorf("%d duplicates at the providers, want the code", n)
	}
	id, err := notify.ParseID(coded.NotificationID)
	if err != nil {
		t.Fatal(err)
	}
	found, err := l.st.history.Find(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := l.st.status.Chunk(t.Context(), found.Envelope.Chunk)
	if err != nil {
		t.Fatal(err)
	}
	resent := 0
	for i := range rows {
		resent += int(rows[i].Resent)
	}
	if resent != 1 {
		t.Errorf("the rows count %d sent again, want 1", resent)
	}
}

// TestForgedReceipts: receipts without the provider's signature have no effect.
func TestForgedReceipts(t *testing.T) {
	t.Parallel()
	l, _ := simulated(t, simulator.Receipts{Off: true})
	sent, err := l.client.Send(t.Context(), sms("ann", simulator.Phone(1)), "")
	if err != nil {
		t.Fatal(err)
	}
	l.becomes(t, sent.NotificationID, "SENT")
	for path, body := range map[string]string{
		"/v1/receipts/twilio?id=" + sent.NotificationID: url.Values{"MessageSid": {"SM1"}, "AccountSid": {"AC1"}, "MessageStatus": {"delivered"}}.Encode(),
		"/v1/receipts/sendgrid":                         `[{"event":"delivered","notification_id":"` + sent.NotificationID + `"}]`,
	} {
		for _, sign := range []string{"", "Zm9yZ2Vk"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, l.client.BaseURL+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			if strings.Contains(path, "twilio") {
				req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			}
			if sign != "" {
				req.Header.Set("X-Twilio-Signature", sign)
				req.Header.Set("X-Twilio-Email-Event-Webhook-Signature", sign)
				req.Header.Set("X-Twilio-Email-Event-Webhook-Timestamp", "1")
			}
			resp, err := l.client.HTTPClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusForbidden {
				t.Errorf("%s signed %q: %s", path, sign, resp.Status)
			}
		}
	}
	st, err := l.client.Notification(t.Context(), sent.NotificationID)
	if err != nil || st.Status != "SENT" {
		t.Errorf("then %+v, %v", st, err)
	}
}

func TestDoctorAndLag(t *testing.T) {
	t.Parallel()
	l, _ := simulated(t, simulator.Receipts{})
	sent, err := l.client.Send(t.Context(), sms("ann", simulator.Phone(1)), "")
	if err != nil {
		t.Fatal(err)
	}
	l.becomes(t, sent.NotificationID, "DELIVERED")
	eventually(t, "idle", l.Idle)

	fs, err := l.client.Doctor(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	levels := map[string]string{}
	for _, f := range fs {
		levels[f.Check] = f.Level
		if f.Detail == "" {
			t.Errorf("%s says nothing", f.Check)
		}
	}
	for check, want := range map[string]string{
		"log": "ok", "log size": "ok", "log segments": "ok", "log durability": "warn", "store": "ok", "history": "ok",
		"preferences": "ok", "provider sms": "ok", "provider email": "ok", "provider push": "warn", "spill": "ok",
	} {
		if levels[check] != want {
			t.Errorf("%s is %q, want %q", check, levels[check], want)
		}
	}
	if _, ok := levels["disk"]; !ok {
		t.Error("nothing about the disk")
	}

	lags, err := l.client.Lag(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, g := range lags {
		got[g.Group+" "+g.Topic] = true
		if g.Lag != 0 || g.InFlight != 0 {
			t.Errorf("%+v of an idle node", g)
		}
	}
	want := []string{"dead-letter-index " + notify.TopicFailed, "dead-letter-index triggers-dlq", "outcome-followers " + notify.TopicOutcomes}
	for _, lane := range notify.Lanes() {
		want = append(want, lane.Group()+" "+lane.Topic(), lane.RetryGroup()+" "+lane.DLQTopic())
	}
	for _, group := range want {
		if !got[group] {
			t.Errorf("nothing of %s: %v", group, got)
		}
	}
	if len(got) != len(want) {
		t.Errorf("groups %v", got)
	}
}

// TestSuppressionLifted: a mailbox that bounced is in the suppression list. After an operator has
// removed it, mails are sent to it again. When it bounces again, it comes back into the list.
func TestSuppressionLifted(t *testing.T) {
	t.Parallel()
	l, sim := simulated(t, simulator.Receipts{Undelivered: 1})
	box := simulator.Mailbox(1)
	send := func() string {
		t.Helper()
		sent, err := l.client.Send(t.Context(), email("ann", box), "")
		if err != nil {
			t.Fatal(err)
		}
		return sent.NotificationID
	}
	listed := func(want bool) {
		t.Helper()
		eventually(t, "the list", func() bool {
			page, err := l.client.Suppressions(t.Context(), api.SuppressionFilter{Channel: "email"}, "", 10)
			return err == nil && (len(page.Items) == 1) == want && (!want || page.Items[0] == api.Suppression{UserID: "ann", Channel: "email", Address: box, Code: "sendgrid_bounce"})
		})
	}
	l.becomes(t, send(), "FAILED")
	listed(true)
	l.becomes(t, send(), "SUPPRESSED")
	out, err := l.client.LiftSuppression(t.Context(), api.SuppressionLift{Address: strings.ToUpper(box)})
	if err != nil || out.Lifted != 1 || out.StillSuppressed {
		t.Fatalf("%+v, %v", out, err)
	}
	listed(false)
	l.becomes(t, send(), "FAILED") // dead again
	listed(true)
	if _, err := l.client.LiftSuppression(t.Context(), api.SuppressionLift{Address: box}); err != nil {
		t.Fatal(err)
	}
	r := sim.Receipts()
	r.Undelivered = 0
	if err := sim.SetReceipts(r); err != nil {
		t.Fatal(err)
	}
	l.becomes(t, send(), "DELIVERED")
}
