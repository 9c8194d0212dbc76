package enginetest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
)

// chunkRow returns the row of an original envelope that is not done. Every field that such a row can
// store has a value.
func chunkRow(ms int64, n uint64) notify.Row {
	return notify.Row{
		Key:   notify.RowKey{Chunk: notify.Chunk{Base: base(ms, n), Partition: 3, Block: 7}},
		Count: 8300, Digest: 0xfeedface12345678, DoneUpTo: 5000, StartedUpTo: 6000, Starts: 2, Resent: 17,
		Default: notify.Exception{State: notify.Sent, Provider: "apns"},
		Exceptions: []notify.Exception{
			{Pos: 4, Addr: 0, Of: 2, State: notify.Failed, Code: "apns_unregistered", Provider: "apns"},
			{Pos: 4, Addr: 1, Of: 2, State: notify.Unknown, Code: "timeout", Provider: "apns"},
			{Pos: 900, State: notify.Deferred, Retry: true, Wake: ms + 2000, Class: notify.ClassUnavailable, Code: "http_503", Provider: "twilio:AC1"},
			{Pos: 4999, State: notify.Delivered, Receipt: "SM123"},
		},
		Caller: "shop", Campaign: "cmp_1", Channel: notify.Push, Category: notify.Marketing,
		Accepted: ms, Updated: ms + 12, Topic: "notifications-push-bulk", LogPart: 3, Offset: 1 << 40,
	}
}

// retryRow returns the row of a derived envelope of the same chunk as chunkRow. The row
// lists its receivers in Index.
func retryRow(ms int64, n uint64) notify.Row {
	r := chunkRow(ms, n)
	r.Key.Attempt, r.Key.First = 1, 12
	r.Index, r.Count, r.Done = []uint32{12, 13, 700_000}, 3, true
	r.Default = notify.Exception{State: notify.Deferred, Code: "quiet_hours", Wake: ms + 3_600_000}
	r.Exceptions = nil
	return r
}

// Damage stores value in place of the row with this key. The engine cannot decode value.
type Damage func(s engine.Status, key notify.RowKey, value []byte) error

// statusOver is the Status of an engine that implements rows.Rows. It also gives access to
// the rows, so that a test can damage them.
type statusOver struct {
	engine.Status
	rows rows.Rows
}

// StatusOver returns the Status of a store that has rows. A test runs the suite Status with
// this Status and with DamageOver.
func StatusOver[S interface {
	Status() engine.Status
	Rows() rows.Rows
}](s S) engine.Status {
	return statusOver{s.Status(), s.Rows()}
}

// DamageOver implements Damage for a Status that StatusOver returned.
func DamageOver(s engine.Status, key notify.RowKey, value []byte) error {
	return DamageRow(s.(statusOver).rows, key, value)
}

// DamageRow stores a value under the key of an outcome row.
func DamageRow(r rows.Rows, key notify.RowKey, value []byte) error {
	k, err := binary.Append(nil, binary.BigEndian, key)
	if err != nil {
		return err
	}
	return r.Write(bg, func(b rows.Batch) { b.Set(rows.Partition{Table: 's'}, k, value) })
}

// Status runs the suite of engine.Status.
func Status(t *testing.T, open Opener[engine.Status], damage Damage) {
	t.Run("Put stores rows", func(t *testing.T) {
		s, _ := open(t)
		rows := []notify.Row{chunkRow(1000, 1), retryRow(1000, 1), {Key: notify.RowKey{Chunk: notify.Chunk{Base: base(5, 5)}}}}
		must(t, s.Put(bg, rows))
		got := val(s.Get(bg, []notify.RowKey{rows[0].Key, rows[1].Key, rows[2].Key}))(t)
		same(t, "rows", got, rows)
		must(t, s.Put(bg, nil))
	})
	t.Run("a call that is refused stores no row", func(t *testing.T) {
		s, _ := open(t)
		bad := retryRow(1000, 1)
		bad.Default.State = 200
		wantKind(t, s.Put(bg, []notify.Row{chunkRow(1000, 1), bad}), notify.KindInvalid)
		same(t, "rows", val(s.Chunk(bg, bad.Key.Chunk))(t), []notify.Row{})
	})
	t.Run("rows of one call and request become visible all or none", func(t *testing.T) {
		s, _ := open(t)
		a, b := chunkRow(1000, 1), chunkRow(1000, 1)
		b.Key.Chunk.Block++
		together(4, func(i int) {
			for v := range uint32(50) {
				if i == 0 {
					a.Count, b.Count = v+1, v+1
					if err := s.Put(bg, []notify.Row{a, b}); err != nil {
						t.Error(err)
					}
					continue
				}
				var counts []uint32
				err := s.Request(bg, a.Key.Chunk.Base, func(r *notify.Row) error {
					counts = append(counts, r.Count)
					return nil
				})
				if err != nil || len(counts) == 1 || len(counts) == 2 && counts[0] != counts[1] {
					t.Errorf("counts %v, %v: half of a call is visible", counts, err)
				}
			}
		})
	})
	t.Run("the last write of a key wins", func(t *testing.T) {
		s, reopen := open(t)
		r := chunkRow(1000, 1)
		must(t, s.Put(bg, []notify.Row{r}))
		r.Done, r.DoneUpTo, r.Exceptions = true, r.Count, r.Exceptions[:1]
		must(t, s.Put(bg, []notify.Row{chunkRow(1000, 1), r}))
		same(t, "row", val(s.Get(bg, []notify.RowKey{r.Key}))(t), []notify.Row{r})
		if reopen != nil {
			same(t, "row after a restart", val(reopen().Get(bg, []notify.RowKey{r.Key}))(t), []notify.Row{r})
		}
	})
	t.Run("Get returns rows in the order of keys; for a key without a row the zero RowKey", func(t *testing.T) {
		s, _ := open(t)
		a, b := chunkRow(1000, 1), chunkRow(1000, 2)
		must(t, s.Put(bg, []notify.Row{a, b}))
		none := chunkRow(1000, 3).Key
		got := val(s.Get(bg, []notify.RowKey{b.Key, none, a.Key, b.Key}))(t)
		same(t, "rows", got, []notify.Row{b, {}, a, b})
		same(t, "no keys", val(s.Get(bg, nil))(t), []notify.Row{})
	})
	t.Run("Chunk returns the rows of the original, of derived envelopes and of receipts in the order of their keys", func(t *testing.T) {
		s, _ := open(t)
		orig, derived, receipt, epoch, other := chunkRow(1000, 1), retryRow(1000, 1), chunkRow(1000, 1), chunkRow(1000, 1), chunkRow(1000, 1)
		receipt.Key.Kind = notify.RowReceipt
		epoch.Key.Epoch = 1
		other.Key.Chunk.Block++
		must(t, s.Put(bg, []notify.Row{epoch, other, receipt, derived, orig}))
		same(t, "rows", val(s.Chunk(bg, orig.Key.Chunk))(t), []notify.Row{orig, receipt, derived, epoch})
		same(t, "none", val(s.Chunk(bg, notify.Chunk{Base: base(9, 9)}))(t), []notify.Row{})
	})
	t.Run("Request calls fn with every row of a request in order", func(t *testing.T) {
		s, _ := open(t)
		var want, all []notify.Row
		for part := range uint16(3) {
			for block := range uint32(3) {
				for _, n := range []uint64{1, 2} {
					r := chunkRow(1000, n)
					r.Key.Chunk.Partition, r.Key.Chunk.Block = 255*part, 255*block
					if all = append(all, r); n == 1 {
						want = append(want, r)
					}
				}
			}
		}
		slices.Reverse(all)
		must(t, s.Put(bg, all))
		each := func(fn func(*notify.Row) error) error { return s.Request(bg, base(1000, 1), fn) }
		same(t, "rows", collect(t, each), want)
	})
	t.Run("Request and Scan stop when fn returns an error, and return it", func(t *testing.T) {
		s, _ := open(t)
		must(t, s.Put(bg, []notify.Row{chunkRow(1000, 1), retryRow(1000, 1)}))
		checkStops(t, func(fn func(*notify.Row) error) error { return s.Request(bg, base(1000, 1), fn) })
		checkStops(t, func(fn func(*notify.Row) error) error { return s.Scan(bg, 0, 5000, fn) })
	})
	t.Run("Scan calls fn with every row whose base was created in [from, to), in order", func(t *testing.T) {
		s, _ := open(t)
		var rows []notify.Row
		for _, ms := range []int64{0, 999, 1000, 1255, 1256, 1 << 40} {
			rows = append(rows, chunkRow(ms, ^uint64(0)))
		}
		must(t, s.Put(bg, rows))
		scan := func(from, to int64) []notify.Row {
			return collect(t, func(fn func(*notify.Row) error) error { return s.Scan(bg, from, to, fn) })
		}
		same(t, "middle", scan(999, 1256), rows[1:4])
		same(t, "empty", scan(1256, 1256), []notify.Row{})
		same(t, "turned", scan(1256, 0), []notify.Row{})
		same(t, "all", scan(-1, 1<<62), rows)
	})
	t.Run("slices passed in may be reused, slices returned belong to the caller", func(t *testing.T) {
		s, _ := open(t)
		r := retryRow(1000, 1)
		r.Exceptions = chunkRow(1000, 1).Exceptions
		want := r
		want.Index, want.Exceptions = slices.Clone(r.Index), slices.Clone(r.Exceptions)
		must(t, s.Put(bg, []notify.Row{r}))
		r.Index[0], r.Exceptions[0].Code = 99, "overwritten"
		got := val(s.Get(bg, []notify.RowKey{r.Key}))(t)
		same(t, "row", got[0], want)
		got[0].Index[0], got[0].Exceptions[0].Code = 77, "again"
		same(t, "row again", val(s.Get(bg, []notify.RowKey{r.Key}))(t)[0], want)
	})
	t.Run("if a writing method returns nil, the write is durable", func(t *testing.T) {
		s, reopen := open(t)
		if reopen == nil {
			return // this engine has no durable state
		}
		together(8, func(i int) {
			for n := range 20 {
				if err := s.Put(bg, []notify.Row{chunkRow(int64(i), uint64(n))}); err != nil {
					t.Error(err)
				}
			}
		})
		s = reopen()
		rows := collect(t, func(fn func(*notify.Row) error) error { return s.Scan(bg, 0, 1000, fn) })
		if len(rows) != 160 {
			t.Fatalf("%d of 160 rows left", len(rows))
		}
	})
	t.Run("the stamps of a tenure are greater than those of all earlier tenures", func(t *testing.T) {
		s, _ := open(t)
		last := engine.Tenure{}
		for i := range 5 {
			next := val(s.TakeOver(bg, "topic", 7))(t)
			if next.Topic != "topic" || next.Partition != 7 || i > 0 && (next.Before != last.Start || next.Stamp(1) <= last.Stamp(engine.TenureStamps-1)) {
				t.Fatalf("TakeOver returned %+v after %+v", next, last)
			}
			last = next
		}
		if other := val(s.TakeOver(bg, "topic", 8))(t); other.Before != 0 {
			t.Errorf("the first tenure of another partition is %+v", other)
		}
		var mu sync.Mutex
		begun := map[int64]bool{}
		together(4, func(int) {
			next, err := s.TakeOver(bg, "topic", 9)
			mu.Lock()
			defer mu.Unlock()
			if err != nil || begun[next.Start] {
				t.Errorf("TakeOver returned %+v and the error %v; the starts of earlier tenures are %v", next, err, begun)
			}
			begun[next.Start] = true
		})
	})
	t.Run("the row with the greatest stamp wins, in whatever order they arrive", func(t *testing.T) {
		s, _ := open(t)
		r := chunkRow(1000, 1)
		old := val(s.TakeOver(bg, r.Topic, r.LogPart))(t)
		must(t, s.Put(bg, []notify.Row{stamped(r, old.Stamp(1), 1000)}))
		now := val(s.TakeOver(bg, r.Topic, r.LogPart))(t)
		same(t, "resumed", val(s.Resume(bg, now, []notify.RowKey{r.Key}))(t), []notify.Row{stamped(r, 0, 1000)})
		finished := stamped(r, now.Stamp(1), r.Count)
		must(t, s.Put(bg, []notify.Row{finished}))
		must(t, s.Put(bg, []notify.Row{stamped(r, old.Stamp(engine.TenureStamps-1), 2000)}))
		finished.Stamp = 0
		same(t, "after a late write", val(s.Get(bg, []notify.RowKey{r.Key}))(t), []notify.Row{finished})
		// Two calls of Put get two rows with the same key. In the first call the row of the later
		// owner comes first, in the second call it comes last. The first call also has a row of
		// another key.
		other := retryRow(1000, 1)
		must(t, s.Put(bg, []notify.Row{stamped(other, old.Stamp(5), 1), stamped(r, now.Stamp(2), 8000), stamped(r, old.Stamp(6), 3000)}))
		must(t, s.Put(bg, []notify.Row{stamped(r, old.Stamp(7), 3000), stamped(r, now.Stamp(3), 8100)}))
		same(t, "after calls with both", val(s.Get(bg, []notify.RowKey{r.Key}))(t), []notify.Row{stamped(r, 0, 8100)})
	})
	t.Run("a row that Resume returned as Done is final", func(t *testing.T) {
		s, _ := open(t)
		r := chunkRow(1000, 1)
		first := val(s.TakeOver(bg, r.Topic, r.LogPart))(t)
		second := val(s.TakeOver(bg, r.Topic, r.LogPart))(t)
		// Assume that the second owner has read the row before this late write of the first owner
		// arrives.
		must(t, s.Put(bg, []notify.Row{stamped(r, first.Stamp(9), r.Count)}))
		third := val(s.TakeOver(bg, r.Topic, r.LogPart))(t)
		finished := stamped(r, 0, r.Count)
		same(t, "resumed", val(s.Resume(bg, third, []notify.RowKey{r.Key}))(t), []notify.Row{finished})
		must(t, s.Put(bg, []notify.Row{stamped(r, second.Stamp(1), 1000)}))
		same(t, "after a claim of the second owner", val(s.Get(bg, []notify.RowKey{r.Key}))(t), []notify.Row{finished})
	})
	if damage != nil { // nil for a wrapper: the wrapped engine runs these tests itself
		damagedRowSuite(t, open, damage)
	}
	t.Run("TakeOver does not stop an earlier owner from writing", func(t *testing.T) {
		s, _ := open(t)
		r := chunkRow(1000, 1)
		owner := val(s.TakeOver(bg, r.Topic, r.LogPart))(t)
		_ = val(s.Resume(bg, owner, []notify.RowKey{r.Key}))(t)
		_ = val(s.TakeOver(bg, r.Topic, r.LogPart))(t)
		must(t, s.Put(bg, []notify.Row{stamped(r, owner.Stamp(1), 1000)}))
		same(t, "row", val(s.Get(bg, []notify.RowKey{r.Key}))(t), []notify.Row{stamped(r, 0, 1000)})
	})
	t.Run("a row with StampBeside replaces the stored row, and the next row of the owner replaces it in turn", func(t *testing.T) {
		s, _ := open(t)
		r := chunkRow(1000, 1)
		beside := stamped(r, engine.StampBeside, 5000)
		get := func() []notify.Row { return val(s.Get(bg, []notify.RowKey{r.Key}))(t) }
		must(t, s.Put(bg, []notify.Row{beside}))
		same(t, "without a row", get(), []notify.Row{stamped(r, 0, 5000)})
		owner := val(s.TakeOver(bg, r.Topic, r.LogPart))(t)
		_ = val(s.Resume(bg, owner, []notify.RowKey{r.Key}))(t)
		for n := int64(1); n < 6; n += 2 {
			must(t, s.Put(bg, []notify.Row{stamped(r, owner.Stamp(n), uint32(n))}))
			same(t, "the owner's", get(), []notify.Row{stamped(r, 0, uint32(n))})
			must(t, s.Put(bg, []notify.Row{beside}))
			same(t, "over the owner's", get(), []notify.Row{stamped(r, 0, 5000)})
		}
		must(t, s.Put(bg, []notify.Row{stamped(r, owner.Stamp(6), 6)}))
		same(t, "the owner's next one", get(), []notify.Row{stamped(r, 0, 6)})
	})
	t.Run("a failure is notify.KindUnavailable", func(t *testing.T) {
		s, _ := open(t)
		wantKind(t, s.Put(endedContext(), []notify.Row{chunkRow(1, 1)}), notify.KindUnavailable)
		_, err := s.TakeOver(endedContext(), "topic", 0)
		wantKind(t, err, notify.KindUnavailable)
		_, err = s.Resume(endedContext(), engine.Tenure{Topic: "topic", Start: 2}, []notify.RowKey{chunkRow(1, 1).Key})
		wantKind(t, err, notify.KindUnavailable)
	})
	t.Run("model", func(t *testing.T) { statusModel(t, open) })
	t.Run("model of owners", func(t *testing.T) { ownersModel(t, open) })
}

// stamped returns a copy of r with the given stamp. In the copy, the receivers up to the position upTo
// are done.
func stamped(r notify.Row, stamp int64, upTo uint32) notify.Row {
	r.Stamp, r.DoneUpTo, r.StartedUpTo, r.Done = stamp, upTo, max(upTo, r.StartedUpTo), upTo == r.Count
	return r
}

// ownersModel lets owners take over a partition from each other, call Resume and write rows. Earlier
// owners also write late. Two kinds of rows must not change: rows that the last owner has written,
// and rows that Resume has returned to the last owner as Done.
func ownersModel(t *testing.T, open Opener[engine.Status]) {
	runModel(t, func(rt *rapid.T) map[string]func(*rapid.T) {
		s, _ := open(rt)
		row := chunkRow(1000, 1)
		type owner struct {
			engine.Tenure
			used     int64
			finished map[notify.RowKey]bool
		}
		var owners []*owner
		keys := []notify.RowKey{row.Key, row.Key}
		keys[1].Chunk.Block++
		fixed := map[notify.RowKey]notify.Row{} // rows that must not change
		next := func(o *owner, key notify.RowKey, upTo uint32) notify.Row {
			o.used++
			r := stamped(row, o.Stamp(o.used), upTo)
			r.Key = key
			o.finished[key] = o.finished[key] || r.Done
			return r
		}
		takeOver := func(rt *rapid.T) {
			owners = append(owners, &owner{Tenure: val(s.TakeOver(bg, row.Topic, row.LogPart))(rt), finished: map[notify.RowKey]bool{}})
			clear(fixed)
			for i, r := range val(s.Resume(bg, owners[len(owners)-1].Tenure, keys))(rt) {
				if r.Done {
					fixed[keys[i]], owners[len(owners)-1].finished[keys[i]] = r, true
				}
			}
		}
		takeOver(rt)
		return map[string]func(*rapid.T){
			"take over": takeOver,
			"write": func(rt *rapid.T) {
				key := rapid.SampledFrom(keys).Draw(rt, "key")
				if fixed[key].Done {
					return // an owner writes no row after a row that is Done
				}
				r := next(owners[len(owners)-1], key, rapid.SampledFrom([]uint32{100, 200, row.Count}).Draw(rt, "up to"))
				must(rt, s.Put(bg, []notify.Row{r}))
				r.Stamp = 0
				fixed[key] = r
			},
			"write late": func(rt *rapid.T) {
				if len(owners) < 2 {
					return
				}
				// The late write is a claim. An owner that has written a row with Done set
				// writes no further row with the same key.
				o := owners[rapid.IntRange(0, len(owners)-2).Draw(rt, "owner")]
				if key := rapid.SampledFrom(keys).Draw(rt, "key"); !o.finished[key] {
					must(rt, s.Put(bg, []notify.Row{next(o, key, 300)}))
				}
			},
			"": func(rt *rapid.T) {
				for key, want := range fixed {
					same(rt, "row", val(s.Get(bg, []notify.RowKey{key}))(rt), []notify.Row{want})
				}
			},
		}
	})
}

func genRow(rt *rapid.T) notify.Row {
	small := func(name string, n int) int { return rapid.IntRange(0, n).Draw(rt, name) }
	text := rapid.SampledFrom([]string{"", "a", "apns_unregistered", "twilio:AC1", "ö"})
	r := notify.Row{
		Key: notify.RowKey{
			Chunk: notify.Chunk{Base: base(int64(small("ms", 3)), uint64(small("n", 1))), Partition: uint16(small("part", 1)), Block: uint32(small("block", 1))},
			Epoch: uint16(small("epoch", 1)), Attempt: uint16(small("attempt", 1)), Deferrals: uint16(small("deferrals", 1)),
			First: uint32(small("first", 2)), Kind: notify.RowKind(small("kind", 1)),
		},
		Count: rapid.Uint32().Draw(rt, "count"), Digest: rapid.Uint64().Draw(rt, "digest"),
		DoneUpTo: rapid.Uint32().Draw(rt, "done"), StartedUpTo: rapid.Uint32().Draw(rt, "started"),
		Starts: rapid.Uint16().Draw(rt, "starts"), Done: rapid.Bool().Draw(rt, "isdone"), Resent: rapid.Uint32().Draw(rt, "resent"),
		Caller: text.Draw(rt, "caller"), Campaign: text.Draw(rt, "campaign"),
		Channel: notify.Channel(small("channel", 3)), Category: notify.Category(small("category", 5)),
		Accepted: rapid.Int64().Draw(rt, "accepted"), Updated: rapid.Int64().Draw(rt, "updated"),
		Topic: text.Draw(rt, "topic"), LogPart: rapid.Int32().Draw(rt, "part"), Offset: rapid.Int64().Draw(rt, "offset"),
	}
	exception := func() notify.Exception {
		return notify.Exception{
			State: notify.State(small("state", notify.States-1)), Of: uint8(small("of", 3)), Class: notify.Class(small("class", int(notify.ClassAmbiguous))), Retry: rapid.Bool().Draw(rt, "retry"),
			Wake: rapid.Int64().Draw(rt, "wake"), Code: text.Draw(rt, "code"), Provider: text.Draw(rt, "provider"), Receipt: text.Draw(rt, "receipt"),
		}
	}
	r.Default = exception()
	for i := range small("exceptions", 4) {
		x := exception()
		x.Pos, x.Addr = uint32(10*i), uint8(small("addr", 3))
		r.Exceptions = append(r.Exceptions, x)
	}
	for i := range small("index", 3) {
		r.Index = append(r.Index, uint32(1000*i+small("step", 999)))
	}
	return r
}

// compareRowKeys compares rows in the order in which a Status returns them.
func compareRowKeys(a, b notify.Row) int {
	x, _ := binary.Append(nil, binary.BigEndian, a.Key)
	y, _ := binary.Append(nil, binary.BigEndian, b.Key)
	return bytes.Compare(x, y)
}

// statusModel compares an engine with a model: a map.
func statusModel(t *testing.T, open Opener[engine.Status]) {
	runModel(t, func(rt *rapid.T) map[string]func(*rapid.T) {
		s, reopen := open(rt)
		m := map[notify.RowKey]notify.Row{}
		pick := func(keep func(notify.RowKey) bool) (out []notify.Row) {
			for k, r := range m {
				if keep(k) {
					out = append(out, r)
				}
			}
			return sorted(out, compareRowKeys)
		}
		actions := map[string]func(*rapid.T){
			"put": func(rt *rapid.T) {
				rows := rapid.SliceOfN(rapid.Custom(genRow), 0, 5).Draw(rt, "rows")
				must(rt, s.Put(bg, rows))
				for _, r := range rows {
					m[r.Key] = r
				}
			},
			"get": func(rt *rapid.T) {
				var keys []notify.RowKey
				var want []notify.Row
				for range rapid.IntRange(0, 5).Draw(rt, "keys") {
					keys = append(keys, genRow(rt).Key)
					want = append(want, m[keys[len(keys)-1]])
				}
				same(rt, "Get", val(s.Get(bg, keys))(rt), want)
			},
			"chunk": func(rt *rapid.T) {
				c := genRow(rt).Key.Chunk
				same(rt, "Chunk", val(s.Chunk(bg, c))(rt), pick(func(k notify.RowKey) bool { return k.Chunk == c }))
			},
			"request": func(rt *rapid.T) {
				b := genRow(rt).Key.Chunk.Base
				got := collect(rt, func(fn func(*notify.Row) error) error { return s.Request(bg, b, fn) })
				same(rt, "Request", got, pick(func(k notify.RowKey) bool { return k.Chunk.Base == b }))
			},
			"scan": func(rt *rapid.T) {
				from, to := rapid.Int64Range(-1, 5).Draw(rt, "from"), rapid.Int64Range(-1, 5).Draw(rt, "to")
				got := collect(rt, func(fn func(*notify.Row) error) error { return s.Scan(bg, from, to, fn) })
				same(rt, fmt.Sprint("Scan ", from, to), got, pick(func(k notify.RowKey) bool {
					ms := k.Chunk.Base.Time().UnixMilli()
					return ms >= from && ms < to
				}))
			},
		}
		if reopen != nil {
			actions["restart"] = func(rt *rapid.T) { sometimes(rt, func() { s = reopen() }) }
		}
		return actions
	})
}

// damagedRowSuite runs the tests of Status about rows that cannot be decoded.
func damagedRowSuite(t *testing.T, open Opener[engine.Status], damage Damage) {
	t.Run("Resume returns a row that it cannot decode with its bytes, and the owner's next write replaces it", func(t *testing.T) {
		s, reopen := open(t)
		r, fine := chunkRow(1000, 1), retryRow(1000, 1)
		must(t, s.Put(bg, []notify.Row{r, fine}))
		must(t, damage(s, r.Key, []byte("\x00damaged")))
		keys := []notify.RowKey{fine.Key, r.Key, chunkRow(2000, 1).Key}
		resume := func() []notify.Row {
			return val(s.Resume(bg, val(s.TakeOver(bg, r.Topic, r.LogPart))(t), keys))(t)
		}
		want := []notify.Row{fine, {Key: r.Key, Damaged: []byte("\x00damaged")}, {}}
		same(t, "resumed", resume(), want)
		if reopen != nil {
			s = reopen()
			same(t, "resumed after a restart", resume(), want)
		}
		if _, err := s.Get(bg, keys); !errors.Is(err, notify.ErrCorrupt) {
			t.Errorf("Get: %v, want ErrCorrupt", err)
		}
		if _, err := s.Chunk(bg, r.Key.Chunk); !errors.Is(err, notify.ErrCorrupt) {
			t.Errorf("Chunk: %v, want ErrCorrupt", err)
		}
		owner := val(s.TakeOver(bg, r.Topic, r.LogPart))(t)
		_ = val(s.Resume(bg, owner, keys))(t)
		must(t, s.Put(bg, []notify.Row{stamped(r, owner.Stamp(1), 1000)}))
		same(t, "written anew", val(s.Get(bg, keys))(t), []notify.Row{fine, stamped(r, 0, 1000), {}})
	})
	t.Run("a row of a newer release is not damage: every read returns store_newer, and the row stays", func(t *testing.T) {
		s, reopen := open(t)
		r, fine := chunkRow(1000, 1), retryRow(1000, 1)
		must(t, s.Put(bg, []notify.Row{r, fine}))
		must(t, damage(s, r.Key, []byte("\x7fof tomorrow")))
		keys := []notify.RowKey{fine.Key, r.Key}
		look := func() {
			owner := val(s.TakeOver(bg, r.Topic, r.LogPart))(t)
			_, resumed := s.Resume(bg, owner, keys)
			_, got := s.Get(bg, keys)
			_, chunk := s.Chunk(bg, r.Key.Chunk)
			for name, err := range map[string]error{"Resume": resumed, "Get": got, "Chunk": chunk, "Request": s.Request(bg, r.Key.Chunk.Base, func(*notify.Row) error { return nil })} {
				if e, ok := errors.AsType[*notify.Error](err); !ok || e.Code != "store_newer" || !errors.Is(err, notify.ErrNewer) || errors.Is(err, notify.ErrCorrupt) {
					t.Errorf("%s: %v, want store_newer", name, err)
				}
			}
		}
		look()
		if reopen != nil {
			s = reopen()
			look()
		}
	})
}
