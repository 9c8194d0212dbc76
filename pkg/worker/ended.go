package worker

import (
	"encoding/json"

	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// ended is what notifications-outcomes is told of a finished row: every receiver
// that goes on nowhere and is not told to the failed feed, which has its own topic.
// Like all that is handed on it is derived from the row alone: told again after a
// crash, it is the same.
func (j *job) ended(row *notify.Row) (recs []log.Record) {
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
		recs = append(recs, log.Record{Topic: notify.TopicOutcomes, Partition: 0, Key: []byte(e.Caller), Value: b})
		out.Receivers = out.Receivers[:0]
	}
	rd := notify.ReadReceivers(e.Receivers)
	var rec notify.Receiver
	for pos := uint32(0); rd.Next(&rec); pos++ {
		ex := row.At(pos)
		if len(ex) == 0 {
			ex = []notify.Exception{row.Default}
		}
		r, ok := endOf(e.Category, ex, reached(&rec))
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

// endOf is how a receiver of a category ended, by the outcomes of its addresses; not ok:
// it goes on, or the failed feed tells of it. before says that an earlier attempt
// reached another address of it, of which this row says nothing.
func endOf(cat notify.Category, ex []notify.Exception, before bool) (r notify.EndedReceiver, ok bool) {
	x := best(ex)
	if x.State == notify.Deferred || x.State.InFailedFeed(cat) && !before {
		return r, false
	}
	return notify.EndedReceiver{Status: x.State.String(), Code: x.Code, Provider: x.Provider, Look: before}, true
}
