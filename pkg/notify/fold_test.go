package notify

import "testing"

// A row that follows one that handed a receiver on answers for every address it
// was handed on with, also for those it does not name.
func TestFoldAcrossAddresses(t *testing.T) {
	t.Parallel()
	row := func(attempt, deferrals uint16, ex ...Exception) Row {
		r := Row{Key: RowKey{Attempt: attempt, Deferrals: deferrals}, Count: 1, DoneUpTo: 1, StartedUpTo: 1, Done: true, Exceptions: ex}
		if attempt > 0 || deferrals > 0 {
			r.Index = []uint32{0}
		}
		return r
	}
	at := func(addr, of uint8, s State) Exception { return Exception{Addr: addr, Of: of, State: s} }
	all := func(s State, code string) Exception { return Exception{State: s, Code: code} }
	f := func(name string, want State, rows ...Row) {
		t.Helper()
		if got := Fold(rows, 0, 0); got.State != want {
			t.Errorf("%s: %+v, want %v", name, got, want)
		}
	}
	f("deadline while one address waits", Sent,
		row(0, 0, at(0, 2, Sent), at(1, 2, Deferred)), row(1, 0, all(Failed, "deadline")))
	f("deadline while the other has failed", Failed,
		row(0, 0, at(0, 2, Failed), at(1, 2, Deferred)), row(1, 0, all(Failed, "deadline")))
	f("interrupted retry of one address", Unknown,
		row(0, 0, at(0, 2, Failed), at(1, 2, Deferred)), row(1, 0, all(Unknown, "interrupted")))
	f("quiet hours before the addresses are known", Delivered,
		row(0, 0, all(Deferred, "quiet_hours")), row(0, 1, at(1, 2, Delivered))) // 0 is suppressed by then
	f("an address that waited was suppressed", Sent,
		row(0, 0, at(0, 3, Deferred), at(1, 3, Deferred), at(2, 3, Failed)), row(1, 0, at(1, 3, Sent)))
	f("all that waited were suppressed", Suppressed,
		row(0, 0, all(Deferred, "quiet_hours")), row(0, 1, all(Suppressed, "suppressed_address")))
	f("a call was made at one address", Failed,
		row(0, 0, at(0, 2, Failed), at(1, 2, Suppressed)))
	f("still waiting", Deferred,
		row(0, 0, at(0, 2, Sent), at(1, 2, Deferred)), row(1, 0, all(Deferred, "quiet_hours")))
	f("a receipt for the address that was reached", Delivered,
		row(0, 0, at(0, 2, Sent), at(1, 2, Deferred)), row(1, 0, all(Failed, "deadline")),
		Row{Key: RowKey{Kind: RowReceipt}, Count: 1, DoneUpTo: 1, Done: true, Exceptions: []Exception{at(0, 2, Delivered)}})
}
