package pebble

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// single is the row of a single send that was taken at once.
func single() notify.Row {
	return notify.Row{
		Key:   notify.RowKey{Chunk: notify.Chunk{Base: notify.Base{1, 2, 3, 15: 4}}},
		Count: 1, Digest: 0x1234567890abcdef, DoneUpTo: 1, StartedUpTo: 1, Starts: 1, Done: true,
		Default: notify.Exception{State: notify.Sent, Provider: "apns"}, Caller: "checkout", Channel: notify.Push, Category: notify.OTP,
		Accepted: 1_795_000_000_123, Updated: 1_795_000_000_143, Topic: "notifications-push", LogPart: 7, Offset: 123_456_789,
	}
}

// chunk is the row of 8,300 receivers, failures of which were refused.
func chunk(failures int) notify.Row {
	r := single()
	r.Count, r.DoneUpTo, r.StartedUpTo, r.Campaign = 8300, 8300, 8300, "cmp_01JH0000000000000000000000"
	for i := range failures {
		r.Exceptions = append(r.Exceptions, notify.Exception{Pos: uint32(i * 80), State: notify.Failed, Code: "apns_unregistered", Provider: "apns"})
	}
	return r
}

// A value of each form that a newer release wrote is told apart from damage.
func TestNewerValuesAreNotDamaged(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, testConfig(vfs.NewMem()))
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	read := map[string]func(version byte) error{
		"trigger": func(v byte) error {
			_, err := readTrigger("id", []byte{v, 'x'}, new(engine.Trigger), false)
			return err
		},
		"trigger's head": func(v byte) error {
			_, err := readTrigger("id", []byte{v, 'x'}, new(engine.Trigger), true)
			return err
		},
		"trigger's header": func(v byte) error {
			set(t, s, triggerKey("id"), []byte{v, 'x'})
			_, _, err := s.Triggers().(*triggers).headerAt(triggerKey("id"))
			return err
		},
	}
	for name, fn := range read {
		if err := fn(200); !errors.Is(err, notify.ErrNewer) || errors.Is(err, notify.ErrCorrupt) {
			t.Errorf("%s of a newer release: %v", name, err)
		}
		if err := fn(0); errors.Is(err, notify.ErrNewer) || !errors.Is(err, notify.ErrCorrupt) {
			t.Errorf("a damaged %s: %v", name, err)
		}
	}
}

func set(t *testing.T, s *Store, k, v []byte) {
	t.Helper()
	if err := s.db.Set(k, v, nil); err != nil {
		t.Fatal(err)
	}
}
