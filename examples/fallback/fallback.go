package main

import (
	"context"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Fallback sends by SMS, and by mail what SMS did not deliver.
type Fallback struct {
	Client *api.Client
	Store  *Store
	Log    func(format string, args ...any)
}

// Send sends a text by SMS and remembers it: the failed feed says which
// notification failed, not what was in it. key names the text, e.g. by its
// order: a service that died in here sends again with the same key before it
// follows the feed, is given the same id, and nobody gets two.
func (f *Fallback) Send(ctx context.Context, key, user, text string) error {
	sent, err := f.Client.Send(ctx, api.Notification{
		Channel: "sms", Category: "otp", To: api.Receiver{UserID: user}, Content: api.Content{Body: text},
	}, key)
	if err != nil {
		return err
	}
	f.Log("sms   %s accepted for %s", sent.NotificationID, user)
	return f.Store.Remember(sent.NotificationID, text)
}

// Follow reads the caller's failed feed until ctx ends. The place is kept after
// each page, and each mail has a key made of the id that failed: a service that
// dies in between reads the page again, and nobody gets two mails.
func (f *Fallback) Follow(ctx context.Context) error {
	for {
		page, err := f.Client.Failed(ctx, f.Store.Place(), 30*time.Second, 100)
		if err != nil {
			return err
		}
		for _, failed := range page.Items {
			if err := f.fallBack(ctx, failed); err != nil {
				return err
			}
		}
		if err := f.Store.Move(page.After); err != nil {
			return err
		}
	}
}

func (f *Fallback) fallBack(ctx context.Context, failed api.DeadLetter) error {
	text, known := f.Store.Text(failed.NotificationID)
	if failed.Channel != "sms" || !known {
		return nil
	}
	mail, err := f.Client.Send(ctx, api.Notification{
		Channel: "email", Category: failed.Category, To: api.Receiver{UserID: failed.UserID},
		Content: api.Content{Title: "We could not reach your phone", Body: text},
	}, "fallback-"+failed.NotificationID)
	switch {
	case notify.KindOf(err) == notify.KindInvalid:
		f.Log("sms   %s failed (%s), and mail is refused: %v", failed.NotificationID, failed.Code, err)
		return nil // reading it again cannot help
	case err != nil:
		return fmt.Errorf("fall back for %s: %w", failed.NotificationID, err)
	}
	f.Log("sms   %s failed (%s)", failed.NotificationID, failed.Code)
	f.Log("email %s accepted for %s", mail.NotificationID, failed.UserID)
	return nil
}
