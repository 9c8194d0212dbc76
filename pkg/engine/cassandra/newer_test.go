package cassandra

import (
	"context"
	"errors"
	"testing"

	"github.com/notifyd/notifyd/pkg/codec"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/store"
)

// Each codec must distinguish a value of a newer release from damage. The test needs no
// server.
func TestNewerValuesAreNotDamaged(t *testing.T) {
	t.Parallel()
	s := &Store{}
	values := func(vs ...any) func(context.Context, string, []any, ...any) (bool, error) {
		return func(_ context.Context, _ string, _ []any, dest ...any) (bool, error) {
			for i, d := range dest[len(dest)-len(vs):] {
				*d.(*[]byte) = vs[i].([]byte)
			}
			return true, nil
		}
	}
	fine := codec.Pack(store.TriggerVersion, func(c *codec.Codec) { store.TriggerRequest(c, new(engine.Trigger)) })
	read := map[string]func(v []byte) error{
		"outcome row": func(v []byte) error { return status{s: s}.decode(new(notify.Row), notify.RowKey{}, 0, v) },
		"timer":       func(v []byte) error { return readTimer(new(engine.Timer), v) },
		"dead letter": func(v []byte) error {
			_, _, err := deadLetters{s: s}.read(func(dest ...any) (bool, error) { return values(v)(nil, "", nil, dest...) })
			return err
		},
		"request of a trigger": func(v []byte) error {
			_, err := triggers{s: s}.readRow(context.Background(), "id", values(v, fine))
			return err
		},
		"trigger": func(v []byte) error {
			_, err := triggers{s: s}.readRow(context.Background(), "id", values(fine, v))
			return err
		},
		"holds": func(v []byte) error {
			_, err := store.HoldsOver(fixedQueue(v)).Get(context.Background(), "lane", []string{"user"})
			return err
		},
	}
	for name, fn := range read {
		if err := fn([]byte{9, 'x'}); !errors.Is(err, notify.ErrNewer) || errors.Is(err, notify.ErrCorrupt) {
			t.Errorf("%s of a newer release: %v", name, err)
		}
		if err := fn([]byte{1}); errors.Is(err, notify.ErrNewer) || !errors.Is(err, notify.ErrCorrupt) {
			t.Errorf("a damaged %s: %v", name, err)
		}
	}
}

// fixedQueue is what each queue of holds is stored as.
type fixedQueue []byte

func (fixedQueue) Turn(context.Context) (func(), error) { return func() {}, nil }

func (q fixedQueue) Load(context.Context, []store.HoldKey) ([][]byte, error) { return [][]byte{q}, nil }

func (fixedQueue) Swap(context.Context, []store.HoldKey, [][]byte, [][]byte) (bool, error) {
	return true, nil
}

// The writers of the history do not pass over an envelope of a newer release, and so
// commit nothing behind it.
func TestHistoryLeavesWhatANewerReleaseWrote(t *testing.T) {
	t.Parallel()
	s := &Store{}
	err := s.AppendHistory(t.Context(), HistoryRecord{Topic: "topic", Offset: 5, Value: []byte{0x08, notify.EnvelopeVersion + 1}})
	if !errors.Is(err, notify.ErrNewer) || len(s.history.next) > 0 {
		t.Errorf("%v, next %v", err, s.history.next)
	}
}
