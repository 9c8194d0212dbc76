package server

import (
	"context"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// noDrift is the answer of an audit that found nothing.
func noDrift(context.Context, time.Time) (api.Conservation, error) {
	return api.Conservation{
		At: time.Unix(1, 0).UTC(), States: map[string]int64{}, Waiting: map[string]int64{}, Classes: map[string]int64{},
		Findings: []api.Drift{}, Groups: []api.ConservationGroup{},
	}, nil
}

// fakeLanes are the lanes that were paused.
type fakeLanes map[string]api.Lane

func (f fakeLanes) List() []api.Lane {
	out := []api.Lane{}
	for _, l := range notify.Lanes() {
		out = append(out, api.Lane{Name: l.String(), Paused: f[l.String()].Paused})
	}
	return out
}

func (f fakeLanes) Set(_ context.Context, name, by string, to api.LaneChange) (api.Lane, error) {
	if _, ok := notify.ParseLane(name); !ok {
		return api.Lane{}, notify.NotFound("lane")
	}
	return api.Lane{Name: name, Paused: *to.Paused, By: by, Reason: to.Reason}, nil
}

func (f fakeLanes) Paused(l notify.Lane) (since time.Time, by, reason string, ok bool) {
	x := f[l.String()]
	return time.Unix(1, 0).UTC(), x.By, x.Reason, x.Paused
}

// TestPausedLaneIsTold: what waits in a paused lane says who paused it, and why.
func TestPausedLaneIsTold(t *testing.T) {
	t.Parallel()
	d := &Deps{Lanes: fakeLanes{"push": {Paused: true, By: "ann", Reason: "a bad template"}}}
	e := notify.Envelope{Channel: notify.Push, Category: notify.OTP}
	if got, want := laneWaitReason(d, &e), " until the lane is resumed: ann paused push at 1970-01-01T00:00:01.000Z (a bad template)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	e.Category = notify.Marketing
	if got, want := laneWaitReason(d, &e), " for a worker"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
