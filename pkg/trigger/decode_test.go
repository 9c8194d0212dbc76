package trigger

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// If a body is accepted, the receiver can decode the payload that was meant.
func FuzzCreate(f *testing.F) {
	for _, s := range []string{
		`{` + hook + `,"delay_seconds":1,"payload":"\ud83d\ude00 é"}`,
		`{` + hook + `,"delay_seconds":1.5,"payload":{"a" : [1, 2e3, "\u0000"]},"retry_schedule_seconds":[1,86400]}`,
		`{` + hook + `,"fire_at":"2026-01-01T00:00:00+02:00","payload_base64":"AP8="}`,
		`{` + hook + `,"delay_seconds":1,"payload":"\ud800"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := decodeCreate(raw)
		if err != nil {
			return
		}
		if _, err := checkTerms(c); err != nil {
			return
		}
		row := engine.Trigger{ID: idOf(notify.Base{1}), Payload: c.Payload, Form: c.Form}
		b := callbackBody(&row)
		var got struct {
			ID      string          `json:"trigger_id"`
			Payload json.RawMessage `json:"payload"`
			Base64  *string         `json:"payload_base64"`
		}
		if err := json.Unmarshal(b, &got); err != nil || got.ID != row.ID {
			t.Fatalf("%q: %v", b, err)
		}
		var back []byte
		switch c.Form {
		case engine.PayloadText:
			var s string
			if err := json.Unmarshal(got.Payload, &s); err != nil {
				t.Fatal(err)
			}
			back = []byte(s)
		case engine.PayloadJSON:
			back = got.Payload
		case engine.PayloadBase64:
			if back, err = base64.StdEncoding.DecodeString(*got.Base64); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(back, c.Payload) {
			t.Fatalf("%q was delivered as %q", c.Payload, back)
		}
	})
}

func TestDuration(t *testing.T) {
	t.Parallel()
	f := func(s float64, want time.Duration) {
		t.Helper()
		if got, err := secondsToDuration("x", s); err != nil || got != want {
			t.Errorf("%v: %v, %v; want %v", s, got, err, want)
		}
	}
	f(0, 0)
	f(1, time.Second)
	f(0.1, 100*time.Millisecond)
	f(1.1, 1100*time.Millisecond)
	f(1e9/3e9, 334*time.Millisecond)
	f(31622400, 366*24*time.Hour)
	for _, s := range []float64{-1e-9, 1e10, 1e300} {
		if _, err := secondsToDuration("x", s); err == nil {
			t.Errorf("%v is taken", s)
		}
	}
}
