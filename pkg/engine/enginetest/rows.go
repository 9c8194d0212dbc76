package enginetest

import (
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/rows"
)

// scanRows returns copies of the rows of a range.
func scanRows(t T, s rows.Rows, p rows.Partition, r rows.Range) (out []rows.Row) {
	t.Helper()
	must(t, s.Scan(bg, p, r, func(row rows.Row) (bool, error) {
		out = append(out, rows.Row{Key: row.Key, Value: append([]byte{}, row.Value...)})
		return true, nil
	}))
	return out
}

func swapRows(t T, s rows.Rows, cs ...rows.Change) bool {
	t.Helper()
	return val(s.Swap(bg, cs...))(t)
}

// Rows runs the suite of rows.Rows.
func Rows(t *testing.T, open Opener[rows.Rows]) {
	p := rows.Partition{Table: 'x', Name: "p"}
	row := func(key, value string) rows.Row { return rows.Row{Key: key, Value: []byte(value)} }
	t.Run("Get returns the values of keys, in the order of keys; nil for a key that has no row", func(t *testing.T) {
		s, reopen := open(t)
		value := []byte("1")
		same(t, "won", swapRows(t, s, rows.Change{Part: p, Set: []rows.Row{{Key: "a", Value: value}, row("b", ""), row("ab", "3")}}), true)
		value[0] = 'x' // the caller may reuse value
		if reopen != nil {
			s = reopen()
		}
		for range 2 {
			got := val(s.Get(bg, p, "ab", "c", "b", "a"))(t)
			same(t, "values", got, [][]byte{[]byte("3"), nil, {}, []byte("1")})
			got[3][0] = 'y' // the result belongs to the caller
		}
		for _, other := range []rows.Partition{{Table: 'x', Name: ""}, {Table: 'x', Name: "pa"}, {Table: 'y', Name: "p"}} {
			same(t, "another partition", val(s.Get(bg, other, "a", "b", ""))(t), [][]byte{nil, nil, nil})
			same(t, "scan of another partition", len(scanRows(t, s, other, rows.Range{})), 0)
		}
	})
	t.Run("Swap applies a change, all or none, if every row of Expect is stored with its value", func(t *testing.T) {
		s, reopen := open(t)
		must(t, ignore(s.Swap(bg, rows.Change{Part: p, Set: []rows.Row{row("a", "1"), row("e", "")}})))
		lost := []rows.Row{row("a", "2"), row("a", ""), {Key: "a"}, row("b", ""), row("b", "1"), {Key: "e"}, row("e", "1")}
		for i := range lost {
			c := rows.Change{Part: p, Expect: []rows.Row{row("a", "1"), lost[i]}, Set: []rows.Row{row("a", "9"), row("z", "9"), {Key: "e"}}, Numbers: 1, Number: func(int, uint64) []rows.Row {
				t.Error("Swap called Number although the change is not applied")
				return nil
			}}
			same(t, "won", swapRows(t, s, c), false)
		}
		if reopen != nil {
			s = reopen()
		}
		same(t, "unchanged", scanRows(t, s, p, rows.Range{}), []rows.Row{row("a", "1"), row("e", "")})
		c := rows.Change{Part: p, Expect: []rows.Row{row("a", "1"), {Key: "b"}, row("e", "")}, Set: []rows.Row{row("a", "2"), row("b", "2"), {Key: "e"}, {Key: "none"}}}
		same(t, "won", swapRows(t, s, c), true)
		if reopen != nil {
			s = reopen()
		}
		same(t, "changed", scanRows(t, s, p, rows.Range{}), []rows.Row{row("a", "2"), row("b", "2")})
		same(t, "again", swapRows(t, s, c), false)
		if won, err := s.Swap(endedContext(), rows.Change{Part: p, Set: []rows.Row{{Key: "a"}}}); won || err == nil {
			t.Errorf("Swap with an ended context returned %v and the error %v, want false and an error", won, err)
		}
	})
	t.Run("Swap applies the changes of several partitions, all or none, and numbers them in their order", func(t *testing.T) {
		s, reopen := open(t)
		q := rows.Partition{Table: 'y', Name: "q"}
		var given []uint64
		number := func(_ int, n uint64) []rows.Row {
			given = append(given, n)
			return []rows.Row{row("n", strconv.Itoa(len(given)))}
		}
		cs := []rows.Change{
			{Part: q, Expect: []rows.Row{{Key: "a"}}, Set: []rows.Row{row("a", "1")}, Numbers: 2, Number: number},
			{Part: p, Expect: []rows.Row{{Key: "b"}}, Set: []rows.Row{row("b", "2")}, Insert: []rows.Row{row("c", "3")}, Numbers: 1, Number: number},
		}
		same(t, "won", swapRows(t, s, cs...), true)
		same(t, "numbers", given, []uint64{1, 2, 1})
		must(t, ignore(s.Swap(bg, rows.Change{Part: q, Set: []rows.Row{{Key: "a"}, {Key: "n"}}})))
		same(t, "won", swapRows(t, s, cs...), false) // because the second change does not match
		same(t, "numbers", len(given), 3)
		if reopen != nil {
			s = reopen()
		}
		same(t, "first partition", scanRows(t, s, q, rows.Range{}), []rows.Row{})
		same(t, "second partition", scanRows(t, s, p, rows.Range{}), []rows.Row{row("b", "2"), row("c", "3"), row("n", "3")})
	})
	t.Run("rows of Insert are stored only if their key has no row yet", func(t *testing.T) {
		s, reopen := open(t)
		add := func(rs ...rows.Row) { same(t, "won", swapRows(t, s, rows.Change{Part: p, Insert: rs}), true) }
		add(row("a", "1"), row("a", "2"), row("b", ""))
		add(row("a", "3"), row("b", "4"), row("c", "5"))
		if reopen != nil {
			s = reopen()
		}
		same(t, "stored", scanRows(t, s, p, rows.Range{}), []rows.Row{row("a", "1"), row("b", ""), row("c", "5")})
		same(t, "value", val(s.Get(bg, p, "a"))(t), [][]byte{[]byte("1")})
		same(t, "removed", swapRows(t, s, rows.Change{Part: p, Set: []rows.Row{{Key: "a"}}}), true)
		add(row("a", "6"))
		same(t, "value", val(s.Get(bg, p, "a"))(t), [][]byte{[]byte("6")})
		many := make([]rows.Row, 300)
		for i := range many {
			many[i] = row("m"+strconv.Itoa(i), "1")
		}
		add(many...)
		if reopen != nil {
			s = reopen()
		}
		same(t, "stored", len(scanRows(t, s, p, rows.Range{Prefix: "m"})), len(many))
		if won, err := s.Swap(endedContext(), rows.Change{Part: p, Insert: many}); won || err == nil {
			t.Errorf("Swap with an ended context returned %v and the error %v, want false and an error", won, err)
		}
	})
	t.Run("of many concurrent swaps of one row one wins", func(t *testing.T) {
		s, _ := open(t)
		var won atomic.Int32
		together(16, func(i int) {
			ok, err := s.Swap(bg, rows.Change{Part: p, Expect: []rows.Row{{Key: "a"}}, Set: []rows.Row{row("a", strconv.Itoa(i))}})
			if err != nil {
				t.Error(err)
			}
			if ok {
				won.Add(1)
			}
		})
		same(t, "winners", won.Load(), int32(1))
	})
	t.Run("Scan calls fn with the rows of a range, in order", func(t *testing.T) {
		s, _ := open(t)
		all := []rows.Row{row("a", "1"), row("b\x00", "2"), row("ba", "3"), row("b\xff", "4"), row("b\xff\xff", "5"), row("c", "6")}
		must(t, ignore(s.Swap(bg, rows.Change{Part: p, Set: all})))
		for _, x := range []struct {
			in   rows.Range
			want []rows.Row
		}{
			{rows.Range{}, all}, {rows.Range{Prefix: "b"}, all[1:5]}, {rows.Range{Prefix: "b", After: "ba"}, all[3:5]},
			{rows.Range{After: "b"}, all[1:]}, {rows.Range{Prefix: "b", After: "a"}, all[1:5]}, {rows.Range{Prefix: "b\xff"}, all[3:5]},
			{rows.Range{After: "c"}, nil}, {rows.Range{Prefix: "b", After: "c"}, nil}, {rows.Range{Prefix: "d"}, nil},
			{rows.Range{Before: "c"}, all[:5]}, {rows.Range{Before: "b\xff", After: "a"}, all[1:3]}, {rows.Range{Prefix: "b", Before: "ba"}, all[1:2]},
			{rows.Range{Prefix: "b", Before: "z"}, all[1:5]}, {rows.Range{Prefix: "b", Before: "a"}, nil}, {rows.Range{After: "b", Before: "a"}, nil},
		} {
			want := slices.Clone(x.want)
			same(t, "rows", scanRows(t, s, p, x.in), want)
			slices.Reverse(want)
			x.in.Back = true
			same(t, "rows back", scanRows(t, s, p, x.in), want)
		}
		n := 0
		must(t, s.Scan(bg, p, rows.Range{}, func(rows.Row) (bool, error) { n++; return n < 2, nil }))
		same(t, "until fn returns false", n, 2)
		if err := s.Scan(bg, p, rows.Range{}, func(rows.Row) (bool, error) { n++; return true, errStop }); !errors.Is(err, errStop) || n != 3 {
			t.Errorf("Scan returned the error %v after %d calls of fn, want the error of fn after 3 calls", err, n)
		}
	})
	t.Run("each call of Number gets an n that is greater by one than the n of the call before, and changes become visible in the order of their n", func(t *testing.T) {
		s, reopen := open(t)
		const writers, each = 4, 25
		add := func(p rows.Partition) (n uint64, err error) {
			_, err = s.Swap(bg, rows.Change{Part: p, Numbers: 2, Number: func(i int, next uint64) []rows.Row {
				if i > 0 && next != n+1 {
					t.Errorf("Number got the n %d after the n %d", next, n)
				}
				n = next
				return []rows.Row{{Key: string(binary.BigEndian.AppendUint64(nil, n)), Value: []byte{}}}
			}})
			return n, err
		}
		var left, seen atomic.Int32
		left.Store(writers)
		together(writers+1, func(i int) {
			for k := 0; i < writers && k < each; k++ {
				if _, err := add(p); err != nil {
					t.Error(err)
				}
			}
			if i < writers {
				left.Add(-1)
				return
			}
			after := ""
			for last := false; !last; {
				last = left.Load() == 0
				for _, row := range scanRows(t, s, p, rows.Range{After: after}) {
					after = row.Key
					seen.Add(1)
				}
			}
		})
		same(t, "seen by the reader that follows", seen.Load(), int32(writers*each*2))
		last := uint64(writers * each * 2)
		for range 3 {
			n := val(add(p))(t)
			if n <= last {
				t.Fatalf("Number got the n %d after the n %d", n, last)
			}
			last = n
			for _, row := range scanRows(t, s, p, rows.Range{}) { // a number is not used again after its rows are removed
				must(t, ignore(s.Swap(bg, rows.Change{Part: p, Set: []rows.Row{{Key: row.Key}}})))
			}
			if reopen != nil {
				s = reopen()
			}
		}
		if n := val(add(rows.Partition{Table: 'x', Name: "q"}))(t); n > last {
			t.Errorf("the first n of another partition is %d", n)
		}
	})
	t.Run("Stored is called once the change is durable", func(t *testing.T) {
		s, _ := open(t)
		n := 0
		c := rows.Change{Part: p, Expect: []rows.Row{{Key: "a"}}, Set: []rows.Row{row("a", "1")}, Stored: func() { n++ }}
		same(t, "won", swapRows(t, s, c), true)
		same(t, "calls", n, 1)
		same(t, "won again", swapRows(t, s, c), false)
		same(t, "calls", n, 1)
	})
	t.Run("Write stores the rows that fill puts, in the order in which the fill functions ran", func(t *testing.T) {
		s, reopen := open(t)
		q := rows.Partition{Table: 'y'}
		n := 0 // guarded by the engine's lock
		together(4, func(int) {
			for range 25 {
				err := s.Write(bg, func(b rows.Batch) {
					n++
					key, value := []byte{0}, []byte(strconv.Itoa(n))
					b.Set(p, key, value)
					b.Set(q, key, value)
					b.Set(q, binary.BigEndian.AppendUint32(nil, uint32(n)), nil)
					key[0], value[0] = 'x', 'x' // the caller may reuse both
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
		must(t, s.Write(bg, func(b rows.Batch) { b.Delete(q, []byte("\x00\x00\x00\x01")); b.Delete(q, []byte("none")) }))
		if reopen != nil {
			s = reopen()
		}
		last := []byte(strconv.Itoa(n))
		same(t, "last", scanRows(t, s, p, rows.Range{}), []rows.Row{{Key: "\x00", Value: last}})
		all := scanRows(t, s, q, rows.Range{})
		same(t, "rows", len(all), 100)
		same(t, "first", all[:2], []rows.Row{{Key: "\x00", Value: last}, {Key: "\x00\x00\x00\x02", Value: []byte{}}})
		if err := s.Write(endedContext(), func(b rows.Batch) { b.Delete(p, []byte("\x00")) }); err == nil {
			t.Error("a write with an ended context returned no error")
		}
	})
	t.Run("functions of Settled are called once the batch is durable, in the order of the fill functions", func(t *testing.T) {
		s, _ := open(t)
		var filled, settled []int
		together(4, func(i int) {
			for n := range 25 {
				err := s.Write(bg, func(b rows.Batch) {
					me := 100*i + n
					filled = append(filled, me)
					b.Set(p, binary.BigEndian.AppendUint32(nil, uint32(me)), nil)
					b.Settled(func(err error) {
						if err != nil {
							t.Error(err)
						}
						settled = append(settled, me)
					})
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
		same(t, "order", settled, filled)
		same(t, "calls", len(settled), 100)
		if err := s.Write(endedContext(), func(b rows.Batch) {
			b.Settled(func(error) { t.Error("the engine called a function of Settled for a write that it refused") })
		}); err == nil {
			t.Error("a write with an ended context returned no error")
		}
	})
	t.Run("the batch of a Post becomes durable before the rows of any later Write", func(t *testing.T) {
		s, reopen := open(t)
		must(t, s.Post(bg, func(b rows.Batch) { b.Set(p, []byte("a"), []byte("1")) }))
		must(t, s.Post(bg, func(b rows.Batch) { b.Set(p, []byte("a"), []byte("2")); b.Set(p, []byte("b"), nil) }))
		must(t, s.Write(bg, func(b rows.Batch) { b.Delete(p, []byte("b")) }))
		if reopen != nil {
			s = reopen()
		}
		same(t, "rows", scanRows(t, s, p, rows.Range{}), []rows.Row{row("a", "2")})
		if err := s.Post(endedContext(), func(b rows.Batch) { b.Delete(p, []byte("a")) }); err == nil {
			t.Error("a write with an ended context returned no error")
		}
	})
	t.Run("View reads the rows as they were at one moment", func(t *testing.T) {
		s, _ := open(t)
		must(t, ignore(s.Swap(bg, rows.Change{Part: p, Set: []rows.Row{row("a", "1"), row("b", "2")}})))
		v := s.View()
		must(t, ignore(s.Swap(bg, rows.Change{Part: p, Set: []rows.Row{row("a", "9"), {Key: "b"}, row("c", "3")}})))
		var seen []rows.Row
		must(t, v.Scan(bg, p, rows.Range{}, func(r rows.Row) (bool, error) {
			seen = append(seen, row(r.Key, string(r.Value)))
			return true, nil
		}))
		same(t, "scanned", seen, []rows.Row{row("a", "1"), row("b", "2")})
		keys := []string{"a", "b", "c"}
		var looked []string
		must(t, v.GetMany(bg, p, len(keys), func(b []byte, i int) []byte { return append(b, keys[i]...) }, func(_ int, value []byte) error {
			looked = append(looked, string(value))
			return nil
		}))
		same(t, "looked at", looked, []string{"1", "2", ""})
		must(t, v.Close())
		same(t, "now", scanRows(t, s, p, rows.Range{}), []rows.Row{row("a", "9"), row("c", "3")})
		must(t, s.Err())
		select {
		case <-s.Failed():
			t.Error("the channel of Failed is closed although the engine works")
		default:
		}
	})
	t.Run("the batch of a Write becomes visible at once", func(t *testing.T) {
		s, _ := open(t)
		together(3, func(i int) {
			for n := range 50 {
				if i == 0 {
					v := []byte(strconv.Itoa(n))
					if err := s.Write(bg, func(b rows.Batch) { b.Set(p, []byte("a"), v); b.Set(p, []byte("b"), v) }); err != nil {
						t.Error(err)
					}
					continue
				}
				all := scanRows(t, s, p, rows.Range{})
				if len(all) == 1 || len(all) == 2 && string(all[0].Value) != string(all[1].Value) {
					t.Errorf("half of a write is visible: %v", all)
				}
			}
		})
	})
	t.Run("GetMany calls fn with the values of n rows, in order; nil if the row does not exist", func(t *testing.T) {
		s, _ := open(t)
		same(t, "won", swapRows(t, s, rows.Change{Part: p, Set: []rows.Row{row("a", "1"), row("b", ""), row("ab", "3")}}), true)
		keys := []string{"ab", "none", "b", "a", "ab"}
		look := func(p rows.Partition, n int, fn func(int, []byte) error) error {
			return s.GetMany(bg, p, n, func(b []byte, i int) []byte { return append(b, keys[i]...) }, fn)
		}
		var got [][]byte
		add := func(i int, v []byte) error {
			same(t, "order", i, len(got))
			if got = append(got, nil); v != nil {
				got[i] = append([]byte{}, v...)
			}
			return nil
		}
		must(t, look(p, len(keys), add))
		same(t, "values", got, [][]byte{[]byte("3"), nil, {}, []byte("1"), []byte("3")})
		must(t, look(p, 0, add))
		got = nil
		must(t, look(rows.Partition{Table: 'y', Name: "p"}, 2, add))
		same(t, "another partition", got, [][]byte{nil, nil})
		if err := look(p, 2, func(i int, _ []byte) error { got = got[:1+i]; return errStop }); !errors.Is(err, errStop) || len(got) != 1 {
			t.Errorf("GetMany returned the error %v after %d calls of fn, want the error of fn after one call", err, len(got))
		}
	})
	t.Run("model", func(t *testing.T) {
		runModel(t, func(rt *rapid.T) map[string]func(*rapid.T) { return rowsProgram(rt, open) })
	})
}

// rowsProgram compares an engine with a model: a map.
func rowsProgram(rt *rapid.T, open Opener[rows.Rows]) map[string]func(*rapid.T) {
	s, reopen := open(rt)
	p, stored := rows.Partition{Table: 'x'}, map[string]string{}
	key := rapid.SampledFrom([]string{"a", "aa", "ab", "a\xff", "b", "ba"})
	draw := func(rt *rapid.T, what string) (out []rows.Row) {
		for _, k := range rapid.SliceOfNDistinct(key, 0, 3, rapid.ID).Draw(rt, what) {
			r := rows.Row{Key: k}
			if rapid.Bool().Draw(rt, "there") {
				r.Value = []byte(rapid.SampledFrom([]string{"", "1", "2"}).Draw(rt, "value"))
			}
			out = append(out, r)
		}
		return out
	}
	return map[string]func(*rapid.T){
		"swap": func(rt *rapid.T) {
			c := rows.Change{Part: p, Expect: draw(rt, "expect"), Set: draw(rt, "set")}
			want := !slices.ContainsFunc(c.Expect, func(r rows.Row) bool {
				v, ok := stored[r.Key]
				return ok != (r.Value != nil) || v != string(r.Value)
			})
			same(rt, "won", swapRows(rt, s, c), want)
			for _, r := range c.Set {
				if !want {
					break
				}
				delete(stored, r.Key)
				if r.Value != nil {
					stored[r.Key] = string(r.Value)
				}
			}
		},
		"write": func(rt *rapid.T) {
			rs := draw(rt, "rows")
			must(rt, s.Write(bg, func(b rows.Batch) {
				for _, r := range rs {
					if delete(stored, r.Key); r.Value == nil {
						b.Delete(p, []byte(r.Key))
						continue
					}
					b.Set(p, []byte(r.Key), r.Value)
					stored[r.Key] = string(r.Value)
				}
			}))
		},
		"scan": func(rt *rapid.T) {
			in := rows.Range{Prefix: rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(rt, "prefix"), After: key.Draw(rt, "after")}
			if rapid.Bool().Draw(rt, "bounded") {
				in.Before = key.Draw(rt, "before")
			}
			var want []rows.Row
			for k, v := range stored {
				if strings.HasPrefix(k, in.Prefix) && k > in.After && (in.Before == "" || k < in.Before) {
					want = append(want, rows.Row{Key: k, Value: []byte(v)})
				}
			}
			same(rt, "rows", scanRows(rt, s, p, in), sorted(want, func(a, b rows.Row) int { return strings.Compare(a.Key, b.Key) }))
		},
		"reopen": func(rt *rapid.T) {
			if reopen != nil {
				sometimes(rt, func() { s = reopen() })
			}
		},
		"": func(rt *rapid.T) { same(rt, "stored", len(scanRows(rt, s, p, rows.Range{})), len(stored)) },
	}
}
