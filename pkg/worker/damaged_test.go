package worker

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine/enginetest"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// An outcome row that cannot be decoded does not stop its partition. Its bytes go into the poison
// topic, and the worker assumes that every receiver of its envelope may have been called.
func TestGoesOnPastADamagedRow(t *testing.T) {
	for name, c := range map[string]struct {
		lane   notify.Lane
		cat    notify.Category
		want   notify.State
		resent uint32
	}{
		"sent again and counted": {pushLane, notify.OTP, notify.Delivered, 2},
		"never sent again":       {bulkMail, notify.Marketing, notify.Unknown, 0},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				store := memory.New()
				told := 0
				r := newRig(t, c.lane, func(cfg *Config) {
					cfg.Status = store.Status()
					cfg.Events.Damaged = func(l notify.Lane) {
						if l == c.lane {
							told++
						}
					}
				})
				r.status = store.Status()
				e, next := r.envelope(c.cat, "ann", "bob"), r.envelope(c.cat, "cid")
				if err := enginetest.DamageRow(store.Rows(), e.Key(), []byte("\x00damaged")); err != nil {
					t.Fatal(err)
				}
				at := r.feed(e, next)
				time.Sleep(time.Minute) // of the bubble
				synctest.Wait()
				for i := range uint32(2) {
					if got := r.state(&e, i); got.State != c.want {
						t.Errorf("receiver %d: %+v, want %v", i, got, c.want)
					}
				}
				if got := r.state(&next, 0); got.State != notify.Delivered {
					t.Errorf("the envelope behind it: %+v", got)
				}
				if !r.isMarked(at[0]) || !r.isMarked(at[1]) {
					t.Error("the partition does not go on")
				}
				rows, err := store.Status().Chunk(t.Context(), e.Chunk)
				if err != nil || len(rows) != 1 || !rows[0].Done || rows[0].Resent != c.resent {
					t.Errorf("%+v, %v; want one finished row with %d sent again", rows, err, c.resent)
				}
				recs := r.log.take()
				if told != 1 || len(recs) != 1 || recs[0].Topic != notify.TopicPoison || string(recs[0].Value) != "\x00damaged" {
					t.Fatalf("told %d times, put aside %+v", told, recs)
				}
				for _, h := range recs[0].Headers {
					if h.Key == log.HeaderCause && !bytes.Contains(h.Value, []byte("outcome row")) {
						t.Errorf("cause %q", h.Value)
					}
				}
			})
		})
	}
}
