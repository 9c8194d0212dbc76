package conserve

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Apply repairs the findings [first, first+n) of a report that Check has accepted. It checks each
// finding again, and repairs it only if nothing has changed since the report. It returns one
// result for each finding. After an error or a crash, the caller may repeat Apply for the same
// findings.
func (a *Auditor) Apply(ctx context.Context, report json.RawMessage, first, n int) ([]deadletter.Repair, error) {
	rep, err := parseReport(report)
	if err != nil {
		return nil, err
	}
	first = min(max(first, 0), len(rep.Findings))
	fs := rep.Findings[first:min(first+max(n, 0), len(rep.Findings))]
	out := make([]deadletter.Repair, len(fs))
	var triggers []Finding
	var places, notifications []int // indexes in fs
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
	// Triggers are repaired a page at a time: n may cover the whole report.
	for at := 0; at < len(triggers); at += a.cfg.Page {
		done, err := a.triggers.mendFindings(ctx, triggers[at:min(at+a.cfg.Page, len(triggers))])
		if err != nil {
			return nil, err
		}
		for k := range done {
			if done[k] {
				out[places[at+k]].Why = ""
			}
		}
	}
	if err := appendRepairs(ctx, a, fs, notifications, rep.Made, out); err != nil {
		return nil, err
	}
	return out, nil
}

// repairRecord identifies a record that a repair appends. It is either the original envelope of a
// chunk, for all its receivers, or the envelope of one replayed receiver.
type repairRecord struct {
	chunk notify.Chunk
	id    notify.ID // of the receiver; at epoch 0, of the first receiver of the chunk
	epoch uint16
}

// batchSize is the largest number of records in one append. A chunk has up to 1 MiB.
const batchSize = 16

// appendRepairs repairs the findings of notifications fs[i], for each i in indexes, and sets
// results[i].Why to "" for each finding that it repaired. The parameter made is the time of the
// report (ms since 1970). The claims that appendRepairs writes have this time too.
func appendRepairs(ctx context.Context, a *Auditor, fs []Finding, indexes []int, made int64, results []deadletter.Repair) error {
	ids := make([]notify.ID, 0, len(indexes))
	for _, i := range indexes {
		id, err := notify.ParseID(fs[i].ID)
		if err != nil {
			return notify.Invalid("bad_report", "report", "the id "+strconv.Quote(fs[i].ID)+" of a finding is not the id of a notification")
		}
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return nil
	}
	drift, err := a.notifications.Recheck(ctx, ids)
	if err != nil {
		return err
	}
	still := make(map[string]*Finding, len(drift)) // by notification: the drift that exists now
	for i := range drift {
		f := findingOf(&drift[i])
		still[f.ID] = &f
	}
	// Group the findings that one record repairs. All their claims must be stored before that
	// record is appended. Once the record is in the log, its worker owns the row.
	var order []repairRecord
	claims := map[repairRecord][]notify.ID{} // receivers that must be claimed before the record is appended
	for k, i := range indexes {
		f, now := &fs[i], still[fs[i].ID]
		// An earlier Apply of this report may have crashed after it stored the claim and before it
		// appended the record. Such a claim has the time of this report, and only its record must
		// still be appended.
		if now == nil || (now.Class != f.Class || now.Updated != f.Updated) && (now.Class != ClaimExpired || now.Updated != made) {
			continue
		}
		rec, ok, err := repairRecordFor(ctx, a, ids[k])
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		results[i].Why = ""
		if _, ok := claims[rec]; !ok {
			order, claims[rec] = append(order, rec), nil
		}
		if f.Class == RecordAlone {
			claims[rec] = append(claims[rec], ids[k])
		}
	}
	for len(order) > 0 {
		n := min(len(order), batchSize)
		if err := appendRecords(ctx, a, order[:n], claims, made); err != nil {
			return err
		}
		order = order[n:]
	}
	return nil
}

// repairRecordFor returns the record that repairs a notification. It returns false if the
// notification is no longer stored.
func repairRecordFor(ctx context.Context, a *Auditor, id notify.ID) (repairRecord, bool, error) {
	f, rows, ok, err := a.findWithRows(ctx, id)
	if !ok || err != nil {
		return repairRecord{}, false, err
	}
	out := repairRecord{chunk: f.Envelope.Chunk, id: id, epoch: notify.Fold(rows, id.Index, f.Pos).Epoch}
	if out.epoch == 0 { // one record repairs all receivers of the chunk, so all of them must give the same repairRecord
		out.id.Index = firstIndex(&f.Envelope)
	}
	return out, true, nil
}

// appendRecords appends the records in list. Before that, it stores rows with claims for them. The
// map claims contains, by record, the receivers that these rows must claim.
func appendRecords(ctx context.Context, a *Auditor, list []repairRecord, claims map[repairRecord][]notify.ID, made int64) error {
	rowsToPut := map[notify.RowKey]notify.Row{}
	recs := make([]log.Record, 0, len(list))
	for _, repair := range list {
		f, rows, ok, err := a.findWithRows(ctx, repair.id)
		if err != nil {
			return err
		}
		if !ok { // the notification was purged after repairRecordFor found it
			continue
		}
		e, topic := f.Envelope, f.Envelope.Lane().Topic()
		if repair.epoch > 0 {
			e, topic = deadletter.ReplayEnvelope(&f, repair.id.Index, repair.epoch), e.Lane().DLQTopic()
		}
		for _, id := range claims[repair] {
			if row := claimRow(&f, &e, rows, id.Index, made); row != nil {
				row.Stamp = engine.StampBeside // any row that the worker of this record writes later replaces this row
				rowsToPut[row.Key] = *row
			}
		}
		recs = append(recs, log.Record{Topic: topic, Partition: f.LogPart, Value: notify.AppendEnvelope(nil, &e)})
	}
	if len(rowsToPut) > 0 {
		if err := a.cfg.Status.Put(ctx, slices.Collect(maps.Values(rowsToPut))); err != nil {
			return err
		}
		a.cfg.Hit("reconcile-claimed-before-append")
	}
	if len(recs) == 0 {
		return nil
	}
	return a.cfg.Producer.Append(ctx, recs)
}

// claimRow returns a row that claims every receiver of e that has no outcome. It changes a copy of
// the latest row that contains the receiver with this index but not its outcome; without such a
// row it makes a new one. It returns nil if the receivers are already claimed, or if the row
// belongs to another copy of the chunk with other receivers.
func claimRow(f *engine.Found, e *notify.Envelope, rows []notify.Row, index uint32, made int64) *notify.Row {
	pos := columnPosition(&f.Envelope, index)
	var last *notify.Row // the latest row that has the receiver but not its outcome
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

// columnPosition returns the position of the receiver with this index in the receivers
// column of its original envelope.
func columnPosition(e *notify.Envelope, index uint32) (pos uint32) {
	rd, rec := notify.ReadReceivers(e.Receivers), notify.Receiver{}
	for rd.Next(&rec) && rec.Index != index {
		pos++
	}
	return pos
}
