package deadletter

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// causeReplay is the Cause of a replayed envelope.
const causeReplay = "replay"

// reportLine is a line of a job's report: a letter that the job skipped or failed to send, and why.
type reportLine struct {
	ID     string `json:"id"`
	Epoch  uint16 `json:"epoch"`
	Caller string `json:"caller,omitempty"`
	Result string `json:"result"` // skipped, exhausted, failed
	Why    string `json:"why"`
}

// runBatch replays, discards or exports the letters of the entries es, and returns their lines of the
// report. The caller may repeat runBatch, even in another process after a crash: it recognizes
// letters that the job has already marked, and publishes them again with the same keys.
func (r *runner) runBatch(ctx context.Context, at int, es []setEntry) ([]engine.JobEntry, error) {
	letters, err := readLetters(ctx, r.m, es)
	if err != nil {
		return nil, err
	}
	b := &letterBatch{r: r, at: at, es: es, letters: letters, why: make([]string, len(es))}
	switch r.spec.Spec.Kind {
	case KindExport:
		return b.export()
	case KindDiscard:
		err = b.discard(ctx)
	default:
		err = b.replay(ctx)
	}
	if err != nil {
		return nil, err
	}
	return b.lines()
}

// letterBatch contains entries of a job's set that are handled together.
type letterBatch struct {
	r       *runner
	at      int // position of the first entry in the set
	es      []setEntry
	letters []*engine.DeadLetter // by entry; nil: the letter is gone
	why     []string             // by entry: why the job does not act on it; "": it acts
}

func (b *letterBatch) lines() (out []engine.JobEntry, err error) {
	res := &b.r.res
	for i, why := range b.why {
		if why == "" {
			res.Done++
			continue
		}
		l := reportLine{Result: "skipped", Why: why}
		switch {
		case why == SkipExhausted:
			l.Result = "exhausted"
			res.Exhausted++
		case strings.HasPrefix(why, "error: "):
			l.Result, l.Why = "failed", strings.TrimPrefix(why, "error: ")
			res.Failed++
		default:
			res.Skipped[why]++
		}
		if d := b.letters[i]; d != nil {
			l.ID, l.Epoch, l.Caller = LetterID(d), d.Epoch, d.Caller
		}
		doc, err := json.Marshal(l)
		if err != nil {
			return nil, err
		}
		out = append(out, engine.JobEntry{At: uint64(b.at+i) + 1, Doc: doc})
	}
	return out, nil
}

func (b *letterBatch) export() (out []engine.JobEntry, err error) {
	for i, d := range b.letters {
		if d == nil {
			b.r.res.Skipped[SkipGone]++
			continue
		}
		doc, err := json.Marshal(exportLine{LetterID(d), d})
		if err != nil {
			return nil, err
		}
		b.r.res.Done++
		out = append(out, engine.JobEntry{At: uint64(b.at+i) + 1, Doc: doc})
	}
	return out, nil
}

type exportLine struct {
	Letter string `json:"letter_id"`
	*engine.DeadLetter
}

// markedByJob reports whether this job has marked a letter. The mark is the job's id. If the letter
// was sent with another epoch than d.Epoch+1, the mark is the job's id, "@" and that epoch.
func markedByJob(d *engine.DeadLetter, job string) bool {
	return d.Job == job || strings.HasPrefix(d.Job, job+"@")
}

// checkState returns why the letter's state forbids the action, or "". The result mine is true if
// this job has already marked the letter.
func (b *letterBatch) checkState(d *engine.DeadLetter) (why string, mine bool) {
	switch {
	case d == nil:
		return SkipGone, false
	case markedByJob(d, b.r.j.ID):
		return "", true
	case d.State == engine.LetterDiscarded:
		return SkipDiscarded, false
	case d.State == engine.LetterReplayed:
		return SkipReplayed, false
	}
	return "", false
}

func (b *letterBatch) discard(ctx context.Context) error {
	return b.moveLetters(ctx, engine.LetterDiscarded, func(i int) (bool, error) {
		why, mine := b.checkState(b.letters[i])
		b.why[i] = why
		return why == "" && !mine, nil
	}, nil)
}

// moveLetters changes letters to newState and marks them with this job. It changes only the letters
// for whose index the function want returns true. The function epoch returns the epoch with which a
// letter is sent; it is nil if the job sends no letters.
func (b *letterBatch) moveLetters(ctx context.Context, newState string, want func(int) (bool, error), epoch func(int) uint16) error {
	var moves []engine.LetterMove
	var places []int // index in b.letters, by move
	for i, d := range b.letters {
		ok, err := want(i)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		mark := b.r.j.ID
		if epoch != nil && epoch(i) != d.Epoch+1 {
			mark += "@" + strconv.Itoa(int(epoch(i)))
		}
		moves = append(moves, engine.LetterMove{ID: d.ID, Epoch: d.Epoch, From: d.State, FromJob: d.Job, To: newState, Job: mark})
		places = append(places, i)
	}
	moved, err := b.r.m.cfg.Letters.Move(ctx, moves)
	if err != nil {
		return err
	}
	for k, ok := range moved {
		if !ok { // another job has changed the letter after it was read
			b.why[places[k]] = SkipReplayed
		}
	}
	return nil
}

// replay sends letters again. First it marks them in the index, and then it publishes their
// envelopes with keys that are computed only from the letters. The caller advances the cursor last.
// After a crash in between, the envelopes are published again, and the worker drops them as
// duplicates.
func (b *letterBatch) replay(ctx context.Context) error {
	if err := b.awaitCircuits(ctx); err != nil {
		return err
	}
	spec := &b.r.spec.Spec
	now := time.Now().UnixMilli()
	recs := make([]*log.Record, len(b.es))
	obs := make([]replayedLetter, len(b.es)) // letters to follow; epoch 0: not a notification
	chunks := map[notify.Chunk][]notify.Row{}
	var last engine.Found // the chunk that was found last, because letters of one chunk are often next to each other
	err := b.moveLetters(ctx, engine.LetterReplayed, func(i int) (bool, error) {
		d := b.letters[i]
		why, mine := b.checkState(d)
		forced := why == SkipReplayed && spec.ForceResend
		switch {
		case b.es[i].collapsed:
			why = SkipCollapsed
		case why != "" && !forced:
		case d.Channel == ChannelTrigger && b.r.m.cfg.Triggers == nil:
			why = SkipTrigger
		case mine:
			why = ""
		default:
			why = skipReason(spec, d, now)
		}
		if why != "" {
			b.why[i] = why
			return false, nil
		}
		if d.Channel == ChannelTrigger {
			return !mine, nil
		}
		found, err := b.findReceiver(ctx, &last, d.ID)
		if err != nil {
			switch notify.KindOf(err) {
			case notify.KindNotFound, notify.KindGone:
				b.why[i] = SkipContent
				return false, nil
			case notify.KindUnavailable, notify.KindThrottled:
				return false, err
			}
			b.why[i] = "error: " + err.Error()
			return false, nil
		}
		chunk := found.Envelope.Chunk
		rows, ok := chunks[chunk]
		if !ok {
			if rows, err = b.r.m.cfg.Status.Chunk(ctx, chunk); err != nil {
				return false, err
			}
			chunks[chunk] = rows
		}
		var epoch uint16
		if mine {
			epoch = markedEpoch(d)
		} else {
			out := notify.Fold(rows, d.ID.Index, found.Pos)
			if why, epoch = replayEpoch(d, &out, spec.ForceResend); why != "" {
				b.why[i] = why
				return false, nil
			}
		}
		recs[i] = replayRecord(&found, d, epoch, spec.Expired, b.r.j.ID, b.r.spec.By)
		obs[i] = replayedLetter{chunk: chunk, index: d.ID.Index, epoch: epoch}
		return !mine, nil
	}, func(i int) uint16 {
		if obs[i].epoch == 0 { // a trigger
			return b.letters[i].Epoch + 1
		}
		return obs[i].epoch
	})
	if err != nil {
		return err
	}
	b.r.m.cfg.Hit("job-marked-before-publish")
	out := make([]log.Record, 0, len(recs))
	for i, d := range b.letters {
		if b.why[i] != "" {
			continue
		}
		if d.Channel == ChannelTrigger {
			done, err := b.r.m.cfg.Triggers.Requeue(ctx, LetterID(d))
			if err != nil {
				return err
			}
			if !done {
				b.why[i] = SkipReplayed
			}
			continue
		}
		out = append(out, *recs[i])
	}
	if len(out) > 0 {
		if err := b.r.m.cfg.Log.Append(ctx, out); err != nil {
			return err
		}
	}
	for i := range obs {
		if b.why[i] == "" && obs[i].epoch > 0 {
			b.r.watch.follow(obs[i])
		}
	}
	return nil
}

// replayEpoch decides from the current outcome of a notification whether its letter is sent. It
// returns either why the letter is not sent, or the epoch with which it is sent.
func replayEpoch(d *engine.DeadLetter, out *notify.Outcome, force bool) (why string, epoch uint16) {
	if out.Epoch > d.Epoch && (out.State != notify.Unknown || !force) {
		return SkipReplayed, 0
	}
	switch out.State {
	// Accepted means that the outcome row is gone. The letter shows that the notification failed.
	case notify.Failed, notify.Accepted:
	case notify.Unknown:
		if !force {
			return SkipUnknown, 0
		}
	default:
		return SkipReached, 0
	}
	return "", max(d.Epoch, out.Epoch) + 1
}

// markedEpoch returns the epoch with which a marked letter is sent. The job that marked the letter
// has chosen this epoch.
func markedEpoch(d *engine.DeadLetter) uint16 {
	if _, at, ok := strings.Cut(d.Job, "@"); ok {
		if n, err := strconv.ParseUint(at, 10, 16); err == nil {
			return uint16(n)
		}
	}
	return d.Epoch + 1
}

// findReceiver returns the receiver of the notification id. lastFound is the result of the previous
// call. If its chunk also contains this notification, findReceiver reads nothing. Otherwise it reads
// the history and replaces lastFound.
func (b *letterBatch) findReceiver(ctx context.Context, lastFound *engine.Found, id notify.ID) (engine.Found, error) {
	if lastFound.ID.FanOut && lastFound.ID.Base == id.Base {
		rd, rec := notify.ReadReceivers(lastFound.Envelope.Receivers), notify.Receiver{}
		for pos := uint32(0); rd.Next(&rec) && rec.Index <= id.Index; pos++ {
			if rec.Index == id.Index {
				f := *lastFound
				f.ID, f.Pos, f.User, f.Address = id, pos, rec.User, rec.Address
				return f, nil
			}
		}
	}
	f, err := b.r.m.cfg.History.Find(ctx, id)
	if err == nil {
		*lastFound = f
	}
	return f, err
}

// replayRecord returns the record that sends one receiver again with an epoch. Its key is computed
// from the notification and the epoch, so a letter that is replayed twice with the same epoch has
// only one outcome row.
func replayRecord(f *engine.Found, d *engine.DeadLetter, epoch uint16, expired, job, by string) *log.Record {
	e := ReplayEnvelope(f, d.ID.Index, epoch)
	if expired == ExpiredSend && e.Expires != 0 && e.Expires <= time.Now().UnixMilli() {
		e.Expires = 0
	}
	h := func(k, v string) log.Header { return log.Header{Key: k, Value: []byte(v)} }
	return &log.Record{
		Topic: e.Lane().DLQTopic(), Partition: f.LogPart, Value: notify.AppendEnvelope(nil, &e),
		Headers: []log.Header{
			h("notify-origin", fmt.Sprintf("%s/%d/%d", d.Topic, d.Partition, d.Offset)),
			h("notify-error-class", d.Class), h("notify-error-code", d.Code),
			h("notify-first-failed-at", time.UnixMilli(d.FirstFailed).UTC().Format(time.RFC3339Nano)),
			h("notify-attempts", strconv.Itoa(d.Attempts)), h("notify-replay-count", strconv.Itoa(int(epoch))),
			h("notify-replay-id", job), h("notify-replay-actor", by),
		},
	}
}

// ReplayEnvelope returns the envelope that sends one receiver of a chunk again with an epoch. The
// same arguments always give the same envelope.
func ReplayEnvelope(f *engine.Found, index uint32, epoch uint16) notify.Envelope {
	e := f.Envelope
	e.Parent = notify.ColumnDigest(e.Receivers)
	var w notify.ReceiverWriter
	rd, rec := notify.ReadReceivers(e.Receivers), notify.Receiver{}
	for rd.Next(&rec) {
		if rec.Index == index {
			w.Append(rec)
			break
		}
	}
	e.Receivers, e.Count, e.Total = w.Bytes(), w.Count(), 0
	e.Epoch, e.Attempt, e.Deferrals, e.First = epoch, 0, 0, index
	e.NotBefore, e.Cause = 0, causeReplay
	return e
}

// awaitCircuits waits until calls can be made in the lanes of all letters. If a lane is blocked and
// the policy is CircuitStop, it returns a guardStop instead.
func (b *letterBatch) awaitCircuits(ctx context.Context) error {
	if b.r.m.cfg.Standing == nil {
		return nil
	}
	for {
		why := ""
		for _, d := range b.letters {
			if d == nil {
				continue
			}
			ch, ok := notify.ParseChannel(d.Channel)
			cat, known := notify.ParseCategory(d.Category)
			if !ok || !known {
				continue
			}
			if why = b.r.m.cfg.Standing(notify.LaneOf(ch, cat)); why != "" {
				break
			}
		}
		switch {
		case why == "":
			return nil
		case b.r.spec.Spec.OpenCircuit == CircuitStop:
			return guardStop{"a circuit is open: " + why}
		}
		if err := b.r.waitAndCheck(ctx, 4*b.r.m.cfg.Poll); err != nil {
			return err
		}
	}
}
