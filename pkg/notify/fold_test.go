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

// What a row that is not done says its receivers wait for makes those that are
// started Deferred, unless something is known of them.
func TestFoldOfWhatWaits(t *testing.T) {
	t.Parallel()
	held := func(done, started uint32, ex ...Exception) Row {
		return Row{Count: 6, DoneUpTo: done, StartedUpTo: started, Default: Exception{State: Sent}, Exceptions: ex}
	}
	waits := func(pos uint32) Exception { return Exception{Pos: pos, State: Deferred, Code: "http_403", Wake: 1} }
	f := func(name string, pos uint32, want State, code string, rows ...Row) {
		t.Helper()
		if got := Fold(rows, pos, pos); got.State != want || got.Code != code {
			t.Errorf("%s: %+v, want %v %q", name, got, want, code)
		}
	}
	f("done", 1, Sent, "", held(2, 4, waits(2)))
	f("the first", 2, Deferred, "http_403", held(2, 4, waits(2)))
	f("the last", 3, Deferred, "http_403", held(2, 4, waits(2), Exception{Pos: 3, State: Failed, Code: "x"}))
	f("not started", 4, Accepted, "", held(2, 4, waits(2)))
	f("of a window that finished early", 3, Accepted, "", held(2, 4, Exception{Pos: 3, State: Deferred, Code: "quiet_hours"}))
	retry := Row{Key: RowKey{Attempt: 1}, Count: 1, Index: []uint32{2}, StartedUpTo: 1, Exceptions: []Exception{waits(0)}}
	first := Row{Count: 6, DoneUpTo: 6, Done: true, Default: Exception{State: Deferred, Retry: true, Code: "timeout"}}
	f("a retry", 2, Deferred, "http_403", first, retry)
	f("another's retry", 3, Deferred, "timeout", first, retry)
	receipt := Row{Key: ReceiptKey(RowKey{}, 2, 0, Delivered), Count: 1, Done: true, Default: Exception{State: Delivered}}
	f("a receipt", 2, Delivered, "", receipt, held(2, 4, waits(2)))
	f("a receipt before the retry", 2, Delivered, "", receipt, first, retry)
	done := held(2, 4, waits(2))
	done.Done = true
	if x, ok := done.DeferredAt(2); ok {
		t.Errorf("of a row that is done: %+v", x)
	}
}
