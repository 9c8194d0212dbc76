package main

import (
	"errors"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

func TestCountsAnswers(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0)
	after := func(s int) time.Time { return at.Add(time.Duration(s) * time.Second) }
	tr := &traffic{answers: []answer{
		{stream: "critical", id: "before", sent: after(-1)},
		{stream: "critical", id: "a", sent: after(0)},
		{stream: "rest", id: "b", sent: after(1)},
		{stream: "critical", sent: after(1), err: notify.Unavailable("log", time.Second, nil)},
		{stream: "critical", sent: after(2), err: notify.Unavailable("log", 0, nil)},
		{stream: "critical", sent: after(3), err: errors.New("connection reset")},
		{stream: "critical", id: "c", sent: after(4)},
	}}
	got := tr.count("critical", after(0), after(4))
	if got.accepted != 1 || got.refused != 2 || got.noRetry != 1 || got.other != 1 || got.example == nil {
		t.Errorf("counted %+v", got)
	}
	if ids := tr.ids(); len(ids) != 4 {
		t.Errorf("acknowledged: %v", ids)
	}
}

func TestFirstRefusal(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0)
	away := notify.Unavailable("log", time.Second, nil)
	tr := &traffic{answers: []answer{
		{sent: at.Add(-time.Second), at: at.Add(time.Millisecond), err: away},
		{sent: at, at: at.Add(time.Second), id: "a"},
		{sent: at, at: at.Add(2 * time.Second), err: errors.New("connection reset")},
		{sent: at, at: at.Add(5 * time.Second), err: away},
		{sent: at, at: at.Add(4 * time.Second), err: away},
	}}
	if got, there := tr.firstRefusal(at); !there || got != 4*time.Second {
		t.Errorf("refused after %s, %v", got, there)
	}
	if _, there := tr.firstRefusal(at.Add(time.Minute)); there {
		t.Error("nothing was refused after a minute")
	}
}

func TestLongestGap(t *testing.T) {
	t.Parallel()
	at := func(s ...int) (out []time.Time) {
		for _, s := range s {
			out = append(out, time.Unix(int64(1000+s), 0))
		}
		return out
	}
	for name, x := range map[string]struct {
		at   []time.Time
		want time.Duration
	}{
		"none":           {nil, 10 * time.Second},
		"none inside":    {at(-5, 10, 60), 10 * time.Second},
		"before the end": {at(1, 2, 3), 7 * time.Second},
		"at the start":   {at(6, 8), 6 * time.Second},
		"between, mixed": {at(9, 1, 6, -3, 2), 4 * time.Second},
		"after the end":  {at(2, 4, 6, 8, 30), 2 * time.Second},
	} {
		if got := longestGap(x.at, time.Unix(1000, 0), time.Unix(1010, 0)); got != x.want {
			t.Errorf("%s: %s, want %s", name, got, x.want)
		}
	}
}

// TestOwner checks that owns does not confuse two processes if the name of one process is a
// prefix of the name of the other.
func TestOwner(t *testing.T) {
	t.Parallel()
	p := &rig.Process{Name: "faults-1-scheduler"}
	for owner, want := range map[string]bool{
		"faults-1-scheduler-01hzy": true, "faults-11-scheduler-01hzy": false, "faults-1-scheduler": false, "": false,
	} {
		if owns(p, engine.ShardState{Owner: owner}) != want {
			t.Errorf("owns what is of %q: %v", owner, !want)
		}
	}
}
