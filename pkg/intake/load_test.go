package intake

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
)

// TestLoadGrantOfRequests: of a load run that has a grant, every message is counted, and
// those to other channels than the grant's are refused, on every way in.
func TestLoadGrantOfRequests(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	taken, full := 0, false
	m := request.Meta{Caller: "c", Load: &request.Load{Targets: []string{"push"}, UseRate: func(n int) error {
		if full {
			return &notify.Error{Kind: notify.KindThrottled, Code: "load_rate", Msg: "used up"}
		}
		taken += n
		return nil
	}}}
	push, mail := single(`"to":{"user_id":"ann"}`), `{"channel":"email","category":"transactional","to":{"user_id":"ann"},"content":{"title":"t","body":"b"}}`
	fan := func(channel string) []byte {
		return []byte(`{"channel":"` + channel + `","category":"marketing","content":{"title":"t","body":"b"},"receivers":["a","b","c"]}`)
	}
	if _, err := r.Single(t.Context(), m, []byte(push)); err != nil || taken != 1 {
		t.Errorf("%v, counted %d", err, taken)
	}
	_, err := r.Single(t.Context(), m, []byte(mail))
	refused(t, err, notify.KindForbidden, "load_target", "")
	a, err := r.Batch(t.Context(), m, []byte("["+push+","+mail+","+push+"]"))
	if err != nil || !strings.Contains(string(a.Body), `"accepted":2,"rejected":1`) || taken != 3 {
		t.Errorf("%s, %v, counted %d", a.Body, err, taken)
	}
	if _, err := r.Fanout(t.Context(), m, fan("push")); err != nil || taken != 6 {
		t.Errorf("%v, counted %d", err, taken)
	}
	_, err = r.Fanout(t.Context(), m, fan("email"))
	refused(t, err, notify.KindForbidden, "load_target", "")
	full = true
	for name, send := range map[string]func() error{
		"single": func() error { _, err := r.Single(t.Context(), m, []byte(push)); return err },
		"fanout": func() error { _, err := r.Fanout(t.Context(), m, fan("push")); return err },
	} {
		if err := send(); notify.KindOf(err) != notify.KindThrottled {
			t.Errorf("%s with the rate used up: %v", name, err)
		}
	}
}
