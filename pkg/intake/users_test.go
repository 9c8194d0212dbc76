package intake

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/request"

	"github.com/notifyd/notifyd/pkg/notify"
)

// TestBoundToUsers: of a token that is bound to a namespace, receivers of others are
// refused on every way in, whatever the form and length of their ids.
func TestBoundToUsers(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	m := request.Meta{Caller: "c", Users: "shop:"}
	_, err := r.Single(t.Context(), m, []byte(single(`"to":{"user_id":"ann"}`)))
	refused(t, err, notify.KindInvalid, "user_forbidden", "to.user_id")
	if _, err := r.Single(t.Context(), m, []byte(single(`"to":{"user_id":"shop:ann"}`))); err != nil {
		t.Fatal(err)
	}
	a, err := r.Batch(t.Context(), m, []byte("["+single(`"to":{"user_id":"shop:bob"}`)+","+single(`"to":{"user_id":"other:bob","address":"apns:00"}`)+"]"))
	if err != nil || !strings.Contains(string(a.Body), `"accepted":1,"rejected":1`) || !strings.Contains(string(a.Body), "user_forbidden") {
		t.Errorf("%s, %v", a.Body, err)
	}
	others := []string{`"a"`, `"sho"`, `"shop"`, `"other:x"`, `"shopping:ann"`, `"sh\u006fp"`, `{"user_id":"other:y"}`, `"other:abcdefghijklmnopqrstuvwxyz"`}
	own := []string{`"shop:1"`, `"shop:abcdefghijklmnopqrstuvwxyz"`, `"sh\u006fp:2"`, `{"user_id":"shop:3"}`}
	body := func(sep string, list ...string) []byte {
		return []byte(`{"channel":"push","category":"marketing","content":{"title":"t","body":"b"},"receivers":[` + strings.Join(list, sep) + `]}`)
	}
	a, err = r.Fanout(t.Context(), m, body(",", append(others, own...)...))
	if err != nil || !strings.Contains(string(a.Body), `"accepted":4`) || strings.Count(string(a.Body), "user_forbidden") != len(others) {
		t.Errorf("%s, %v", a.Body, err)
	}
	// The next request of another caller, with the same buffers.
	a, err = r.Fanout(t.Context(), request.Meta{Caller: "d"}, body(",", others[1:]...))
	if err != nil || strings.Contains(string(a.Body), "user_forbidden") {
		t.Errorf("%s, %v", a.Body, err)
	}
}
