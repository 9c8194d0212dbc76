package users

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// callerStore is engine.Callers over a map.
type callerStore struct {
	callers map[string]engine.Caller
	asked   int
	err     error
	takes   time.Duration // an answer
}

func (s *callerStore) Get(_ context.Context, id string) (engine.Caller, bool, error) {
	s.asked++
	time.Sleep(s.takes)
	c, ok := s.callers[id]
	if s.err != nil {
		return engine.Caller{}, false, s.err
	}
	return c, ok, nil
}

func (s *callerStore) Put(_ context.Context, c engine.Caller) error {
	c.Version++
	s.callers[c.ID] = c
	return s.err
}

func (s *callerStore) List(context.Context) ([]engine.Caller, error) { return nil, s.err }

func TestCallersAreKnownWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := &callerStore{callers: map[string]engine.Caller{"shop": {ID: "shop", Rate: 1, Version: 1}}}
		c := NewCallers(st)
		get := func(id string) (engine.Caller, bool) {
			t.Helper()
			got, ok, err := c.Get(t.Context(), id)
			must(t, err)
			return got, ok
		}
		for range 100 {
			if got, ok := get("shop"); !ok || got.Rate != 1 {
				t.Fatalf("%+v, %v", got, ok)
			}
			if _, ok := get("nobody"); ok {
				t.Fatal("nobody is known")
			}
		}
		if st.asked != 2 {
			t.Errorf("asked %d times within a second", st.asked)
		}
		st.callers["shop"] = engine.Caller{ID: "shop", Rate: 2, Version: 2} // another process
		time.Sleep(callerAge)
		if got, _ := get("shop"); got.Rate != 2 {
			t.Errorf("a change does not bind within a second: %+v", got)
		}
		must(t, c.Put(t.Context(), engine.Caller{ID: "shop", Rate: 3, Version: 2}))
		if got, _ := get("shop"); got.Rate != 3 {
			t.Errorf("a change does not bind here at once: %+v", got)
		}
		st.err = notify.Unavailable("store", 0, errors.New("down"))
		time.Sleep(time.Hour)
		for range 10 {
			if got, ok := get("shop"); !ok || got.Rate != 3 {
				t.Errorf("%+v, %v while the store is away", got, ok)
			}
		}
		if _, _, err := c.Get(t.Context(), "never asked for"); notify.KindOf(err) != notify.KindUnavailable {
			t.Errorf("error %v", err)
		}
		st.err = notify.Invalid("bad", "", "") // no outage
		time.Sleep(callerAge)
		get("shop") // finds the store back, beside the answer
		synctest.Wait()
		if _, _, err := c.Get(t.Context(), "shop"); notify.KindOf(err) != notify.KindInvalid {
			t.Errorf("error %v", err)
		}
		st.err = nil
		st.callers["shop"] = engine.Caller{ID: "shop", Disabled: true, Version: 4}
		time.Sleep(callerAge)
		if got, _ := get("shop"); !got.Disabled {
			t.Errorf("%+v after it came back", got)
		}
		for i := range 3 * maxCallers {
			get(fmt.Sprint(i))
		}
		if n := len(c.young) + len(c.old); n > maxCallers {
			t.Errorf("%d are held", n)
		}
	})
}

// TestCallersWhileTheStoreIsFrozen: a store that takes two seconds to fail costs the
// first look-up two seconds, and later look-ups nothing.
func TestCallersWhileTheStoreIsFrozen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := &callerStore{callers: map[string]engine.Caller{"shop": {ID: "shop", Rate: 1, Version: 1}, "bank": {ID: "bank", Version: 1}}}
		c := NewCallers(st)
		get := func(id string) (engine.Caller, time.Duration) {
			t.Helper()
			began := time.Now()
			got, _, err := c.Get(t.Context(), id)
			must(t, err)
			return got, time.Since(began)
		}
		get("shop")
		get("bank")
		st.err, st.takes = notify.Unavailable("postgres", 0, errors.New("frozen")), 2*time.Second
		time.Sleep(callerAge)
		get("shop")
		asked := st.asked
		for range 100 {
			for _, id := range []string{"shop", "bank"} {
				if _, took := get(id); took > 0 {
					t.Fatalf("a look-up of %s took %s", id, took)
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := st.asked - asked; n < 3 || n > 4 {
			t.Errorf("the store was tried %d times in 10 s", n)
		}
		st.err, st.takes = nil, 0
		st.callers["shop"] = engine.Caller{ID: "shop", Rate: 2, Version: 2}
		time.Sleep(3 * time.Second) // the last try fails
		get("shop")
		synctest.Wait()
		if got, _ := get("shop"); got.Rate != 2 {
			t.Errorf("%+v after the store came back", got)
		}
	})
}
