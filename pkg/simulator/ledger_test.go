package simulator

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/notify"
)

func base(n byte) notify.Base {
	return notify.Base(ulid.ULID{0, 1, 2, 3, 4, 5, n, n, n, n, n, n, n, n, n, n})
}

func hitOf(id, addr string, o Outcome) *ledgerEntry {
	return &ledgerEntry{at: 1000 * 1e9, provider: APNs, outcome: o, status: 200, id: id, addr: addrHash(addr)}
}

func testLedger() *Ledger { return NewLedger("", 1<<30) }

// TestSince checks that Since yields new ids only, for each form of ids.
func TestSince(t *testing.T) {
	t.Parallel()
	l := testLedger()
	at := time.Unix(1000, 0)
	early, late := notify.NewBase(at.Add(-time.Minute)), notify.NewBase(at)
	for _, b := range []notify.Base{early, late} {
		for _, id := range []notify.ID{{Base: b}, {Base: b, Index: 3, FanOut: true}, {Base: b, Index: 900, FanOut: true}} {
			l.recordEntry(hitOf(id.String(), "a", Accepted))
			l.recordEntry(hitOf(id.String(), "b", Accepted))
		}
	}
	l.recordEntry(hitOf("order-1", "a", Accepted))
	count := func(since time.Time) (n int, foreign bool) {
		for d := range l.Since(since) {
			n++
			foreign = foreign || d.ID == "order-1"
		}
		return n, foreign
	}
	f := func(since time.Time, want int, foreign bool) {
		t.Helper()
		if n, got := count(since); n != want || got != foreign {
			t.Errorf("since %v: %d, a foreign one: %t; want %d, %t", since, n, got, want, foreign)
		}
	}
	f(time.Time{}, 13, true)
	f(at.Add(-time.Second), 7, true)
	f(at.Add(time.Second), 0, false)
}

// TestLedgerModel checks the ledger against plain maps, over singles, fan-outs,
// several addresses and ids of a foreign form, with room in memory for all of them, for
// some and for one.
func TestLedgerModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		memory := rapid.SampledFrom([]int{1, 30_000, 1 << 30}).Draw(t, "memory")
		l := NewLedger("", memory)
		type pair struct{ id, addr string }
		tries, taken, idsTaken := map[pair]int{}, map[pair]int{}, map[string]int{}
		dups, accepted := 0, 0
		cursor, came := int64(0), 0
		read := func() {
			for more := true; more; {
				rows, next, err := l.Arrivals(cursor)
				if err != nil {
					t.Fatal(err)
				}
				list, err := ParseArrivals(rows)
				if err != nil {
					t.Fatal(err)
				}
				for _, a := range list {
					came += int(a.N)
				}
				more, cursor = next > cursor, next
			}
		}
		for range rapid.IntRange(1, min(20+memory, 200)).Draw(t, "n") {
			id := notify.ID{Base: base(rapid.Byte().Draw(t, "base") % 4), FanOut: rapid.Bool().Draw(t, "fan")}
			if id.FanOut {
				id.Index = rapid.SampledFrom([]uint32{0, 1, 255, 256, 257, 5000, notify.MaxIndex}).Draw(t, "index")
			}
			text := id.String()
			if rapid.IntRange(0, 9).Draw(t, "foreign") == 0 {
				text = "order-" + fmt.Sprint(id.Base[6])
			}
			p := pair{text, rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "addr")}
			o := rapid.SampledFrom([]Outcome{Rejected, Accepted, Ambiguous}).Draw(t, "outcome")
			l.recordEntry(hitOf(p.id, p.addr, o))
			tries[p]++
			if o == Accepted {
				accepted++
			}
			if o.taken() {
				dups += int(b2u(taken[p] > 0))
				taken[p]++
				idsTaken[p.id]++
			}
			if rapid.IntRange(0, 20).Draw(t, "read") == 0 {
				read()
			}
		}
		read()
		if came != len(idsTaken) {
			t.Fatalf("%d arrivals of %d ids", came, len(idsTaken))
		}
		n := l.Summary()
		if int(n.Deliveries) != len(taken) || int(n.IDs) != len(idsTaken) || int(n.Duplicates) != dups || int(n.Accepted) != accepted {
			t.Fatalf("%+v, want %d deliveries, %d ids, %d duplicates", n.Totals, len(taken), len(idsTaken), dups)
		}
		seen := 0
		for d := range l.All() {
			seen++
			found := false
			for p := range tries {
				if p.id == d.ID && hexAddr(uint32(addrHash(p.addr))) == d.Address {
					found = true
					if d.Attempts != tries[p] || d.Deliveries != taken[p] {
						t.Fatalf("%+v, want %d of %d", d, taken[p], tries[p])
					}
				}
			}
			if !found {
				t.Fatalf("%+v was never sent", d)
			}
		}
		if seen != len(tries) {
			t.Fatalf("%d pairs, want %d", seen, len(tries))
		}
		repeated, _ := l.Duplicates(1000)
		again := 0
		for _, d := range repeated {
			again += d.Deliveries - 1
		}
		if again != dups {
			t.Fatalf("%d duplicates listed, want %d", again, dups)
		}
		inFans := BaseCount{}
		for _, b := range l.Bases() {
			base, err := notify.ParseBase(b.Base)
			if err != nil {
				t.Fatal(err)
			}
			r := l.baseReport(base, 300, true)
			if r.IDs != b.IDs || r.Deliveries != b.Deliveries || r.Duplicates != b.Duplicates {
				t.Fatalf("%+v, and %+v", b, r)
			}
			for i := range uint32(300) {
				if got, want := r.Bits[i/8]>>(i%8)&1 == 1, idsTaken[notify.ID{Base: base, Index: i, FanOut: true}.String()] > 0; got != want {
					t.Fatalf("bit %d of %s is %t", i, b.Base, got)
				}
			}
			inFans.IDs += b.IDs
		}
		for id, n := range idsTaken {
			if p, err := notify.ParseID(id); n > 0 && err == nil && p.FanOut {
				inFans.IDs--
			}
		}
		if inFans.IDs != 0 {
			t.Fatalf("%d ids of fan-outs too many", int64(inFans.IDs))
		}
		for p := range tries {
			if l.Delivered(p.id) != (idsTaken[p.id] > 0) {
				t.Fatalf("Delivered(%s)", p.id)
			}
			got := 0
			for _, d := range l.Lookup(p.id) {
				got += d.Attempts
			}
			want := 0
			for q, n := range tries {
				if q.id == p.id {
					want += n
				}
			}
			if got != want {
				t.Fatalf("Lookup(%s): %d attempts, want %d", p.id, got, want)
			}
		}
	})
}

func TestLedgerBase(t *testing.T) {
	t.Parallel()
	l := testLedger()
	b := base(1)
	for i := range uint32(1000) {
		if i == 0 || (i >= 300 && i < 310) || i == 999 {
			continue
		}
		l.recordEntry(hitOf(notify.ID{Base: b, Index: i, FanOut: true}.String(), "a", Accepted))
	}
	l.recordEntry(hitOf(notify.ID{Base: b, Index: 305, FanOut: true}.String(), "a", Rejected)) // tried is not delivered
	l.recordEntry(hitOf(notify.ID{Base: b, Index: 7, FanOut: true}.String(), "a", Ambiguous))
	l.recordEntry(hitOf(notify.ID{Base: b, Index: 8, FanOut: true}.String(), "second device", Accepted))
	l.recordEntry(hitOf(notify.ID{Base: b, Index: 2000, FanOut: true}.String(), "a", Accepted))
	want := BaseReport{Base: b.String(), Expected: 1000, IDs: 989, Deliveries: 990, Duplicates: 1, MissingN: 12, Beyond: 1, Missing: []Range{{0, 1}, {300, 310}, {999, 1000}}}
	if got := l.Base(b, 1000); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	if got := l.Base(base(2), 3); got.MissingN != 3 || got.Missing[0] != (Range{0, 3}) {
		t.Errorf("an unknown base: %+v", got)
	}
	if got := l.Bases(); len(got) != 1 || got[0].IDs != 989 {
		t.Errorf("%+v", got)
	}
	if got := l.Base(b, 10_000); got.MissingN != 9011 || got.Beyond != 0 {
		t.Errorf("%+v", got)
	}
	pairs, recent := l.Duplicates(10)
	if len(pairs) != 1 || pairs[0].ID != (notify.ID{Base: b, Index: 7, FanOut: true}).String() || pairs[0].Deliveries != 2 || len(recent) != 1 || recent[0].ID != pairs[0].ID {
		t.Errorf("%+v %+v", pairs, recent)
	}
	if err := l.Reset(); err != nil || l.Summary().Deliveries != 0 || len(l.Bases()) != 0 {
		t.Error("not reset")
	}
}

func TestLedgerSameAttempt(t *testing.T) {
	t.Parallel()
	l := testLedger()
	for _, attempt := range []string{"one", "one", "two"} {
		e := hitOf(notify.ID{Base: base(1)}.String(), "a", Accepted)
		e.attempt = attempt
		l.recordEntry(e)
	}
	_, recent := l.Duplicates(0)
	if len(recent) != 2 || !recent[0].SameAttempt || recent[1].SameAttempt || recent[1].Deliveries != 3 || recent[1].Seq != 3 {
		t.Errorf("%+v", recent)
	}
}

func TestLedgerOrder(t *testing.T) {
	t.Parallel()
	l := testLedger()
	n := byte(0)
	ids := map[uint64]string{}
	send := func(user, addr string, seq uint64, o Outcome) {
		if ids[seq] == "" {
			n++
			ids[seq] = notify.ID{Base: base(n)}.String()
		}
		e := hitOf(ids[seq], addr, o)
		e.user, e.userSeq = user, seq
		l.recordEntry(e)
	}
	check := func(what string, late, lateTries uint64) {
		t.Helper()
		if o := l.Order(); o.Reordered != late || o.ReorderedAttempts != lateTries {
			t.Errorf("%s: %+v", what, o)
		}
	}
	send("u", "a", 1, Accepted)
	send("u", "a", 3, Accepted)
	send("u", "a", 1, Accepted)
	check("a duplicate is not a first delivery", 0, 0)
	send("u", "b", 2, Accepted)
	check("another address has its own order", 0, 0)
	send("v", "a", 2, Rejected)
	send("v", "a", 5, Accepted)
	send("v", "a", 2, Accepted)
	check("a retry that came after the next message", 1, 0)
	send("u", "a", 4, Accepted)
	check("in order", 1, 0)
	send("u", "c", 9, Accepted)
	send("u", "c", 8, Accepted)
	check("reordered from the start", 2, 1)
	if o := l.Order(); o.Users != 4 || len(o.Examples) != 2 || o.Examples[0].Seq != 2 || o.Examples[0].After != 5 || o.Examples[0].User != "v" {
		t.Errorf("%+v", o)
	}
}

// TestLedgerFile checks that a restart counts the lines of the file again, even if the last line was
// cut off.
func TestLedgerFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.ndjson")
	open := func() *Ledger {
		l := NewLedger(t.TempDir(), 1<<14) // most of it is on disk
		var err error
		if l.file, err = openLedgerFile(path, l); err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := open()
	odd := &ledgerEntry{at: 1001 * 1e9, provider: SendGrid, outcome: Ambiguous, id: `or"der ` + "ü\n", addr: 1, user: `u"`, userSeq: 9, attempt: "x"}
	for i := range uint32(300) {
		l.recordEntry(hitOf(notify.ID{Base: base(1), Index: i, FanOut: true}.String(), "a", Accepted))
	}
	l.recordEntry(hitOf(notify.ID{Base: base(1), Index: 5, FanOut: true}.String(), "a", Accepted))
	l.recordEntry(odd)
	want := l.Summary()
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(f, `{"seq":303,"at":1,"prov`)
	f.Close()

	l = open()
	if got := l.Summary(); !requestsAside(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	if !l.Delivered(odd.id) || l.Base(base(1), 300).MissingN != 0 {
		t.Error("lost in the file")
	}
	if text, _ := os.ReadFile(path); !bytes.HasSuffix(text, []byte("}\n")) {
		t.Error("half a line was left")
	}
	l.recordEntry(hitOf(notify.ID{Base: base(2)}.String(), "a", Accepted))
	if l.seq != 303 {
		t.Errorf("sequence %d", l.seq)
	}
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	text, _ := os.ReadFile(path)
	if lines := strings.Count(string(text), "\n"); lines != 303 {
		t.Errorf("%d lines", lines)
	}

	l = open()
	if err := l.Reset(); err != nil {
		t.Fatal(err)
	}
	l.close()
	if info, _ := os.Stat(path); info.Size() != 0 {
		t.Errorf("%d bytes after Reset", info.Size())
	}
	os.WriteFile(path, []byte("not json\n"), 0o600)
	if _, err := openLedgerFile(path, testLedger()); err == nil {
		t.Error("a damaged file was accepted")
	}
}

// requestsAside compares two summaries without HTTP requests, which the file does not hold.
func requestsAside(a, b Summary) bool {
	a.Requests, b.Requests = 0, 0
	for _, s := range []Summary{a, b} {
		for k, t := range s.Providers {
			t.Requests = 0
			s.Providers[k] = t
		}
	}
	return reflect.DeepEqual(a, b)
}

func FuzzLedgerLine(f *testing.F) {
	f.Add([]byte(`{"seq":1,"at":2,"provider":"apns","outcome":"accepted","status":200,"id":"x","addr":"ff"}`))
	f.Add(appendLedgerLine(nil, &ledgerEntry{seq: 1, at: 2, provider: FCM, id: "\xff\"", attempt: "a", addr: 1 << 63, user: "ü", userSeq: 3}))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parseLedgerLine(b)
		if err != nil {
			return
		}
		again, err := parseLedgerLine(bytes.TrimSpace(appendLedgerLine(nil, &e)))
		if e.user == "" {
			e.userSeq, again.userSeq = 0, 0 // says nothing without a user
		}
		if err != nil || again != e {
			t.Errorf("%+v became %+v (%v)", e, again, err)
		}
	})
}

// TestLedgerRecentDuplicates: the details of the last ones, oldest first.
func TestLedgerRecentDuplicates(t *testing.T) {
	t.Parallel()
	l := testLedger()
	for range keepDups + 4 {
		l.recordEntry(hitOf(notify.ID{Base: base(1)}.String(), "a", Accepted))
	}
	_, recent := l.Duplicates(0)
	if len(recent) != keepDups || recent[0].Seq != 5 || recent[keepDups-1].Seq != keepDups+4 {
		t.Errorf("%d, from %d to %d", len(recent), recent[0].Seq, recent[len(recent)-1].Seq)
	}
}

// On two shared cores of a Xeon, one goroutine, with neighbours: fan-out 220 ns,
// single 470 ns, duplicate 240 to 320 ns, fan-out with a file 500 to 820 ns.
func BenchmarkLedger(b *testing.B) {
	const n = 1 << 20
	run := func(name string, withFile string, id func(i int) notify.ID) {
		b.Run(name, func(b *testing.B) {
			texts := make([]string, n)
			for i := range texts {
				texts[i] = id(i).String()
			}
			fresh := func() *Ledger {
				l := NewLedger("", 1<<30)
				if withFile != "" {
					var err error
					if l.file, err = openLedgerFile(filepath.Join(b.TempDir(), withFile), l); err != nil {
						b.Fatal(err)
					}
				}
				return l
			}
			l := fresh()
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if i == n {
					b.StopTimer()
					l.close()
					l, i = fresh(), 0
					b.StartTimer()
				}
				l.recordEntry(&ledgerEntry{at: 1, provider: APNs, outcome: Accepted, status: 200, id: texts[i], addr: 1})
				i++
			}
			l.close()
		})
	}
	fan := notify.NewBase(time.Now())
	run("fan-out", "", func(i int) notify.ID { return notify.ID{Base: fan, Index: uint32(i), FanOut: true} })
	run("single", "", func(i int) notify.ID { return notify.ID{Base: fan.Item(i)} })
	run("duplicate", "", func(i int) notify.ID { return notify.ID{Base: fan, Index: uint32(i % 2), FanOut: true} })
	run("fan-out with file", "l.ndjson", func(i int) notify.ID { return notify.ID{Base: fan, Index: uint32(i), FanOut: true} })
}
