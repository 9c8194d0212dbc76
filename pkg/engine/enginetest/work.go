package enginetest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/store"
	"github.com/notifyd/notifyd/pkg/users"
)

// Callers runs the suite of engine.Callers.
func Callers(t *testing.T, open Opener[engine.Callers]) {
	get := func(t T, s engine.Callers, id string) (engine.Caller, bool) {
		t.Helper()
		c, ok, err := s.Get(bg, id)
		must(t, err)
		return c, ok
	}
	full := engine.Caller{
		ID: "a", Rate: 10.5, Burst: 20, CallbackURLs: []string{"https://a.example/hooks/", "https://b.example/"},
		Secrets:     []engine.CallerSecret{{Secret: "whsec_new", Created: 2000}, {Secret: "whsec_old", Created: 1000, Expires: 3000}},
		MaxInFlight: 7, MaxPending: 1000, FinalStatuses: []int{400, 422},
	}
	t.Run("Callers stores callers", func(t *testing.T) {
		s, reopen := open(t)
		b := engine.Caller{ID: "b", Disabled: true}
		must(t, s.Put(bg, b))
		must(t, s.Put(bg, full))
		if reopen != nil {
			s = reopen()
		}
		want := full
		want.Version, b.Version = 1, 1
		got, ok := get(t, s, "a")
		same(t, "ok", ok, true)
		same(t, "caller", got, want)
		_, ok = get(t, s, "c")
		same(t, "none", ok, false)
		same(t, "list", sorted(val(s.List(bg))(t), func(a, b engine.Caller) int { return int(a.ID[0]) - int(b.ID[0]) }), []engine.Caller{want, b})
		wantKind(t, s.Put(bg, engine.Caller{}), notify.KindInvalid)
	})
	t.Run("Put stores c with Version c.Version+1 if the stored version is c.Version (0: no row); otherwise it returns notify.KindConflict", func(t *testing.T) {
		s, reopen := open(t)
		must(t, s.Put(bg, engine.Caller{ID: "a", Rate: 1}))
		wantKind(t, s.Put(bg, engine.Caller{ID: "a", Rate: 2}), notify.KindConflict)
		wantKind(t, s.Put(bg, engine.Caller{ID: "b", Version: 1}), notify.KindConflict)
		if reopen != nil {
			s = reopen()
		}
		c, _ := get(t, s, "a")
		same(t, "first", c, engine.Caller{ID: "a", Rate: 1, Version: 1})
		must(t, s.Put(bg, engine.Caller{ID: "a", Disabled: true, Version: 1}))
		wantKind(t, s.Put(bg, c), notify.KindConflict)
		c, _ = get(t, s, "a")
		same(t, "second", c, engine.Caller{ID: "a", Disabled: true, Version: 2})
		_, ok := get(t, s, "b")
		same(t, "refused", ok, false)
	})
	t.Run("of many concurrent puts of the same version one wins", func(t *testing.T) {
		s, _ := open(t)
		var won atomic.Int32
		together(16, func(i int) {
			if err := s.Put(bg, engine.Caller{ID: "a", Burst: i}); err == nil {
				won.Add(1)
			} else if notify.KindOf(err) != notify.KindConflict {
				t.Error(err)
			}
		})
		same(t, "winners", won.Load(), int32(1))
	})
	t.Run("slices passed in may be reused, slices returned belong to the caller", func(t *testing.T) {
		s, _ := open(t)
		c := engine.Caller{ID: "a", CallbackURLs: []string{"https://a.example/"}, Secrets: []engine.CallerSecret{{Secret: "s"}}}
		must(t, s.Put(bg, c))
		c.CallbackURLs[0], c.Secrets[0].Secret = "x", "x"
		got, _ := get(t, s, "a")
		same(t, "url", got.CallbackURLs[0], "https://a.example/")
		same(t, "secret", got.Secrets[0].Secret, "s")
		got.CallbackURLs[0], got.Secrets[0].Secret = "y", "y"
		for _, again := range val(s.List(bg))(t) {
			same(t, "url again", again.CallbackURLs[0], "https://a.example/")
			same(t, "secret again", again.Secrets[0].Secret, "s")
		}
	})
}

// Meta runs the suite of engine.Meta.
func Meta(t *testing.T, open Opener[engine.Meta]) {
	t.Run("GetMeta returns the value of a name; nil if the name has no value", func(t *testing.T) {
		s, reopen := open(t)
		value := []byte("value")
		must(t, s.PutMeta(bg, "store_id", value))
		must(t, s.PutMeta(bg, "empty", nil))
		value[0] = 'x'
		if reopen != nil {
			s = reopen()
		}
		same(t, "value", val(s.GetMeta(bg, "store_id"))(t), []byte("value"))
		if v := val(s.GetMeta(bg, "empty"))(t); v == nil || len(v) > 0 {
			t.Fatalf("GetMeta returned %v for an empty value", v)
		}
		if v := val(s.GetMeta(bg, "store"))(t); v != nil {
			t.Fatalf("GetMeta returned %v for a name without a value", v)
		}
	})
	t.Run("SwapMeta stores newValue if the stored value is oldValue", func(t *testing.T) {
		s, reopen := open(t)
		swap := func(old, value string, want bool, now string) {
			t.Helper()
			var was []byte
			if old != "-" { // "-" stands for no value
				was = []byte(old)
			}
			same(t, old+" to "+value, val(s.SwapMeta(bg, "swapped", was, []byte(value)))(t), want)
			same(t, "value", string(val(s.GetMeta(bg, "swapped"))(t)), now)
		}
		if v := val(s.SwapMeta(bg, "swapped", []byte{}, []byte("x")))(t); v || val(s.GetMeta(bg, "swapped"))(t) != nil {
			t.Fatal("SwapMeta replaced an empty value although no value is stored")
		}
		swap("-", "", true, "")
		swap("-", "a", false, "")
		swap("b", "a", false, "")
		swap("", "a", true, "a")
		swap("", "b", false, "a")
		swap("-", "b", false, "a")
		swap("a", "b", true, "b")
		swap("-", "b", true, "b") // value is already stored, as after a lost answer
		swap("a", "b", true, "b")
		if reopen != nil {
			s = reopen()
		}
		swap("a", "c", false, "b")
		swap("b", "c", true, "c")
	})
	t.Run("SwapMeta loses no change of concurrent callers", func(t *testing.T) {
		s, _ := open(t)
		const writers, changes = 4, 5
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for i := range changes {
					add := fmt.Sprintf("%d.%d,", w, i)
					for stored := false; !stored; {
						now, err := s.GetMeta(bg, "set")
						if err == nil && !strings.Contains(string(now), add) {
							stored, err = s.SwapMeta(bg, "set", now, []byte(string(now)+add))
						} else if err == nil {
							stored = true // a swap that returned an error has stored the value
						}
						if err != nil && notify.KindOf(err) != notify.KindUnavailable {
							t.Errorf("%s: %v", add, err)
							return
						}
					}
				}
			})
		}
		wg.Wait()
		all := string(val(s.GetMeta(bg, "set"))(t))
		for w := range writers {
			for i := range changes {
				if add := fmt.Sprintf("%d.%d,", w, i); strings.Count(all, add) != 1 {
					t.Errorf("%s occurs %d times in %s, want once", add, strings.Count(all, add), all)
				}
			}
		}
	})
}

// Cancels runs the suite of users.CancelStore.
func Cancels[E users.CancelStore](t *testing.T, open Opener[E]) {
	t.Run("Put returns the version of the cancellation, which is higher than every version before", func(t *testing.T) {
		s, reopen := open(t)
		last := uint64(0)
		for i := range 5 {
			v := val(s.Put(bg, engine.Cancel{Scope: "ntf_" + strconv.Itoa(i)}))(t)
			if v <= last {
				t.Fatalf("Put returned version %d after version %d", v, last)
			}
			if last = v; reopen != nil {
				s = reopen()
			}
		}
	})
	t.Run("The same scope again keeps the first", func(t *testing.T) {
		s, reopen := open(t)
		first := engine.Cancel{Scope: "cmp_1", Caller: "shop", At: 1000}
		first.Version = val(s.Put(bg, first))(t)
		if reopen != nil {
			s = reopen()
		}
		again := val(s.Put(bg, engine.Cancel{Scope: "cmp_1", Caller: "other", At: 2000}))(t)
		same(t, "version", again, first.Version)
		got, ok, err := s.Get(bg, "cmp_1")
		must(t, err)
		same(t, "ok", ok, true)
		same(t, "cancel", got, first)
		same(t, "changes", val(s.Changes(bg, 0, 10))(t), []engine.Cancel{first})
	})
	t.Run("of many concurrent cancellations of one scope one is kept", func(t *testing.T) {
		s, _ := open(t)
		var versions [16]uint64
		together(16, func(i int) {
			var err error
			if versions[i], err = s.Put(bg, engine.Cancel{Scope: "cmp_1", At: int64(i)}); err != nil {
				t.Error(err)
			}
		})
		kept := val(s.Changes(bg, 0, 10))(t)
		same(t, "kept", len(kept), 1)
		for _, v := range versions {
			same(t, "version", v, kept[0].Version)
		}
	})
	t.Run("Get returns the cancellation of a scope", func(t *testing.T) {
		s, _ := open(t)
		val(s.Put(bg, engine.Cancel{Scope: "ntf_1-2"}))(t)
		_, ok, err := s.Get(bg, "ntf_1")
		must(t, err)
		same(t, "another scope", ok, false)
		wantKind(t, ignore(s.Put(bg, engine.Cancel{})), notify.KindInvalid)
	})
	t.Run("Changes returns cancellations after since, in version order, at most max", func(t *testing.T) {
		s, reopen := open(t)
		var all []engine.Cancel
		for i := range 7 {
			c := engine.Cancel{Scope: "ntf_" + strconv.Itoa(9-i), Caller: "shop", At: int64(i)}
			c.Version = val(s.Put(bg, c))(t)
			all = append(all, c)
		}
		if reopen != nil {
			s = reopen()
		}
		same(t, "first", val(s.Changes(bg, 0, 3))(t), all[:3])
		same(t, "rest", val(s.Changes(bg, all[2].Version, 10))(t), all[3:])
		same(t, "end", val(s.Changes(bg, all[6].Version, 10))(t), []engine.Cancel{})
	})
	t.Run("a reader that follows the changes during concurrent puts misses none", func(t *testing.T) {
		s, _ := open(t)
		const writers, each = 4, 40
		var left atomic.Int32
		left.Store(writers)
		n := 0
		together(writers+1, func(i int) {
			if i < writers {
				for k := range each {
					if _, err := s.Put(bg, engine.Cancel{Scope: strconv.Itoa(i*each + k)}); err != nil {
						t.Error(err)
					}
				}
				left.Add(-1)
				return
			}
			since := uint64(0)
			for last := false; !last; {
				last = left.Load() == 0
				cs, err := s.Changes(bg, since, 1000)
				if err != nil {
					t.Error(err)
				}
				for _, c := range cs {
					n, since = n+1, c.Version
				}
			}
		})
		same(t, "seen", n, writers*each)
	})
}

// Campaigns runs the suite of store.Campaigns.
func Campaigns(t *testing.T, open Opener[*store.Campaigns]) {
	t.Run("AddPart records that part of the campaign was accepted as base", func(t *testing.T) {
		s, reopen := open(t)
		for i, part := range []uint32{7, 0, 3} {
			must(t, s.AddPart(bg, "cmp_1", "shop", part, base(1, uint64(i)), 100, 1, int64(1000+i)))
			must(t, s.AddPart(bg, "cmp_12", "shop", part, base(2, uint64(i)), 1, 0, 5))
		}
		if reopen != nil {
			s = reopen()
		}
		got, ok, err := s.Get(bg, "cmp_1")
		must(t, err)
		same(t, "ok", ok, true)
		same(t, "campaign", got, engine.Campaign{
			ID: "cmp_1", Caller: "shop", Created: 1000, Parts: 3, Accepted: 300, Rejected: 3,
			Bases: []notify.Base{base(1, 0), base(1, 1), base(1, 2)},
		})
	})
	t.Run("The same (campaign, part) again changes nothing", func(t *testing.T) {
		s, reopen := open(t)
		must(t, s.AddPart(bg, "cmp_1", "shop", 1, base(1, 1), 100, 1, 1000))
		if reopen != nil {
			s = reopen()
		}
		before, _, err := s.Get(bg, "cmp_1")
		must(t, err)
		together(8, func(int) {
			if err := s.AddPart(bg, "cmp_1", "shop", 1, base(9, 9), 7, 7, 7); err != nil {
				t.Error(err)
			}
		})
		after, _, err := s.Get(bg, "cmp_1")
		must(t, err)
		same(t, "campaign", after, before)
	})
	t.Run("A campaign of another caller is notify.KindNotFound", func(t *testing.T) {
		s, _ := open(t)
		must(t, s.AddPart(bg, "cmp_1", "shop", 1, base(1, 1), 100, 1, 1000))
		wantKind(t, s.AddPart(bg, "cmp_1", "thief", 2, base(1, 2), 1, 1, 1), notify.KindNotFound)
		wantKind(t, s.AddPart(bg, "cmp_1", "thief", 1, base(1, 1), 1, 1, 1), notify.KindNotFound)
		got, _, err := s.Get(bg, "cmp_1")
		must(t, err)
		same(t, "parts", got.Parts, 1)
	})
	t.Run("List returns campaigns newest first, page by page, of one caller or of all", func(t *testing.T) {
		s, reopen := open(t)
		for i := range 7 {
			id := fmt.Sprintf("cmp_%d", (i*5)%7) // the order of ids differs from the order of times
			must(t, s.AddPart(bg, id, []string{"shop", "bank"}[i%2], 0, base(1, uint64(i)), 10, 1, int64(1000+i/2*1000)))
			must(t, s.AddPart(bg, id, []string{"shop", "bank"}[i%2], 1, base(2, uint64(i)), 10, 1, 9000))
		}
		if reopen != nil {
			s = reopen()
		}
		for caller, want := range map[string]string{
			"":      "4000 cmp_2 20, 3000 cmp_6 20, 3000 cmp_4 20, 2000 cmp_3 20, 2000 cmp_1 20, 1000 cmp_5 20, 1000 cmp_0 20",
			"shop":  "4000 cmp_2 20, 3000 cmp_6 20, 2000 cmp_3 20, 1000 cmp_0 20",
			"thief": "",
		} {
			var got []string
			var after engine.Campaign
			for {
				page, err := s.List(bg, caller, after, 2)
				must(t, err)
				for _, c := range page {
					got = append(got, fmt.Sprint(c.Created, " ", c.ID, " ", c.Accepted))
					after = c
				}
				if len(page) < 2 {
					break
				}
			}
			same(t, "of "+caller, strings.Join(got, ", "), want)
		}
	})
	t.Run("parts added together are all counted", func(t *testing.T) {
		s, _ := open(t)
		together(32, func(i int) {
			if err := s.AddPart(bg, "cmp_1", "shop", uint32(i), base(1, uint64(i)), 10, 1, 5); err != nil {
				t.Error(err)
			}
		})
		got, _, err := s.Get(bg, "cmp_1")
		must(t, err)
		same(t, "totals", [4]int64{int64(got.Parts), got.Accepted, got.Rejected, int64(len(got.Bases))}, [4]int64{32, 320, 32, 32})
		_, ok, err := s.Get(bg, "cmp_")
		must(t, err)
		same(t, "none", ok, false)
	})
}

func job(id, name string) engine.Job {
	return engine.Job{ID: id, Kind: "replay", Name: name, State: "running", Cursor: []byte{1}, Spec: []byte(`{"a":1}`), Created: 1000, Updated: 1000}
}

// Jobs runs the suite of store.Jobs.
func Jobs(t *testing.T, open Opener[*store.Jobs]) {
	create := func(t T, s *store.Jobs, j engine.Job) (engine.Job, bool) {
		t.Helper()
		got, ok, err := s.Create(bg, j)
		must(t, err)
		return got, ok
	}
	t.Run("Create stores a job, or returns the one that has its (Kind, Name) and false", func(t *testing.T) {
		s, reopen := open(t)
		a, ok := create(t, s, job("1", "n"))
		same(t, "created", ok, true)
		if reopen != nil {
			s = reopen()
		}
		again, ok := create(t, s, job("2", "n"))
		same(t, "created again", ok, false)
		same(t, "job", again, a)
		other := job("3", "n")
		other.Kind = "purge"
		_, ok = create(t, s, other)
		same(t, "another kind", ok, true)
		_, _, err := s.Create(bg, job("1", "other"))
		wantKind(t, err, notify.KindConflict)
	})
	t.Run("of many concurrent calls of Create for one name one wins", func(t *testing.T) {
		s, _ := open(t)
		var won atomic.Int32
		var ids [16]string
		together(16, func(i int) {
			j, ok, err := s.Create(bg, job(strconv.Itoa(i), "n"))
			if err != nil {
				t.Error(err)
			}
			if ids[i] = j.ID; ok {
				won.Add(1)
			}
		})
		same(t, "winners", won.Load(), int32(1))
		for _, id := range ids {
			same(t, "id", id, ids[0])
		}
	})
	t.Run("Put stores j if the stored version is j.Version; else notify.KindConflict", func(t *testing.T) {
		s, reopen := open(t)
		j, _ := create(t, s, job("1", "n"))
		stale := j
		j.State, j.Cursor, j.Result, j.Updated = "done", []byte{2}, []byte(`{}`), 2000
		next := val(s.Put(bg, j))(t)
		if next.Version <= j.Version {
			t.Fatalf("Put returned version %d after version %d, want a greater version", next.Version, j.Version)
		}
		if reopen != nil {
			s = reopen()
		}
		_, err := s.Put(bg, stale)
		wantKind(t, err, notify.KindConflict)
		_, err = s.Put(bg, job("9", "none"))
		wantKind(t, err, notify.KindConflict)
		got, ok, err := s.Get(bg, "1")
		must(t, err)
		same(t, "ok", ok, true)
		same(t, "job", got, next)
		j.Version = next.Version
		same(t, "what was put", got, j)
	})
	t.Run("of many concurrent puts of the same version one wins", func(t *testing.T) {
		s, _ := open(t)
		j, _ := create(t, s, job("1", "n"))
		var won atomic.Int32
		together(16, func(int) {
			if _, err := s.Put(bg, j); err == nil {
				won.Add(1)
			} else if notify.KindOf(err) != notify.KindConflict {
				t.Error(err)
			}
		})
		same(t, "winners", won.Load(), int32(1))
	})
	t.Run("List returns jobs, newest first", func(t *testing.T) {
		s, _ := open(t)
		for i, created := range []int64{5, 9, 1} {
			j := job(strconv.Itoa(i), strconv.Itoa(i))
			j.Created = created
			create(t, s, j)
		}
		var ids []string
		for _, j := range val(s.List(bg, 10))(t) {
			ids = append(ids, j.ID)
		}
		same(t, "ids", ids, []string{"1", "0", "2"})
		same(t, "max", len(val(s.List(bg, 2))(t)), 2)
		_, ok, err := s.Get(bg, "7")
		must(t, err)
		same(t, "none", ok, false)
	})
	t.Run("The entries are stored with it, both or none", func(t *testing.T) {
		s, reopen := open(t)
		j, _ := create(t, s, job("1", "n"))
		twelve := job("12", "m")
		_, _, err := s.Create(bg, twelve, engine.JobEntry{At: 1, Doc: []byte("with it")})
		must(t, err)
		_, ok, err := s.Create(bg, job("13", "m"), engine.JobEntry{At: 2, Doc: []byte("not stored")})
		must(t, err)
		same(t, "created again", ok, false)
		stale := j
		j = val(s.Put(bg, j, engine.JobEntry{At: 5, Doc: []byte("five")}, engine.JobEntry{At: 300, Doc: []byte("300")}))(t)
		val(s.Put(bg, j, engine.JobEntry{At: 7, Doc: []byte("seven")}, engine.JobEntry{At: 5, Doc: []byte("again")}))(t)
		_, err = s.Put(bg, stale, engine.JobEntry{At: 9, Doc: []byte("lost")})
		wantKind(t, err, notify.KindConflict)
		if reopen != nil {
			s = reopen()
		}
		want := []engine.JobEntry{{At: 5, Doc: []byte("again")}, {At: 7, Doc: []byte("seven")}, {At: 300, Doc: []byte("300")}}
		same(t, "entries", val(s.Entries(bg, "1", 0, 10))(t), want)
		same(t, "after", val(s.Entries(bg, "1", 5, 1))(t), want[1:2])
		same(t, "end", val(s.Entries(bg, "1", 300, 10))(t), []engine.JobEntry{})
		same(t, "another's", val(s.Entries(bg, "12", 0, 10))(t), []engine.JobEntry{{At: 1, Doc: []byte("with it")}})
		same(t, "nobody's", val(s.Entries(bg, "13", 0, 10))(t), []engine.JobEntry{})
	})
	jobsDrop(t, open)
}

// jobsDrop runs the tests of Jobs about Drop.
func jobsDrop(t *testing.T, open Opener[*store.Jobs]) {
	t.Run("Drop forgets a job, its name and its entries, if the stored version is version", func(t *testing.T) {
		s, reopen := open(t)
		one := engine.JobEntry{At: 1, Doc: []byte("with it")}
		j, _, err := s.Create(bg, job("1", "n"), one)
		must(t, err)
		_, _, err = s.Create(bg, job("12", "m"), one)
		must(t, err)
		stale := j.Version
		j = val(s.Put(bg, j, engine.JobEntry{At: 2, Doc: []byte("two")}))(t)
		wantKind(t, s.Drop(bg, "1", stale), notify.KindConflict)
		wantKind(t, s.Drop(bg, "9", 1), notify.KindConflict)
		same(t, "entries", len(val(s.Entries(bg, "1", 0, 10))(t)), 2)
		must(t, s.Drop(bg, "1", j.Version))
		if reopen != nil {
			s = reopen()
		}
		wantKind(t, s.Drop(bg, "1", j.Version), notify.KindConflict)
		_, ok, err := s.Get(bg, "1")
		must(t, err)
		same(t, "job", ok, false)
		same(t, "entries", val(s.Entries(bg, "1", 0, 10))(t), []engine.JobEntry{})
		same(t, "jobs", len(val(s.List(bg, 10))(t)), 1)
		same(t, "another's entries", val(s.Entries(bg, "12", 0, 10))(t), []engine.JobEntry{one})
		_, err = s.Put(bg, j)
		wantKind(t, err, notify.KindConflict)
		_, ok, err = s.Create(bg, job("2", "n"))
		must(t, err)
		same(t, "its name is free", ok, true)
	})
}

// Audit runs the suite of store.Audit.
func Audit(t *testing.T, open Opener[*store.Audit]) {
	next := func(doc string) func(engine.AuditRow) (engine.AuditRow, error) {
		return func(last engine.AuditRow) (engine.AuditRow, error) {
			return engine.AuditRow{Prev: last.Hash, Hash: append([]byte(doc), byte(last.Seq)), Doc: []byte(doc)}, nil
		}
	}
	t.Run("Append adds the row that make returns for the last row, as its next", func(t *testing.T) {
		s, reopen := open(t)
		same(t, "none", val(s.Last(bg))(t), engine.AuditRow{})
		a := val(s.Append(bg, next("a")))(t)
		same(t, "first", a, engine.AuditRow{Seq: 1, Hash: []byte{'a', 0}, Doc: []byte("a")})
		if reopen != nil {
			s = reopen()
		}
		b := val(s.Append(bg, next("b")))(t)
		same(t, "second", b, engine.AuditRow{Seq: 2, Prev: a.Hash, Hash: []byte{'b', 1}, Doc: []byte("b")})
		_, err := s.Append(bg, func(engine.AuditRow) (engine.AuditRow, error) { return engine.AuditRow{}, errStop })
		if !errors.Is(err, errStop) {
			t.Fatalf("the error is %v, want the error of the function", err)
		}
		same(t, "rows", val(s.Rows(bg, 0, 10))(t), []engine.AuditRow{a, b})
		same(t, "after", val(s.Rows(bg, 1, 10))(t), []engine.AuditRow{b})
		same(t, "max", val(s.Rows(bg, 0, 1))(t), []engine.AuditRow{a})
		same(t, "end", val(s.Rows(bg, 2, 1))(t), []engine.AuditRow{})
		same(t, "last", val(s.Last(bg))(t), b)
	})
	t.Run("of many concurrent calls of Append each sees the row before its own", func(t *testing.T) {
		s, _ := open(t)
		together(16, func(i int) {
			if _, err := s.Append(bg, next(strconv.Itoa(i))); err != nil {
				t.Error(err)
			}
		})
		var last engine.AuditRow
		for _, r := range val(s.Rows(bg, 0, 100))(t) {
			if r.Seq != last.Seq+1 || string(r.Prev) != string(last.Hash) {
				t.Fatalf("the audit row %+v follows the row %+v", r, last)
			}
			last = r
		}
		same(t, "rows", last.Seq, uint64(16))
	})
}
