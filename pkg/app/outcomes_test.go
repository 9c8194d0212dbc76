package app

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/outcomehook"
	"github.com/notifyd/notifyd/pkg/simulator"
)

// told is a receiver of outcome callbacks. It records the statuses that it was told for each id, in
// order.
type told struct {
	*httptest.Server
	mu sync.Mutex
	of map[string][]string
}

func newTold(t *testing.T) *told {
	t.Helper()
	x := &told{of: map[string][]string{}}
	x.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		var body struct {
			Payload outcomehook.Payload `json:"payload"`
		}
		if err := json.Unmarshal(b, &body); err != nil || body.Payload.Type != outcomehook.Type || body.Payload.Caller != "test" {
			t.Errorf("%.300s: %v", b, err)
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		for _, o := range body.Payload.Outcomes {
			x.of[o.ID] = append(x.of[o.ID], o.Status)
		}
	}))
	t.Cleanup(x.Close)
	return x
}

func (x *told) says(id string) string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return strings.Join(x.of[id], " ")
}

// TestEveryEndIsTold goes the whole way: a caller asks for outcomes and sends, and its URL is told
// how each notification ended. What a receipt reports comes last.
func TestEveryEndIsTold(t *testing.T) {
	t.Parallel()
	back := newTold(t)
	l, sim := simulatedWith(t, simulator.Receipts{Off: true}, func(cfg *Config) {
		cfg.Triggers.Plain, cfg.Triggers.Allow, cfg.Triggers.Ports = true, []string{"127.0.0.0/8"}, []int{0}
	}, func(n *Node) {
		if err := n.SeedCaller(t.Context(), "test", []string{back.URL}, "whsec_"+strings.Repeat("A", 32)); err != nil {
			t.Fatal(err)
		}
	})
	c, err := l.client.Caller(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	send := func(n api.Notification) string {
		t.Helper()
		sent, err := l.client.Send(t.Context(), n, "")
		if err != nil {
			t.Fatal(err)
		}
		return sent.NotificationID
	}
	before := send(sms("zed", simulator.Phone(9)))
	l.becomes(t, before, "SENT")
	c.OutcomesURL, c.OutcomesOf = back.URL+"/ended", "all"
	if _, err := l.client.PutCaller(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	taken := send(sms("ann", simulator.Phone(1)))
	nowhere := send(api.Notification{Channel: "sms", Category: "otp", To: api.Receiver{UserID: "nobody"}, Content: api.Content{Body: "1"}})
	eventually(t, "SENT is told", func() bool { return back.says(taken) == "SENT" })
	eventually(t, "FAILED is told", func() bool { return back.says(nowhere) == "FAILED" })
	r := sim.Receipts()
	r.Off = false
	if err := sim.SetReceipts(r); err != nil {
		t.Fatal(err)
	}
	confirmed := send(email("ann", simulator.Mailbox(1)))
	// DELIVERED may come before SENT, if the receipt is faster than the outcome of its call.
	eventually(t, "the receipt is told", func() bool { return strings.Contains(back.says(confirmed), "DELIVERED") })
	if got := back.says(before); got != "" {
		t.Errorf("told of what ended before it was asked: %s", got)
	}
	// Now the caller asks only for failures again.
	if c, err = l.client.Caller(t.Context(), "test"); err != nil || c.OutcomesOf != "all" {
		t.Fatal(c, err)
	}
	c.OutcomesOf = ""
	if _, err := l.client.PutCaller(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	quiet := send(sms("bob", simulator.Phone(2)))
	failed := send(api.Notification{Channel: "sms", Category: "otp", To: api.Receiver{UserID: "nobody"}, Content: api.Content{Body: "1"}})
	l.becomes(t, quiet, "DELIVERED")
	eventually(t, "FAILED is told again", func() bool { return back.says(failed) == "FAILED" })
	if got := back.says(quiet); got != "" {
		t.Errorf("told %s although only failures are asked for", got)
	}
	c.OutcomesOf = "some"
	if _, err := l.client.PutCaller(t.Context(), c); err == nil || !strings.Contains(err.Error(), "outcomes_of") {
		t.Errorf("%v", err)
	}
	c.OutcomesOf, c.OutcomesURL = "all", ""
	if _, err := l.client.PutCaller(t.Context(), c); err == nil || !strings.Contains(err.Error(), "outcomes_of") {
		t.Errorf("%v", err)
	}
}
