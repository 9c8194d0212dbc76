package intake

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/request"

	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// feedIDs adds users to f as a scanner would and returns how many were refused.
func feedIDs(f *splitter, users []string) int {
	body := []byte(strings.Join(users, `"`) + strings.Repeat(" ", 16))
	at := 0
	for _, u := range users {
		f.addPlain(body, at, at+len(u))
		at += len(u) + 1
	}
	return int(f.index) - f.accepted
}

// Users of one hash are told apart by their bytes, before and after there is a map of
// them.
func TestSameHash(t *testing.T) {
	t.Parallel()
	f := newSplitter()
	f.reset(notify.Push, 3, 1<<20, 10, 2000)
	f.users.k0, f.users.k1 = 0, 0 // all users of up to 7 bytes have the hash 0
	var users []string
	for i := range 1000 {
		users = append(users, fmt.Sprintf("u%d", i), fmt.Sprintf("a-longer-user-id-%d", i))
	}
	few := users[:20]
	if n := feedIDs(f, few); n != 0 || f.users.walkedBytes == 0 || f.users.places != nil {
		t.Errorf("%d real receivers are dropped, %d bytes were looked through", n, f.users.walkedBytes)
	}
	if n := feedIDs(f, users); n != len(few) || f.users.places == nil {
		t.Errorf("%d of %d repeated users are found", n, len(few))
	}
	if n := feedIDs(f, users); n != len(few)+len(users) {
		t.Errorf("%d of %d repeated users are found", n, len(few)+len(users))
	}
	f.reset(notify.Push, 3, 1<<20, 10, 2000)
	slices.Reverse(users)
	if n := feedIDs(f, users); n != 0 {
		t.Errorf("%d users are dropped because of the request before", n)
	}
}

// TestSievePasses: almost no user that occurs once is searched, and no user is forgotten, whether
// the sieve was made for this many users or grew.
func TestSievePasses(t *testing.T) {
	t.Parallel()
	f := newSplitter()
	const users = 200_000
	ids := make([]string, users)
	for i := range ids {
		ids[i] = fmt.Sprintf("user-%d", i)
	}
	for _, guess := range []int{users, 0} {
		f.reset(notify.Push, 64, 1<<20, 10, guess)
		if n := feedIDs(f, ids); n != 0 || f.users.walkedBytes > users || f.users.places != nil { // 3 partitions of 44 KB on average
			t.Errorf("guess %d: %d users are dropped, %d bytes were looked through", guess, n, f.users.walkedBytes)
		}
		for _, id := range ids {
			if f.users.addTag(f.users.hash([]byte(id))) {
				t.Fatalf("guess %d: %s is forgotten", guess, id)
			}
		}
	}
}

// The same is found with any guess of how many users come, request
// after request, whichever way a user is written.
func TestSeenGrows(t *testing.T) {
	t.Parallel()
	f := newSplitter()
	for _, guess := range []int{0, 10, 100_000, 1} {
		f.reset(notify.Push, 7, 1024, 10, guess)
		var users []string
		for i := range 20_000 {
			users = append(users, fmt.Sprintf("%0*d", 1+i%24, i))
		}
		want := map[string]bool{}
		for _, u := range users {
			want[u] = true
		}
		if n := feedIDs(f, users); n != len(users)-len(want) {
			t.Errorf("guess %d: %d of %d users refused, want %d", guess, n, len(users), len(users)-len(want))
		}
		for u := range want {
			before := f.accepted
			if f.addReceiver([]byte(u), []byte("fcm:x"), nil); f.accepted != before {
				t.Fatalf("guess %d: %s is taken twice", guess, u)
			}
		}
	}
}

// TestSeenWalksLittle: a request with all users of a partition twice does not cause a search of the
// partition for each, and receivers with addresses and variables are told apart, too.
func TestSeenWalksLittle(t *testing.T) {
	t.Parallel()
	f := newSplitter()
	f.reset(notify.Push, 1, 1<<20, 10, 0)
	most := 0
	for turn := range 2 {
		for i := range 20_000 {
			address, vars := []byte("fcm:x"), []byte(`{"a":"b"}`)
			if i%2 == 0 {
				address = nil
			}
			if i%3 == 0 {
				vars = nil
			}
			f.addReceiver(fmt.Appendf(nil, "user-%d", i), address, vars)
			if f.users.places == nil {
				most = f.users.walkedBytes
			}
		}
		if f.accepted != 20_000 || int(f.index)-f.accepted != turn*20_000 {
			t.Fatalf("%d of %d are accepted", f.accepted, f.index)
		}
	}
	if all := len(f.cols[0].buf); most > 2*all || f.users.places == nil {
		t.Errorf("%d bytes were looked through of %d", most, all)
	}
	if new(Service).poolSplitter(f); f.users.places != nil {
		t.Error("what is kept for the next request has the map")
	}
}

// A log that failed may still send what it was given: the bytes must not
// change under it.
func TestBytesStayAfterFailure(t *testing.T) {
	t.Parallel()
	for _, q := range requests() {
		t.Run(q.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Config{})
			var held []log.Record
			var want [][]byte
			r.log.before = func(recs []log.Record) {
				for _, rec := range recs {
					held = append(held, rec)
					want = append(want, bytes.Clone(rec.Value))
				}
			}
			r.log.set(notify.Unavailable("log", time.Second, nil))
			q.call(r.Service, t.Context(), request.Meta{Caller: "c"}, q.body)
			if len(held) == 0 {
				t.Fatal("nothing was appended")
			}
			r.log.before = nil
			r.log.set(nil)
			r.spill.recs = nil
			for range 20 {
				if _, err := q.call(r.Service, t.Context(), request.Meta{Caller: "d"}, q.body); err != nil {
					t.Fatal(err)
				}
			}
			for i, rec := range held {
				if !bytes.Equal(rec.Value, want[i]) {
					t.Fatalf("record %d was overwritten", i)
				}
			}
		})
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	if _, err := New(Stores{}, Config{}); err == nil {
		t.Error("a service without stores")
	}
	for name, cfg := range map[string]Config{
		"small records": {MaxRecord: 1000}, "negative batch": {MaxBatch: -1}, "short lease": {Lease: time.Millisecond},
		"keys kept shorter than the lease": {Keep: time.Second}, "negative jitter": {Jitter: -1},
	} {
		if err := cfg.withDefaults().validate(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
