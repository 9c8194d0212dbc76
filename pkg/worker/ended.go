package worker

import (
	"encoding/json"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/stream"
)

// ended is what notifications-outcomes is told of a finished row: every receiver
// that goes on nowhere and has not failed, for failures have a topic of their own.
// Like all that is handed on it is derived from the row alone: told again after a
// crash, it is the same.
func (j *job) ended(row *notify.Row) (recs []stream.Record) {
	e := &j.env
	out := notify.Ended{
		Version: notify.EndedVersion, Caller: e.Caller, Campaign: e.Campaign, Channel: e.Channel.String(), Category: e.Category.String(),
		Template: e.Content.Template, Trace: e.Trace, At: row.Updated,
	}
	flush := func() {
		if len(out.Receivers) == 0 {
			return
		}
		b, _ := json.Marshal(out) // of strings and numbers: cannot fail
		recs = append(recs, stream.Record{Topic: notify.TopicOutcomes, Partition: 0, Key: []byte(e.Caller), Value: b})
		out.Receivers = out.Receivers[:0]
	}
	rd := notify.ReadReceivers(e.Receivers)
	var rec notify.Receiver
	for pos := uint32(0); rd.Next(&rec); pos++ {
		ex := row.At(pos)
		if len(ex) == 0 {
			ex = []notify.Exception{row.Default}
		}
		r, ok := endOf(ex, reached(&rec))
		if !ok {
			continue
		}
		r.ID, r.Epoch, r.User = e.ID(rec.Index).String(), int(e.Epoch), string(rec.User)
		if r.Provider != "" {
			r.Attempts = int(e.Attempt) + 1
		}
		if out.Receivers = append(out.Receivers, r); len(out.Receivers) == notify.MaxEnded {
			flush()
		}
	}
	flush()
	return recs
}

// endOf is how a receiver ended, by the outcomes of its addresses; not ok: it goes
// on, or has failed. before says that an earlier attempt reached another address of
// it, of which this row says nothing.
func endOf(ex []notify.Exception, before bool) (r notify.EndedReceiver, ok bool) {
	states := make([]notify.State, 0, len(ex))
	for i := range ex {
		if ex[i].State == notify.Deferred {
			return r, false
		}
		states = append(states, ex[i].State)
	}
	best := ex[0].State
	if len(ex) > 1 {
		best = notify.FoldAddresses(states)
	}
	if best == notify.Failed && !before {
		return r, false
	}
	for i := range ex {
		if ex[i].State == best {
			r.Status, r.Code, r.Provider = best.String(), ex[i].Code, ex[i].Provider
			break
		}
	}
	r.Look = before
	return r, true
}
