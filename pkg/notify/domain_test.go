package notify

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestIDs(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1_790_000_000_123)
	b := NewBase(at)
	if !b.Time().Equal(at) {
		t.Fatalf("time %v, want %v", b.Time(), at)
	}
	if again := b.Item(3); b.Item(3) != again || b.Item(3) == b.Item(4) || b.Item(3) == b {
		t.Fatal("items must be reproducible and apart")
	}
	if !b.Item(3).Time().Equal(at) {
		t.Fatal("an item keeps its request's time")
	}
	for _, id := range []ID{{Base: b}, {Base: b, FanOut: true}, {Base: b, Index: MaxIndex, FanOut: true}} {
		got, err := ParseID(id.String())
		if err != nil || got != id {
			t.Fatalf("%v: got %v, %v", id, got, err)
		}
		j, _ := json.Marshal(id)
		var back ID
		if err := json.Unmarshal(j, &back); err != nil || back != id {
			t.Fatalf("%s: got %v, %v", j, back, err)
		}
	}
	ulid := b.String()
	for _, bad := range []string{"", "ntf_", ulid, "trg_" + ulid, "ntf_" + ulid[1:], "ntf_" + ulid + "-", "ntf_" + ulid + "-01",
		"ntf_" + ulid + "--1", "ntf_" + ulid + "-2147483648", "ntf_" + ulid + "-1x", "ntf_" + ulid[:25] + "U"} {
		if _, err := ParseID(bad); KindOf(err) != KindInvalid {
			t.Errorf("%q: err = %v", bad, err)
		}
	}
}

func TestAttemptID(t *testing.T) {
	t.Parallel()
	b := NewBase(time.Now())
	id := ID{Base: b, Index: 1, FanOut: true}
	seen := map[[16]byte]string{}
	for _, x := range []struct {
		id    ID
		epoch uint16
		addr  int
	}{{id, 0, 0}, {id, 1, 0}, {id, 0, 1}, {ID{Base: b, Index: 2, FanOut: true}, 0, 0}} {
		a := AttemptID(x.id, x.epoch, x.addr)
		if a != AttemptID(x.id, x.epoch, x.addr) {
			t.Fatal("not reproducible")
		}
		if a[6]>>4 != 8 || a[8]>>6 != 2 {
			t.Fatalf("% x is no UUID of version 8", a)
		}
		if was, dup := seen[a]; dup {
			t.Fatalf("%v and %s share an attempt id", x, was)
		}
		seen[a] = fmt.Sprint(x)
	}
}

func TestLanes(t *testing.T) {
	t.Parallel()
	topics := map[string]bool{}
	for _, l := range Lanes() {
		got, ok := ParseLane(l.String())
		if !ok || got != l {
			t.Errorf("%v: got %v", l, got)
		}
		topics[l.Topic()], topics[l.DLQTopic()] = true, true
	}
	if len(topics) != 12 || !topics["notifications-push"] || !topics["notifications-email-bulk-dlq"] {
		t.Fatalf("topics %v", topics)
	}
	if (Lane{Channel: SMS}).Group() != "sms-workers" || (Lane{Channel: SMS}).RetryGroup() != "sms-retry-workers" {
		t.Fatal("the source's group names")
	}
}

func TestKindOf(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("outer: %w", Unavailable("log", time.Second, errors.New("dial")))
	if KindOf(err) != KindUnavailable || RetryAfterOf(err) != time.Second {
		t.Fatalf("%v: %v %v", err, KindOf(err), RetryAfterOf(err))
	}
	if KindOf(errors.New("x")) != KindInternal {
		t.Fatal("an error nobody classified is internal")
	}
}

// Every way rows may come about keeps to the table of transitions: the fold of
// a prefix of them can move only where the table allows.
func TestFoldMovesAsTheTableAllows(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rows := []Row{}
		was := Fold(rows, 0, 0)
		attempt, deferrals, epoch := uint16(0), uint16(0), uint16(0)
		open := true
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			var r Row
			r.Count, r.Done, r.Index = 1, true, []uint32{0}
			r.Key = RowKey{Epoch: epoch, Attempt: attempt, Deferrals: deferrals}
			if open {
				x := Exception{State: rapid.SampledFrom([]State{Deferred, Deferred, Sent, Delivered, Failed, Unknown, Suppressed, Expired, Cancelled}).Draw(t, "state")}
				x.Retry = x.State == Deferred && rapid.Bool().Draw(t, "retry")
				r.Default = x
				switch {
				case x.Retry:
					attempt, deferrals = attempt+1, 0
				case x.State == Deferred:
					deferrals++
				default:
					open = false
				}
			} else if was.State == Sent || was.State == Unknown || was.State == Failed {
				if was.State == Failed && was.Code != "" {
					continue
				}
				r.Key.Kind = RowReceipt
				r.Index = nil
				r.Default = Exception{State: rapid.SampledFrom([]State{Delivered, Failed}).Draw(t, "receipt")}
			} else {
				continue
			}
			rows = append(rows, r)
			now := Fold(rows, 0, 0)
			if now.State != was.State && !was.State.CanMove(now.State) {
				t.Fatalf("%v -> %v by %+v", was.State, now.State, r)
			}
			was = now
		}
		if !open && !was.State.Terminal() {
			t.Fatalf("ended %v", was.State)
		}
	})
}

func TestFold(t *testing.T) {
	t.Parallel()
	row := func(attempt uint16, xs ...Exception) Row {
		return Row{Key: RowKey{Attempt: attempt}, Count: 1, Done: true, Index: []uint32{7}, Default: Exception{State: Sent}, Exceptions: xs}
	}
	f := func(name string, want State, rows ...Row) {
		t.Helper()
		if got := Fold(rows, 7, 0); got.State != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
	def, sent, failed := Exception{State: Deferred, Retry: true}, Exception{State: Sent}, Exception{State: Failed, Code: "x"}
	two := func(a, b State) []Exception {
		return []Exception{{Addr: 0, Of: 2, State: a}, {Addr: 1, Of: 2, State: b}}
	}
	f("nothing yet", Accepted)
	f("default", Sent, row(0))
	f("waits for a retry", Deferred, row(0, def))
	f("the retry answers", Sent, row(0, def), row(1, sent))
	f("in any order", Sent, row(1, sent), row(0, def))
	f("the retry fails", Failed, row(0, def), row(1, failed))
	f("the retry expires", Expired, row(0, def), row(1, Exception{State: Expired}))
	f("one device of two is reached", Sent, row(0, two(Sent, Failed)...))
	f("one device waits", Deferred, row(0, two(Sent, Deferred)...))
	f("and then fails", Sent, row(0, two(Sent, Deferred)...), row(1, Exception{Addr: 1, Of: 2, State: Failed}))
	f("and is then muted", Sent, row(0, two(Sent, Deferred)...), row(1, Exception{State: Suppressed}))
	f("both fail", Failed, row(0, two(Failed, Deferred)...), row(1, Exception{Addr: 1, Of: 2, State: Failed}))
	f("unknown beats failed", Unknown, row(0, two(Failed, Unknown)...))
	f("no address", Failed, row(0, Exception{State: Failed, Code: CodeNoAddress}))
	f("a receipt", Delivered, row(0), Row{Key: RowKey{Kind: RowReceipt, First: 7}, Count: 1, Done: true, Default: Exception{State: Delivered}})
	f("a receipt of another receiver", Sent, row(0), Row{Key: RowKey{Kind: RowReceipt, First: 8}, Count: 1, Done: true, Default: Exception{State: Delivered}})
	f("a replay starts anew", Deferred, row(0, failed), Row{Key: RowKey{Epoch: 1}, Count: 1, Done: true, Index: []uint32{7}, Default: Exception{State: Deferred}})
	claimed := row(0)
	claimed.Done, claimed.StartedUpTo = false, 1
	f("claimed is not yet an outcome", Accepted, claimed)
}

func BenchmarkItem(b *testing.B) {
	items := NewBase(time.Now()).Items()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		items.Item(i)
		i++
	}
}
