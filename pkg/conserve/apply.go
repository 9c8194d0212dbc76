package conserve

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Apply repairs findings [from, from+n) of a report that was checked, however long
// ago, and returns what became of each. Each is looked at again, and repaired only
// if it is still what was found. After an error, or a crash, all of them can be
// applied again.
func (a *Auditor) Apply(ctx context.Context, report json.RawMessage, from, n int) ([]deadletter.Repair, error) {
	rep, err := read(report)
	if err != nil {
		return nil, err
	}
	from = min(max(from, 0), len(rep.Findings))
	fs := rep.Findings[from:min(from+max(n, 0), len(rep.Findings))]
	out := make([]deadletter.Repair, len(fs))
	var triggers []Finding
	var places, notifications []int // in fs
	for i := range fs {
		out[i] = deadletter.Repair{Kind: fs[i].Kind, Class: fs[i].Class, ID: fs[i].ID, Why: deadletter.SkipChanged}
		switch {
		case !repairs[fs[i].Kind][fs[i].Class]:
			out[i].Why = deadletter.SkipPeople
		case fs[i].Kind == KindTrigger:
			triggers, places = append(triggers, fs[i]), append(places, i)
		default:
			notifications = append(notifications, i)
		}
	}
	// A page of triggers at a time: a report may be applied as one piece.
	for at := 0; at < len(triggers); at += a.cfg.Page {
		done, err := a.triggers.mend(ctx, triggers[at:min(at+a.cfg.Page, len(triggers))])
		if err != nil {
			return nil, err
		}
		for k := range done {
			if done[k] {
				out[places[at+k]].Why = ""
			}
		}
	}
	if err := mendNotifications(ctx, a, fs, notifications, rep.Made, out); err != nil {
		return nil, err
	}
	return out, nil
}

// again is what a repair appends: one record for all receivers of a chunk, or one
// for a receiver that was replayed.
type again struct {
	chunk notify.Chunk
	id    notify.ID // of the receiver; epoch 0: of the first one of the chunk
	epoch uint16
}

// batchSize bounds the records of one append: a chunk is up to 1 MiB.
const batchSize = 16

func mendNotifications(ctx context.Context, a *Auditor, fs []Finding, which []int, made int64, out []deadletter.Repair) error {
	ids := make([]notify.ID, 0, len(which))
	for _, i := range which {
		id, err := notify.ParseID(fs[i].ID)
		if err != nil {
			return notify.Invalid("bad_report", "report", "finding "+fs[i].ID+" names no notification")
		}
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return nil
	}
	drift, err := a.books.Again(ctx, ids)
	if err != nil {
		return err
	}
	still := make(map[string]*Finding, len(drift))
	for i := range drift {
		f := findingOf(&drift[i])
		still[f.ID] = &f
	}
	// Together what one record repairs: all of its claims come before it, for once
	// it is in the log its row is the worker's.
	var order []again
	of := map[again][]notify.ID{} // those whose receivers are to be claimed
	for k, i := range which {
		f, now := &fs[i], still[fs[i].ID]
		// A crash between a claim and its record leaves it claimed by this report.
		if now == nil || (now.Class != f.Class || now.Updated != f.Updated) && (now.Class != ClaimExpired || now.Updated != made) {
			continue
		}
		what, ok, err := what(ctx, a, ids[k])
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		out[i].Why = ""
		if _, ok := of[what]; !ok {
			order, of[what] = append(order, what), nil
		}
		if f.Class == RecordAlone {
			of[what] = append(of[what], ids[k])
		}
	}
	for len(order) > 0 {
		n := min(len(order), batchSize)
		if err := appendRecords(ctx, a, order[:n], of, made); err != nil {
			return err
		}
		order = order[n:]
	}
	return nil
}

func what(ctx context.Context, a *Auditor, id notify.ID) (again, bool, error) {
	f, rows, ok, err := a.found(ctx, id)
	if !ok || err != nil {
		return again{}, false, err
	}
	out := again{chunk: f.Envelope.Chunk, id: id, epoch: notify.Fold(rows, id.Index, f.Pos).Epoch}
	if out.epoch == 0 { // of whichever receiver
		out.id.Index = firstOf(&f.Envelope)
	}
	return out, true, nil
}

// append claims what is to be claimed, and then appends the records.
func appendRecords(ctx context.Context, a *Auditor, list []again, of map[again][]notify.ID, made int64) error {
	claims := map[notify.RowKey]notify.Row{}
	recs := make([]log.Record, 0, len(list))
	for _, what := range list {
		f, rows, ok, err := a.found(ctx, what.id)
		if err != nil {
			return err
		}
		if !ok { // since the look before
			continue
		}
		e, topic := f.Envelope, f.Envelope.Lane().Topic()
		if what.epoch > 0 {
			e, topic = deadletter.Again(&f, what.id.Index, what.epoch), e.Lane().DLQTopic()
		}
		for _, id := range of[what] {
			if row := claim(&f, &e, rows, id.Index, made); row != nil {
				row.Stamp = engine.StampBeside // the record's worker owns the row
				claims[row.Key] = *row
			}
		}
		recs = append(recs, log.Record{Topic: topic, Partition: f.LogPart, Value: notify.AppendEnvelope(nil, &e)})
	}
	if len(claims) > 0 {
		if err := a.cfg.Status.Put(ctx, slices.Collect(maps.Values(claims))); err != nil {
			return err
		}
		a.cfg.Hit("reconcile-claimed-before-append")
	}
	if len(recs) == 0 {
		return nil
	}
	return a.cfg.Producer.Append(ctx, recs)
}

// claim is the row by which all receivers that have no outcome were started: that
// of the record which was passed, or a new one. nil: they were claimed already, or
// the row is of a copy with other receivers.
func claim(f *engine.Found, e *notify.Envelope, rows []notify.Row, index uint32, made int64) *notify.Row {
	pos := columnPosition(&f.Envelope, index)
	var last *notify.Row // the latest that has the receiver and not its outcome
	for i := range rows {
		row := &rows[i]
		if row.Key.Kind != notify.RowOutcome || row.Key.Epoch != e.Epoch {
			continue
		}
		if p, ok := positionOf(row, index, pos); ok && !row.Done && p >= row.DoneUpTo {
			last = row
		}
	}
	digest := notify.ColumnDigest(e.Receivers)
	switch {
	case last != nil && last.StartedUpTo < last.Count && (last.Key != e.Key() || last.Digest == digest):
		row := *last
		row.StartedUpTo, row.Updated = row.Count, made
		row.Starts = max(row.Starts, 1)
		return &row
	case last != nil:
		return nil
	}
	for i := range rows {
		if rows[i].Key == e.Key() {
			return nil
		}
	}
	row := notify.Row{
		Key: e.Key(), Count: e.Count, Digest: digest, StartedUpTo: e.Count, Starts: 1,
		Caller: e.Caller, Campaign: e.Campaign, Channel: e.Channel, Category: e.Category,
		Accepted: e.Accepted, Updated: made, Topic: f.Topic, LogPart: f.LogPart, Offset: f.Offset,
	}
	return &row
}

// columnPosition is the place of a receiver in the column of its original.
func columnPosition(e *notify.Envelope, index uint32) (pos uint32) {
	rd, rec := notify.ReadReceivers(e.Receivers), notify.Receiver{}
	for rd.Next(&rec) && rec.Index != index {
		pos++
	}
	return pos
}
