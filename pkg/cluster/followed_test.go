package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/worker"
)

// readThenMeta is the Meta of one process. Another process acts once between a read
// of this one and the write that follows it.
type readThenMeta struct {
	engine.Meta
	other func()
}

func (m *readThenMeta) GetMeta(ctx context.Context, name string) ([]byte, error) {
	v, err := m.Meta.GetMeta(ctx, name)
	if act := m.other; act != nil {
		m.other = nil
		act()
	}
	return v, err
}

// TestOperatorsAtTheSameMoment: two processes over one store each change another
// lane, or another caller's circuit, between the other's read and write. What both
// answered without an error is what every process reads.
func TestOperatorsAtTheSameMoment(t *testing.T) {
	t.Parallel()
	ctx, shared := t.Context(), memory.New().Meta()
	type process struct {
		*Lanes
		*Circuits
	}
	start := func() (process, *readThenMeta) {
		m, log := &readThenMeta{Meta: shared}, slog.New(slog.DiscardHandler)
		lanes, err := OpenLanes(ctx, m, log, func(notify.Lane, *api.Lane) {})
		if err != nil {
			t.Fatal(err)
		}
		health, err := worker.NewHealth(limit.BreakerConfig{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		circuits, err := OpenCircuits(ctx, CircuitConfig{Meta: m, Health: health, Logger: log})
		if err != nil {
			t.Fatal(err)
		}
		circuits.pins.apply = func(map[string]circuitPin) {} // there is no dispatcher
		return process{lanes, circuits}, m
	}
	a, between := start()
	b, _ := start()
	set := func(p process, lane string, paused bool, by string) {
		t.Helper()
		if _, err := p.Lanes.Set(ctx, lane, by, api.LaneChange{Paused: &paused}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(paused map[string]string) {
		t.Helper()
		for _, p := range []process{a, b} {
			if err := p.Lanes.Follow(ctx); err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, lane := range notify.Lanes() {
				if _, by, _, ok := p.Paused(lane); ok != p.Gate(lane).IsShut() {
					t.Errorf("%s: paused %v, its gate is shut: %v", lane, ok, p.Gate(lane).IsShut())
				} else if ok {
					got[lane.String()] = by
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(paused) {
				t.Errorf("paused are %v, want %v", got, paused)
			}
		}
	}
	between.other = func() { set(b, "sms", true, "bea") }
	set(a, "push", true, "ann")
	want(map[string]string{"push": "ann", "sms": "bea"})
	between.other = func() { set(b, "sms", false, "bea") }
	set(a, "email", true, "ann")
	want(map[string]string{"push": "ann", "email": "ann"})
	between.other = func() { set(b, "sms-bulk", true, "bea") }
	set(a, "sms-bulk", true, "ann") // who was first stays
	want(map[string]string{"push": "ann", "email": "ann", "sms-bulk": "bea"})

	pinned := func(p process, caller, to string) {
		t.Helper()
		if err := p.storePin(ctx, caller, to); err != nil {
			t.Fatal(err)
		}
	}
	between.other = func() { pinned(b, "shop", "open") }
	pinned(a, "bank", "closed")
	between.other = func() { pinned(b, "shop", "reset") }
	pinned(a, "news", "open")
	all, _, err := engine.ReadMetaMap[circuitPin](ctx, shared, pinsMeta)
	if err != nil || len(all) != 3 || all["bank"].To != "closed" || all["shop"].To != "reset" || all["news"].To != "open" {
		t.Errorf("pins are %+v, %v", all, err)
	}
}
