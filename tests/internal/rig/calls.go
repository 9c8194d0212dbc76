package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/simulator"
)

// Client returns a client whose token has all scopes.
func (v *Victim) Client() *api.Client { return v.client }

// URL returns the base URL of the API. It stays the same over restarts.
func (v *Victim) URL() string { return v.client.BaseURL }

// Control returns the URL of the simulators' control API.
func (v *Victim) Control() string { return v.control }

// Pids returns the process ids of notifyd and of the simulators.
func (v *Victim) Pids() (notifyd, simulators int) { return v.proc.Pid(), v.sims.Pid() }

// TokenFile returns the path of the file with the clients' token.
func (v *Victim) TokenFile() string { return filepath.Join(v.cfg.Data, "token") }

// CallbackURL returns the base URL of the simulated receiver of triggers.
func (v *Victim) CallbackURL(ctx context.Context) (string, error) {
	var urls simulator.URLs
	err := v.get(ctx, "/urls.json", &urls)
	return urls.Callback, err
}

// Taken returns the number of triggers of which the simulated receiver has accepted at least one
// call.
func (v *Victim) Taken(ctx context.Context) (n int64, err error) {
	var sum simulator.CallTotals
	err = v.get(ctx, "/callbacks/totals", &sum)
	return sum.Taken, err
}

// Call is one callback as the receiver has recorded it.
type Call = simulator.Call

// Due returns a trigger that fires exactly at the time fireAt. The query of its URL contains the
// time in ms since 1970, so that the receiver can measure the lateness of the call.
func Due(url string, fireAt time.Time) api.Trigger {
	fireAt = fireAt.UTC().Truncate(time.Millisecond)
	return api.Trigger{CallbackURL: fmt.Sprintf("%s?due=%d", url, fireAt.UnixMilli()), FireAt: &fireAt, Exact: true, Payload: []byte(`{"n":1}`)}
}

// Dues has the due times of acknowledged triggers or scheduled pushes, by their ids. A trigger or
// push must not be sent before its due time.
type Dues map[string]time.Time

// IDs returns the ids in no particular order.
func (d Dues) IDs() []string { return slices.Collect(maps.Keys(d)) }

// TooEarly is a trigger or push that was sent before its due time. By is the time between the call
// and the due time.
type TooEarly struct {
	ID string
	By time.Duration
}

// Fired is the result of Victim.Fired: the comparison of triggers with the calls that the receiver
// has recorded.
type Fired struct {
	First   map[string]time.Time // time of the first accepted call, by trigger
	Lost    []string             // triggers without an accepted call
	Twice   int64                // calls of a trigger after its first accepted call
	Unknown int64                // calls of triggers that are not in Dues
	Early   []TooEarly           // calls before the due time
	Latest  time.Duration        // greatest lateness of a first accepted call
}

// Fired compares the triggers in d with the calls that the receiver has recorded.
func (v *Victim) Fired(ctx context.Context, d Dues) (f Fired, err error) {
	f.First = map[string]time.Time{}
	err = v.Calls(ctx, func(c Call) {
		due, ours := d[c.ID]
		if !ours {
			f.Unknown++
			return
		}
		if c.At.Before(due) {
			f.Early = append(f.Early, TooEarly{c.ID, due.Sub(c.At)})
		}
		if _, again := f.First[c.ID]; again {
			f.Twice++
		} else if c.Taken {
			f.First[c.ID] = c.At
			f.Latest = max(f.Latest, c.At.Sub(due))
		}
	})
	for id := range d {
		if _, there := f.First[id]; !there {
			f.Lost = append(f.Lost, id)
		}
	}
	return f, err
}

// SentEarly returns the pushes in d that were sent to a provider before their due time, and the
// greatest lateness of the other pushes. It returns an error if a push was never sent.
func (v *Victim) SentEarly(ctx context.Context, d Dues) (early []TooEarly, latest time.Duration, err error) {
	for id, due := range d {
		at, err := v.SentAt(ctx, id)
		if err != nil {
			return early, latest, err
		}
		switch {
		case at.IsZero():
		case at.Before(due):
			early = append(early, TooEarly{id, due.Sub(at)})
		default:
			latest = max(latest, at.Sub(due))
		}
	}
	return early, latest, nil
}

// Calls passes every recorded callback to fn. It passes the callbacks of one trigger in the order in
// which the receiver got them.
func (v *Victim) Calls(ctx context.Context, fn func(Call)) error {
	b, err := fetch(ctx, &http.Client{Timeout: 5 * time.Minute}, http.MethodGet, v.control+"/callbacks/dump", "")
	for line := range bytes.Lines(b) {
		var c Call
		if err == nil {
			err = json.Unmarshal(line, &c)
		}
		if err != nil {
			break
		}
		fn(c)
	}
	return err
}
