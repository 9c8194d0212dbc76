package intake

import (
	"errors"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
)

// A process whose clock is off cannot tell whether a time has passed. It refuses such a
// request as a whole, also a time that its clock says has passed, and takes what is due
// now.
func TestClockGate(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	off := notify.Unavailable("clock", 5*time.Second, errors.New("it is an hour off"))
	r.clock.err = off
	at := func(field string, in time.Duration) string {
		return `"` + field + `":"` + time.Now().Add(in).UTC().Format(time.RFC3339) + `"`
	}
	refused := map[string]string{
		"it lies ahead by this clock":    at("scheduled_at", time.Hour),
		"it has passed by this clock":    at("scheduled_at", -time.Minute),
		"it lies too far by this clock":  at("scheduled_at", 367*24*time.Hour),
		"it has expired by this clock":   at("expires_at", -time.Minute),
		"both, and one of them is ahead": at("expires_at", time.Hour) + "," + at("scheduled_at", -time.Minute),
	}
	for name, extra := range refused {
		for form, send := range map[string]func() error{
			"single": func() error {
				_, err := r.Single(t.Context(), request.Meta{Caller: "c", Key: "k"}, []byte(single(extra)))
				return err
			},
			"batch": func() error {
				_, err := r.Batch(t.Context(), request.Meta{Caller: "c", Key: "b"}, []byte("["+singleBody+","+single(extra)+"]"))
				return err
			},
			"fan-out": func() error {
				_, err := r.Fanout(t.Context(), request.Meta{Caller: "c", Key: "f"}, []byte(`{"channel":"push","category":"marketing","content":{"body":"b"},"receivers":[{"user_id":"u"}],`+extra+`}`))
				return err
			},
		} {
			if err := send(); !errors.Is(err, off) {
				t.Errorf("%s, %s: %v", form, name, err)
			}
		}
	}
	if r.stored() || len(r.idem.rows) != 0 {
		t.Error("something is stored, or a key is kept")
	}
	for _, extra := range []string{"", at("expires_at", time.Hour)} {
		body := singleBody
		if extra != "" {
			body = single(extra)
		}
		if _, err := r.Single(t.Context(), request.Meta{Caller: "c"}, []byte(body)); err != nil {
			t.Errorf("what is due now, %s: %v", extra, err)
		}
	}
	r.clock.err = nil
	if _, err := r.Single(t.Context(), request.Meta{Caller: "c", Key: "k"}, []byte(single(refused["it has passed by this clock"]))); err != nil {
		t.Error("the same request when the clock is right:", err)
	}
}
