package main

import (
	"errors"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

func TestCountsAnswers(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0)
	after := func(s int) time.Time { return at.Add(time.Duration(s) * time.Second) }
	tr := &traffic{answers: []answer{
		{stream: "critical", id: "before", sent: after(-1)},
		{stream: "critical", id: "a", sent: after(0)},
		{stream: "rest", id: "b", sent: after(1)},
		{stream: "critical", sent: after(1), wait: time.Second, err: notify.Unavailable("log", time.Second, nil)},
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

// TestOwner: the name of a process must not pass for that of another one.
func TestOwner(t *testing.T) {
	t.Parallel()
	p := &process{name: "faults-1-scheduler"}
	for owner, want := range map[string]bool{
		"faults-1-scheduler-01hzy": true, "faults-11-scheduler-01hzy": false, "faults-1-scheduler": false, "": false,
	} {
		if p.owns(engine.ShardState{Owner: owner}) != want {
			t.Errorf("owns what is of %q: %v", owner, !want)
		}
	}
}
