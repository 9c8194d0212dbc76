package worker

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine/enginetest"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// An envelope or outcome row that a newer release wrote is left to that release. The worker
// refuses the batch with ErrNewer, marks nothing, puts nothing aside and keeps the row. Records
// before it in the log are delivered when they come again.
func TestLeavesWhatANewerReleaseWrote(t *testing.T) {
	for _, what := range []string{"envelope", "outcome row"} {
		t.Run(what, func(t *testing.T) {
			in(t, func(t *testing.T) {
				store := memory.New()
				poisoned, damaged := 0, 0
				r := newRig(t, pushLane, func(cfg *Config) {
					cfg.Status = store.Status()
					cfg.Events.Poison = func(string) { poisoned++ }
					cfg.Events.Damaged = func(notify.Lane) { damaged++ }
				})
				r.status = store.Status()
				// All three are ann's, so that each waits for the one before it.
				first, newer, last := r.envelope(notify.OTP, "ann"), r.envelope(notify.OTP, "ann"), r.envelope(notify.OTP, "ann")
				done := map[int64]bool{}
				message := func(off int64, value []byte) *log.Msg {
					return log.NewMsg(log.Record{Topic: pushLane.Topic(), Offset: off, Value: value}, func() { done[off] = true })
				}
				value := notify.AppendEnvelope(nil, &newer)
				if what == "envelope" {
					value[1] = notify.EnvelopeVersion + 1
				} else {
					if err := enginetest.DamageRow(store.Rows(), newer.Key(), []byte("\x02of tomorrow")); err != nil {
						t.Fatal(err)
					}
				}
				handle := func(msgs []*log.Msg) error {
					got := make(chan error, 1)
					go func() { got <- r.part.Handle(r.ctx, msgs) }()
					select {
					case err := <-got:
						return err
					case <-time.After(time.Minute):
						r.stop()
						<-got
						t.Fatal("the worker asks again and again")
						return nil
					}
				}
				msgs := []*log.Msg{message(0, notify.AppendEnvelope(nil, &first)), message(1, value), message(2, notify.AppendEnvelope(nil, &last))}
				if err := handle(msgs); !errors.Is(err, notify.ErrNewer) {
					t.Fatalf("%v, want ErrNewer", err)
				}
				// Hand over the records as the group does: one at a time, and none after the record
				// at which the partition stops.
				if err := handle(msgs[:1]); err != nil {
					t.Fatal(err)
				}
				if err := handle(msgs[1:2]); !errors.Is(err, notify.ErrNewer) {
					t.Fatalf("alone: %v, want ErrNewer", err)
				}
				time.Sleep(time.Minute) // of the bubble
				synctest.Wait()
				if got := r.state(&first, 0); got.State != notify.Delivered || !done[0] {
					t.Errorf("what stands before it: %+v, marked %v", got, done[0])
				}
				if done[1] || done[2] || poisoned+damaged > 0 || len(r.log.take()) > 0 {
					t.Errorf("marked %v, %d poisoned, %d rows counted as damaged", done, poisoned, damaged)
				}
				if _, err := store.Status().Get(t.Context(), []notify.RowKey{newer.Key()}); what == "outcome row" && !errors.Is(err, notify.ErrNewer) {
					t.Errorf("its row: %v, want that it is still the newer one", err)
				}
			})
		})
	}
}
