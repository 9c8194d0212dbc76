package store

import (
	"errors"
	"testing"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
)

// A timer that a newer release wrote is told apart from a damaged one.
func TestDamagedTimers(t *testing.T) {
	t.Parallel()
	timers := hotTimers(nil)
	add, err := timers.timerRows(notify.SpreadOver(1), []engine.Timer{{FireAt: 61_000, ID: []byte("id"), Target: "t", Payload: []byte("payload")}})
	if err != nil {
		t.Fatal(err)
	}
	read := func(key string, v []byte) error {
		var x engine.Timer
		return timers.readTimer(rows.Row{Key: key, Value: v}, &x)
	}
	key, value := add[0].Key, add[0].Value
	if err := read(key, value); err != nil {
		t.Fatal(err)
	}
	for n := range value {
		if err := read(key, value[:n]); !errors.Is(err, notify.ErrCorrupt) || errors.Is(err, notify.ErrNewer) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if err := read(key[:timerKeyLen], value); !errors.Is(err, notify.ErrCorrupt) {
		t.Errorf("a key without an id: %v", err)
	}
	if err := read(key, []byte{200, 'x'}); !errors.Is(err, notify.ErrNewer) || errors.Is(err, notify.ErrCorrupt) {
		t.Errorf("of a newer release: %v", err)
	}
}
