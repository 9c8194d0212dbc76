package main

import (
	"context"
	"fmt"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/simulator"
)

// seedDemoUsers adds the missing demo users. It does not overwrite existing demo users, because the
// developer may have changed them.
func seedDemoUsers(ctx context.Context, cl *api.Client) error {
	for _, u := range demoUsers() {
		_, err := cl.User(ctx, u.UserID)
		if notify.KindOf(err) == notify.KindNotFound {
			_, err = cl.PutUser(ctx, u)
		}
		if err != nil {
			return fmt.Errorf("the demo user %s cannot be created: %w", u.UserID, err)
		}
	}
	return nil
}

// demoUsers returns the users that a dev server has after its first start.
func demoUsers() []api.User {
	addresses := func(i uint64) map[string][]string {
		return map[string][]string{
			"push": {"apns:" + simulator.DeviceToken(i)}, "sms": {simulator.Phone(i)}, "email": {simulator.Mailbox(i)},
		}
	}
	us := []api.User{
		{UserID: "ann", Addresses: addresses(1)},
		{UserID: "bob", Addresses: map[string][]string{
			"push": {"apns:" + simulator.DeviceToken(2), "fcm:" + simulator.RegistrationToken(2)},
			"sms":  {simulator.Phone(2)}, "email": {simulator.Mailbox(2)},
		}},
		{UserID: "cleo", Addresses: map[string][]string{"push": {"fcm:" + simulator.RegistrationToken(3)}, "email": {simulator.Mailbox(3)}}},
		{UserID: "dan", Addresses: addresses(4), QuietHours: &api.QuietHours{From: "22:00", To: "07:00"}, TimeZone: "Europe/Berlin"},
		{UserID: "eve", Addresses: addresses(5), OptOut: []string{"marketing"}},
	}
	for i := range uint64(100) {
		us = append(us, api.User{UserID: fmt.Sprintf("user-%03d", i), Addresses: addresses(100 + i)})
	}
	return us
}
