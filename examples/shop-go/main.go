// Command shop-go is a shop that uses notifyd through its Go client. It sends, reacts to
// failures, and receives triggers:
//
//	POST /orders {"id", "user", "remind_in_seconds"}   sends an SMS now, and plans a reminder
//	POST /hooks/reminder                               notifyd calls it when the reminder is due
//
// It follows its feed of failed notifications. If an SMS failed, it sends the text by email.
// ../README.md says how to run it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/notifyd/notifyd/internal/atomicfile"
	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal("shop: ", err)
	}
}

func run(ctx context.Context) error {
	verifier, err := webhooks.NewWebhook(os.Getenv("WEBHOOK_SECRET"))
	if err != nil {
		return fmt.Errorf("WEBHOOK_SECRET: %w", err)
	}
	port := os.Getenv("SHOP_PORT")
	if port == "" {
		port = "0"
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:"+port)
	if err != nil {
		return err
	}
	s := &shop{
		url: "http://" + ln.Addr().String(), state: os.Getenv("SHOP_STATE"), verifier: verifier,
		client: &api.Client{
			BaseURL: os.Getenv("NOTIFYD_URL"), Retries: 8, HTTPClient: &http.Client{Transport: api.NewTransport(0)},
			Token: func(context.Context) (string, error) {
				b, err := os.ReadFile(os.Getenv("NOTIFYD_TOKEN_FILE")) // read the file for each request, because the token is renewed
				return strings.TrimSpace(string(b)), err
			},
		},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", s.handleOrder)
	mux.HandleFunc("POST /hooks/reminder", s.handleReminder)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	defer srv.Close()
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	fmt.Println("listening on", s.url)
	followed := make(chan error, 1)
	go func() { followed <- s.followFailures(ctx) }()
	select {
	case err = <-served:
	case err = <-followed:
	}
	return err
}

type shop struct {
	client   *api.Client
	verifier *webhooks.Webhook
	url      string // URL of this service
	state    string // name of the file that contains the position up to which the failed feed was read
}

// handleOrder sends the user an SMS about an order and plans a reminder. The idempotency keys
// contain the order's id. So if an order is posted twice, there is still only one SMS and one
// reminder.
func (s *shop) handleOrder(w http.ResponseWriter, r *http.Request) {
	var o struct {
		ID      string  `json:"id"`
		User    string  `json:"user"`
		Seconds float64 `json:"remind_in_seconds"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&o); err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	sent, err := s.client.Send(r.Context(), api.Notification{
		Channel: "sms", Category: "alert", To: api.Receiver{UserID: o.User},
		Content: api.Content{Body: "Your order " + o.ID + " is on its way."},
	}, "order-"+o.ID)
	if err != nil {
		refuse(w, err)
		return
	}
	payload, err := json.Marshal(map[string]string{"order": o.ID, "user": o.User})
	if err != nil {
		refuse(w, err)
		return
	}
	planned, err := s.client.Trigger(r.Context(), api.Trigger{CallbackURL: s.url + "/hooks/reminder", DelaySeconds: &o.Seconds, Payload: payload}, "reminder-"+o.ID)
	if err != nil {
		refuse(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"notification_id": sent.NotificationID, "trigger_id": planned.TriggerID}) // fails if the client has gone
}

// handleReminder sends a push when the trigger of a reminder is due. notifyd may call twice with
// the same webhook-id. The idempotency key contains the webhook-id, so only one push is sent.
func (s *shop) handleReminder(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := s.verifier.Verify(body, r.Header); err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	var called struct {
		Payload struct{ Order, User string } `json:"payload"`
	}
	if err := json.Unmarshal(body, &called); err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	_, err = s.client.Send(r.Context(), api.Notification{
		Channel: "push", Category: "transactional", To: api.Receiver{UserID: called.Payload.User},
		Content: api.Content{Title: "Your order", Body: "Did order " + called.Payload.Order + " arrive?"},
	}, "reminded-"+r.Header.Get("webhook-id"))
	if err != nil {
		refuse(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// refuse answers a callback of notifyd after an error. If a repetition would fail with the same
// error, it answers 422. Otherwise it answers 503, so that notifyd calls again.
func refuse(w http.ResponseWriter, err error) {
	status := http.StatusServiceUnavailable
	if isFinal(err) {
		status = http.StatusUnprocessableEntity
	}
	http.Error(w, err.Error(), status)
}

// followFailures reads the failed feed until ctx ends. It stores its position after each page, so
// it misses no failure. After a crash it may read a page a second time. notifyd does not send the
// emails of that page again, because they have the same idempotency keys.
func (s *shop) followFailures(ctx context.Context) error {
	after := uint64(0)
	b, err := os.ReadFile(s.state)
	if err == nil {
		after, err = strconv.ParseUint(string(b), 10, 64)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for {
		page, err := s.client.Failed(ctx, after, 20*time.Second, 100)
		if err != nil {
			return err
		}
		for i := range page.Items {
			if failed := &page.Items[i]; failed.Channel == "sms" {
				if err := s.fallBack(ctx, failed); err != nil {
					return err
				}
			}
		}
		after = page.After
		if err := atomicfile.WriteFile(s.state, strconv.AppendUint(nil, after, 10)); err != nil {
			return err
		}
	}
}

// fallBack sends the text of a failed SMS by email. It gets the text from notifyd.
func (s *shop) fallBack(ctx context.Context, failed *api.DeadLetter) error {
	sent, err := s.client.NotificationContent(ctx, failed.NotificationID, "")
	if err != nil {
		return err
	}
	_, err = s.client.Send(ctx, api.Notification{
		Channel: "email", Category: failed.Category, To: api.Receiver{UserID: failed.UserID},
		Content: api.Content{Title: "We could not reach your phone", Body: sent.Content.Body},
	}, "fallback-"+failed.NotificationID)
	if isFinal(err) {
		log.Printf("%s failed by SMS, and email is refused: %v", failed.NotificationID, err)
		return nil
	}
	return err
}

// isFinal reports whether a repetition of the request would fail with the same error: notifyd
// refused the content of the request, or its idempotency key was used with other content.
func isFinal(err error) bool {
	kind := notify.KindOf(err)
	return kind == notify.KindInvalid || kind == notify.KindMismatch
}
