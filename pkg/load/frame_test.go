package load

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/notifyd/notifyd/pkg/notify"
)

// TestPromisesTravel checks that the controller gets the promises of an agent and finds their arrivals in
// the ledger.
func TestPromisesTravel(t *testing.T) {
	t.Parallel()
	steps := []*stepRun{{}, {}}
	a, b, c := notify.NewBase(time.Now()), notify.NewBase(time.Now()), notify.NewBase(time.Now())
	from := &promises{keepIDs: true, messages: 1}
	from.open = map[notify.Base]promise{
		a: {dueMoment: dueMoment{intended: time.Second, step: steps[1]}}, b: {dueMoment: dueMoment{intended: -1, scheduledAt: 1 << 60, step: steps[1]}},
		c: {dueMoment: dueMoment{intended: 5, step: steps[1]}, count: 50_000, rejected: 7},
	}
	from.others = []otherPromise{{"trg_1", dueMoment{scheduledAt: -3, step: steps[0]}}}
	want := fmt.Sprint(from.open, from.others)
	sent := from.takeEncoded(steps)
	to := &promises{keepIDs: true}
	if err := to.addEncoded(sent, steps); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(to.open, to.others); got != want || to.messages != 3+50_000-7 {
		t.Errorf("%s, not %s; %d", got, want, to.messages)
	}
	if more := from.takeEncoded(steps); more != nil {
		t.Errorf("they are sent twice: %d bytes", len(more))
	}
	for cut := 1; cut < len(sent); cut++ {
		had := to.messages
		if err := to.addEncoded(sent[:cut], steps[:1]); err == nil || to.messages != had {
			t.Fatalf("%d of %d bytes, of a run with one step: %v, %d promises more", cut, len(sent), err, to.messages-had)
		}
	}
}

func FuzzPromises(f *testing.F) {
	steps := []*stepRun{{}, {}}
	from := &promises{open: map[notify.Base]promise{{}: {dueMoment: dueMoment{step: steps[1]}}}, others: []otherPromise{{"trg_1", dueMoment{step: steps[0]}}}}
	f.Add(from.takeEncoded(steps))
	f.Fuzz(func(t *testing.T, b []byte) {
		p := &promises{}
		if p.addEncoded(b, steps) != nil {
			if p.messages != 0 || len(p.open)+len(p.others) > 0 {
				t.Error("a part of what is damaged was taken")
			}
			return
		}
		again := &promises{}
		if err := again.addEncoded(p.takeEncoded(steps), steps); err != nil || again.messages != p.messages {
			t.Errorf("%d became %d: %v", p.messages, again.messages, err)
		}
	})
}

// absent is a Remote with two agents that send nothing. The test adds their frames itself.
type absent struct{}

func (absent) Run(context.Context, func(int, *Frame) error) {}
func (absent) Begin(_ context.Context, _ int, at time.Time) (time.Time, error) {
	return at, nil
}
func (absent) Sent(context.Context, int) error { return nil }
func (absent) Steer(SteerState)                {}
func (absent) Agents() []Agent                 { return []Agent{{Name: "a"}, {Name: "b"}} }

// TestDamagedFrame checks that no figure of a damaged frame is used.
func TestDamagedFrame(t *testing.T) {
	t.Parallel()
	r, err := New(SingleStep("s", time.Second, Step{Rate: 1}), Config{Target: dryTarget{}, Remote: absent{}})
	if err != nil {
		t.Fatal(err)
	}
	h := NewHistogram()
	recordValue(h, time.Millisecond, 5)
	text, err := EncodeHistogram(h)
	if err != nil {
		t.Fatal(err)
	}
	wide := hdrhistogram.New(1, 1<<62, 5) // its counts would take hundreds of megabytes
	if err := wide.RecordValue(1); err != nil {
		t.Fatal(err)
	}
	vast, err := EncodeHistogram(wide)
	if err != nil {
		t.Fatal(err)
	}
	good := func() Frame {
		return Frame{At: time.Second, Steps: []StepFrame{{Requests: 5, Sent: 5, Acked: 5, Lag: text, Service: text, Response: text}}}
	}
	for name, damage := range map[string]func(*Frame){
		"step":      func(f *Frame) { f.Steps = append(f.Steps, StepFrame{Step: 1}) },
		"below 0":   func(f *Frame) { f.Steps = append(f.Steps, StepFrame{Step: -1}) },
		"histogram": func(f *Frame) { f.Steps = append(f.Steps, StepFrame{Lag: "x"}) },
		"repeated":  func(f *Frame) { f.Steps = append(f.Steps, f.Steps[0], f.Steps[0]) },
		"vast":      func(f *Frame) { f.Steps[0].Lag = vast },
		"promises":  func(f *Frame) { f.Promises = bytes.Repeat([]byte{0xff}, 20) },
	} {
		f := good()
		damage(&f)
		if err := r.feeds.addFrame(1, &f); notify.KindOf(err) != notify.KindInvalid || r.steps[0].currentTally().sent != 0 || r.feeds.list()[1].Sent != 0 {
			t.Errorf("%s: %v, %+v", name, err, r.steps[0].currentTally())
		}
	}
	f := good()
	if err := r.feeds.addFrame(1, &f); err != nil || r.steps[0].currentTally().sent != 5 || r.feeds.list()[1].Sent != 5 {
		t.Errorf("%v, %+v", err, r.steps[0].currentTally())
	}
}
