package product

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/api"
)

func doctor(t *testing.T, cl *api.Client) []api.Finding {
	t.Helper()
	found, err := cl.Doctor(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// find returns the finding of the check with this name, or an empty finding if there is none.
func find(fs []api.Finding, check string) api.Finding {
	for _, f := range fs {
		if f.Check == check {
			return f
		}
	}
	return api.Finding{}
}

// send sends one push to a user and returns the notification id. The request has an address, so
// the user needs no profile.
func send(t *testing.T, cl *api.Client, user string) (string, error) {
	t.Helper()
	made, err := cl.Send(t.Context(), api.Notification{
		Channel: "push", Category: "otp", To: api.Receiver{UserID: user, Address: "apns:" + strings.Repeat("ab", 32)}, Content: api.Content{Body: "hello"},
	}, "")
	return made.NotificationID, err
}

// clientOf returns a copy of cl that sends its requests to another process. The parameter address
// is the host:port of that process.
func clientOf(cl *api.Client, address string) *api.Client {
	out := *cl
	out.BaseURL = "http://" + address
	return &out
}
