package conserve

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/schedule"
	"github.com/notifyd/notifyd/pkg/timer"
	"github.com/notifyd/notifyd/pkg/trigger"
)

const shards = 4

// plant is an Auditor over stores in memory, and over doubles of what finds.
type plant struct {
	t     *testing.T
	store *memory.Store
	r     *Auditor
	cfg   Config

	triggers Report // what is found of them
	fixed    []Finding
	drift    map[notify.ID]api.Drift
	others   []api.Drift // that name no receiver
	kept     map[notify.ID]engine.Found
	views    map[notify.Base]schedule.View
	recs     []log.Record
	away     error // of the log
	since    time.Time
}

func newPlant(t *testing.T) *plant {
	p := &plant{t: t, store: memory.New(), drift: map[notify.ID]api.Drift{}, kept: map[notify.ID]engine.Found{}, views: map[notify.Base]schedule.View{}}
	p.cfg = Config{
		History: keptHistory{p: p}, Status: p.store.Status(), Timers: p.store.Timers(), Schedules: keptSchedules{p: p}, Producer: p, Shards: engine.FixedShards(shards),
		Rows: p.store.Triggers(), Triggers: trigger.Mender{},
	}
	p.build(nil)
	return p
}

func (p *plant) build(hit func(string)) {
	p.cfg.Hit = hit
	p.r = New(p.cfg)
	p.r.notifications, p.r.triggers = p, (*ofTriggers)(p)
}

type ofTriggers plant

func (o *ofTriggers) findDrift(_ context.Context, rep *Report) error {
	rep.Rows += o.triggers.Rows
	for _, f := range o.triggers.Findings {
		rep.addFinding(f, 1, 1000)
	}
	return nil
}

func (o *ofTriggers) mendFindings(_ context.Context, fs []Finding) ([]bool, error) {
	out := make([]bool, len(fs))
	for i := range fs {
		out[i] = fs[i].Version == 1 // others changed
		if out[i] {
			o.fixed = append(o.fixed, fs[i])
		}
	}
	return out, nil
}

func (p *plant) Notifications(_ context.Context, since time.Time, _ int) (api.Conservation, error) {
	p.since = since
	out := api.Conservation{Ledger: api.Ledger{Accepted: 7}, Classes: map[string]int64{}}
	for _, d := range p.drift {
		out.Findings = append(out.Findings, d)
		out.Classes[d.Class]++
	}
	for _, d := range p.others {
		out.Findings = append(out.Findings, d)
		out.Classes[d.Class]++
	}
	return out, nil
}

func (p *plant) Recheck(_ context.Context, ids []notify.ID) (out []api.Drift, err error) {
	for _, id := range ids {
		if d, ok := p.drift[id]; ok {
			out = append(out, d)
		}
	}
	return out, nil
}

type keptHistory struct {
	*many
	p *plant
}

func (h keptHistory) Find(_ context.Context, id notify.ID) (engine.Found, error) {
	f, ok := h.p.kept[id]
	if !ok {
		return f, &notify.Error{Kind: notify.KindGone, Code: "notification_gone"}
	}
	return f, nil
}

type keptSchedules struct {
	noSchedules
	p *plant
}

func (s keptSchedules) Get(_ context.Context, base notify.Base) (schedule.View, error) {
	v, ok := s.p.views[base]
	if !ok {
		return v, notify.NotFound("schedule")
	}
	return v, nil
}

func (p *plant) Append(_ context.Context, recs []log.Record) error {
	if p.away != nil {
		return p.away
	}
	p.recs = append(p.recs, recs...)
	return nil
}

// chunk makes an original of n receivers, and names them.
func (p *plant) chunk(n int, ch notify.Channel) (f engine.Found, ids []notify.ID) {
	base := notify.NewBase(time.Now())
	var w notify.ReceiverWriter
	for i := range n {
		w.Append(notify.Receiver{Index: uint32(3 + i), User: []byte{'u', byte(i)}})
	}
	f = engine.Found{Topic: "first", LogPart: 5, Offset: 77, Envelope: notify.Envelope{
		Chunk: notify.Chunk{Base: base, Partition: 5}, FanOut: true, Channel: ch, Category: notify.Marketing, Caller: "shop", Accepted: 1,
		Content: notify.Content{Body: "b"}, Count: w.Count(), Receivers: w.Bytes(),
	}}
	for i := range n {
		id := notify.ID{Base: base, Index: uint32(3 + i), FanOut: true}
		one := f
		one.ID, one.Pos = id, uint32(i)
		p.kept[id] = one
		ids = append(ids, id)
	}
	return f, ids
}

func (p *plant) drifts(id notify.ID, class string, updated int64) {
	p.drift[id] = api.Drift{Class: class, ID: id.String(), Caller: "shop", State: "ACCEPTED", Updated: updated}
}

func (p *plant) put(rows ...notify.Row) {
	p.t.Helper()
	if err := p.store.Status().Put(p.t.Context(), rows); err != nil {
		p.t.Fatal(err)
	}
}

func (p *plant) report() (deadletter.Findings, Report) {
	p.t.Helper()
	fs, err := p.r.Report(p.t.Context(), time.Time{})
	if err != nil {
		p.t.Fatal(err)
	}
	var rep Report
	if err := json.Unmarshal(fs.Report, &rep); err != nil {
		p.t.Fatal(err)
	}
	if got, err := p.r.Check(fs.Report); err != nil || got.Digest != fs.Digest || got.Listed != fs.Listed || got.Mend != fs.Mend {
		p.t.Fatalf("%+v, %v", got, err)
	}
	return fs, rep
}

// apply applies all of a report, and returns why each was left, by id.
func (p *plant) apply(report json.RawMessage) map[string]string {
	p.t.Helper()
	done, err := p.r.Apply(p.t.Context(), report, 0, 1000)
	if err != nil {
		p.t.Fatal(err)
	}
	out := map[string]string{}
	for _, d := range done {
		out[d.ID] = d.Why
	}
	return out
}

// sent decodes what was appended.
func (p *plant) sent() (out []notify.Envelope) {
	p.t.Helper()
	for i := range p.recs {
		var e notify.Envelope
		if err := notify.DecodeEnvelope(p.recs[i].Value, &e); err != nil {
			p.t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

func rowOf(f *engine.Found, done, started uint32) notify.Row {
	e := &f.Envelope
	return notify.Row{
		Key: e.Key(), Count: e.Count, Digest: notify.ColumnDigest(e.Receivers), DoneUpTo: done, StartedUpTo: started, Starts: 1,
		Default: notify.Exception{State: notify.Sent}, Updated: 40, Topic: f.Topic, LogPart: f.LogPart, Offset: f.Offset,
	}
}

// TestOneRecordAChunk: findings of one chunk are repaired by one record, behind one
// claim of all that nobody knows about, whatever page they are in.
func TestOneRecordAChunk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t)
		f, ids := p.chunk(6, notify.Push)
		p.put(rowOf(&f, 2, 4))
		p.drifts(ids[2], api.DriftClaimGone, 40)
		p.drifts(ids[3], api.DriftClaimGone, 40)
		p.drifts(ids[4], api.DriftRecordGone, 40)
		p.drifts(ids[5], api.DriftRecordGone, 40)
		g, alone := p.chunk(2, notify.SMS) // no row
		p.drifts(alone[0], api.DriftRecordGone, 0)
		p.drifts(alone[1], api.DriftRecordGone, 0)
		fs, rep := p.report()
		if fs.Listed != 6 || fs.Mend != 6 || rep.Counts[ClaimExpired] != 2 || rep.Counts[RecordAlone] != 4 || rep.Notifications != 7 {
			t.Fatalf("%+v", rep)
		}
		// What the log sees, the claim is there before.
		claimed := map[notify.Chunk]bool{}
		p.build(func(string) {
			for _, c := range []engine.Found{f, g} {
				rows, err := p.store.Status().Chunk(t.Context(), c.Envelope.Chunk)
				claimed[c.Envelope.Chunk] = err == nil && len(rows) == 1 && rows[0].StartedUpTo == c.Envelope.Count && rows[0].Updated == rep.Made && !rows[0].Done && len(p.recs) == 0
			}
		})
		for id, why := range p.apply(fs.Report) {
			if why != "" {
				t.Errorf("%s: %s", id, why)
			}
		}
		if !claimed[f.Envelope.Chunk] || !claimed[g.Envelope.Chunk] {
			t.Errorf("claimed before the records: %v", claimed)
		}
		rows, _ := p.store.Status().Chunk(t.Context(), f.Envelope.Chunk)
		if rows[0].DoneUpTo != 2 || rows[0].Default.State != notify.Sent {
			t.Errorf("what had an outcome: %+v", rows[0])
		}
		sent := p.sent()
		if len(sent) != 2 {
			t.Fatalf("%d records", len(sent))
		}
		for i, e := range sent {
			want := f
			if e.Chunk == g.Envelope.Chunk {
				want = g
			}
			if e.Key() != want.Envelope.Key() || notify.ColumnDigest(e.Receivers) != notify.ColumnDigest(want.Envelope.Receivers) ||
				p.recs[i].Topic != want.Envelope.Lane().Topic() || p.recs[i].Partition != 5 {
				t.Errorf("record %d: %+v", i, p.recs[i])
			}
		}
	})
}

// TestReplayedOnes go as their replay did: one receiver, under its epoch.
func TestReplayedOnes(t *testing.T) {
	t.Parallel()
	p := newPlant(t)
	f, ids := p.chunk(3, notify.Push)
	first := rowOf(&f, 3, 3)
	first.Done, first.Default.State = true, notify.Failed
	e := deadletter.ReplayEnvelope(&f, ids[1].Index, 2)
	again := notify.Row{Key: e.Key(), Count: 1, Digest: notify.ColumnDigest(e.Receivers), Index: []uint32{ids[1].Index}, StartedUpTo: 1, Starts: 1, Updated: 50}
	p.put(first, again)
	p.drifts(ids[1], api.DriftClaimGone, 50)
	fs, _ := p.report()
	if why := p.apply(fs.Report); why[ids[1].String()] != "" {
		t.Fatal(why)
	}
	sent := p.sent()
	if len(sent) != 1 || sent[0].Key() != again.Key || notify.ColumnDigest(sent[0].Receivers) != again.Digest || p.recs[0].Topic != f.Envelope.Lane().DLQTopic() {
		t.Errorf("%+v %+v", sent, p.recs)
	}
}

// TestAHandedOnOne is not claimed: its row says what went on.
func TestAHandedOnOne(t *testing.T) {
	t.Parallel()
	p := newPlant(t)
	f, ids := p.chunk(2, notify.Push)
	row := rowOf(&f, 2, 2)
	row.Done, row.Default = true, notify.Exception{State: notify.Deferred, Wake: 5}
	p.put(row)
	p.drifts(ids[0], api.DriftHandonGone, 40)
	fs, _ := p.report()
	p.apply(fs.Report)
	rows, _ := p.store.Status().Chunk(t.Context(), f.Envelope.Chunk)
	if len(p.recs) != 1 || len(rows) != 1 || rows[0].Updated != 40 || !rows[0].Done {
		t.Errorf("%d records, %+v", len(p.recs), rows)
	}
}

// TestWhatChanged is left alone: it ended, moved, or is no longer kept.
func TestWhatChanged(t *testing.T) {
	t.Parallel()
	p := newPlant(t)
	_, ids := p.chunk(4, notify.Push)
	for _, id := range ids {
		p.drifts(id, api.DriftClaimGone, 40)
	}
	fs, _ := p.report()
	delete(p.drift, ids[0])                   // ended
	p.drifts(ids[1], api.DriftClaimGone, 41)  // somebody was at it
	p.drifts(ids[2], api.DriftHandonGone, 40) // it stands elsewhere
	delete(p.kept, ids[3])                    // aged out
	got := p.apply(fs.Report)
	for _, id := range ids {
		if got[id.String()] != deadletter.SkipChanged {
			t.Errorf("%v: %q", id, got[id.String()])
		}
	}
	if len(p.recs) != 0 {
		t.Errorf("%d records", len(p.recs))
	}
}

// TestADeathBetweenClaimAndRecord: the same report goes on; a new one finds it
// claimed.
func TestADeathBetweenClaimAndRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t)
		f, ids := p.chunk(2, notify.Push)
		p.drifts(ids[0], api.DriftRecordGone, 0)
		fs, rep := p.report()
		p.build(func(name string) {
			if name == "reconcile-claimed-before-append" {
				runtime.Goexit()
			}
		})
		dead := make(chan struct{})
		go func() {
			defer close(dead)
			_, _ = p.r.Apply(context.Background(), fs.Report, 0, 1)
			t.Error("it lives")
		}()
		<-dead
		rows, err := p.store.Status().Chunk(t.Context(), f.Envelope.Chunk)
		if err != nil || len(rows) != 1 || rows[0].Updated != rep.Made || len(p.recs) != 0 {
			t.Fatalf("%+v, %d records, %v", rows, len(p.recs), err)
		}
		p.build(nil)
		p.drifts(ids[0], api.DriftClaimGone, rep.Made) // as an audit sees it now
		if why := p.apply(fs.Report); why[ids[0].String()] != "" || len(p.recs) != 1 {
			t.Errorf("%v, %d records", why, len(p.recs))
		}
		// The worker is at it: nothing of that report may touch its row any more.
		worked := rows[0]
		worked.DoneUpTo, worked.Updated = 1, rep.Made+5
		p.put(worked)
		delete(p.drift, ids[0])
		if why := p.apply(fs.Report); why[ids[0].String()] != deadletter.SkipChanged || len(p.recs) != 1 {
			t.Errorf("%v, %d records", why, len(p.recs))
		}
		if rows, _ = p.store.Status().Chunk(t.Context(), f.Envelope.Chunk); rows[0].DoneUpTo != 1 {
			t.Errorf("%+v", rows)
		}
	})
}

// TestLate: of the timers in minutes that are over by more than the grace, those
// of notifications that still count are found, and left to a scheduler.
func TestLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t)
		time.Sleep(24 * time.Hour)
		now := time.Now()
		want := map[string]string{}
		n := byte(0)
		add := func(ago time.Duration, kind uint8, edit func(*engine.Timer), late bool) {
			t.Helper()
			f, ids := p.chunk(2, notify.Push)
			n++
			tm := engine.Timer{FireAt: now.Add(-ago).UnixMilli(), ID: []byte{n, 1}, Kind: kind, Target: "x", Payload: notify.AppendEnvelope(nil, &f.Envelope)}
			if edit != nil {
				edit(&tm)
			}
			if err := p.store.Timers().Put(t.Context(), notify.SpreadOver(shards), []engine.Timer{tm}); err != nil {
				t.Fatal(err)
			}
			if late {
				want[ids[0].String()] = Late
			}
		}
		head := func(state engine.ScheduleState, gen uint32) func(*engine.Timer) {
			return func(tm *engine.Timer) {
				tm.Head = notify.NewBase(now).Item(int(n))
				tm.Gen = 1
				if gen > 0 {
					p.views[tm.Head] = schedule.View{State: state, Gen: gen}
				}
			}
		}
		add(16*time.Minute, timer.KindEnvelope, nil, true)
		add(5*time.Hour, timer.KindEnvelope, nil, true)
		add(14*time.Minute, timer.KindEnvelope, nil, false)
		add(-time.Minute, timer.KindEnvelope, nil, false)
		add(time.Hour, engine.TimerOfTrigger, nil, false)
		add(time.Hour, timer.KindEnvelope, head(engine.SchedulePending, 1), true)
		add(time.Hour, timer.KindEnvelope, head(engine.SchedulePending, 2), false) // moved
		add(time.Hour, timer.KindEnvelope, head(engine.ScheduleCancelled, 1), false)
		add(time.Hour, timer.KindEnvelope, head(engine.SchedulePending, 0), false) // forgotten
		fs, rep := p.report()
		got := map[string]string{}
		for _, f := range rep.Findings {
			if f.Kind == KindNotification {
				got[f.ID] = f.Class
			}
		}
		others := rep.Counts[OpenBucket] + rep.Counts[Unreadable]
		if !maps.Equal(got, want) || rep.Counts[Late] != 6 || fs.Mend != 0 || fs.Listed != 3+others || rep.Counts[Unreadable] != 1 || others < 2 {
			t.Errorf("%v, want %v; %+v", got, want, rep.Counts)
		}
		for id, why := range p.apply(fs.Report) {
			if why != deadletter.SkipPeople {
				t.Errorf("%s: %q", id, why)
			}
		}
	})
}

// TestEveryClass: what each source finds has its class, and what can be repaired of
// it is.
func TestEveryClass(t *testing.T) {
	t.Parallel()
	p := newPlant(t)
	p.triggers = Report{Rows: 9}
	mends := map[string]bool{}
	for class, mended := range map[string]bool{
		Late: true, ClaimExpired: true, Missing: true, LetterOwed: true, Orphan: false, OpenBucket: false, Unreadable: false,
	} {
		p.triggers.Findings = append(p.triggers.Findings, Finding{Kind: KindTrigger, Class: class, ID: "trg_" + class, Version: 1})
		mends["trg_"+class] = mended
	}
	p.triggers.Findings = append(p.triggers.Findings, Finding{Kind: KindTrigger, Class: Late, ID: "trg_changed", Version: 2})
	_, ids := p.chunk(3, notify.Push)
	for i, class := range []string{api.DriftRecordGone, api.DriftClaimGone, api.DriftHandonGone} {
		p.drifts(ids[i], class, 0)
		mends[ids[i].String()] = true
	}
	for _, class := range []string{api.DriftScheduleGone, api.DriftRowAlone} {
		p.others = append(p.others, api.Drift{Class: class, ID: "ntf_" + class})
	}
	fs, rep := p.report()
	want := map[string]int{Missing: 2, Late: 2, Stuck: 1, Orphan: 1, ClaimExpired: 2, OpenBucket: 1, StatusAlone: 1, RecordAlone: 1, LetterOwed: 1, Unreadable: 1}
	if !maps.Equal(rep.Counts, want) || fs.Listed != 13 || fs.Mend != 8 {
		t.Errorf("%v, %d listed, %d to repair", rep.Counts, fs.Listed, fs.Mend)
	}
	for id, why := range p.apply(fs.Report) {
		expected := deadletter.SkipPeople
		switch {
		case mends[id]:
			expected = ""
		case id == "trg_changed":
			expected = deadletter.SkipChanged
		}
		if why != expected {
			t.Errorf("%s: %q, want %q", id, why, expected)
		}
	}
	if len(p.fixed) != 4 || len(p.recs) != 1 {
		t.Errorf("%d triggers, %d records", len(p.fixed), len(p.recs))
	}
	// In pages, each finding is of one page.
	p.fixed, p.recs = nil, nil
	sum := 0
	for at := 0; at < fs.Listed; at += 4 {
		done, err := p.r.Apply(t.Context(), fs.Report, at, 4)
		if err != nil {
			t.Fatal(err)
		}
		sum += len(done)
	}
	if sum != fs.Listed || len(p.fixed) != 4 {
		t.Errorf("%d in pages, %d triggers", sum, len(p.fixed))
	}
}

func TestReports(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t)
		_, ids := p.chunk(5, notify.Push)
		for _, id := range ids {
			p.drifts(id, api.DriftRecordGone, 0)
		}
		p.cfg.MaxListed = 3
		p.build(nil)
		since := time.Now().Add(-time.Hour)
		fs, err := p.r.Report(t.Context(), since)
		if err != nil || fs.Listed != 3 || fs.Counts[RecordAlone] != 5 || !strings.Contains(string(fs.Report), `"truncated":true`) || !p.since.Equal(since) {
			t.Errorf("%+v, %v", fs, err)
		}
		refused := func(report, code string, kind notify.Kind) {
			t.Helper()
			_, err := p.r.Check(json.RawMessage(report))
			if e, ok := errors.AsType[*notify.Error](err); !ok || e.Code != code || e.Kind != kind || e.Field != "report" {
				t.Errorf("%s: %v", code, err)
			}
		}
		refused(`{}`, "bad_report", notify.KindInvalid)
		refused(`[`, "bad_report", notify.KindInvalid)
		refused(strings.Replace(string(fs.Report), `"ACCEPTED"`, `"SENT"`, 1), "bad_digest", notify.KindInvalid)
		if _, err := p.r.Apply(t.Context(), json.RawMessage(`{}`), 0, 1); err == nil {
			t.Error("applied")
		}
		p.away = notify.Unavailable("log", 0, nil)
		if _, err := p.r.Apply(t.Context(), fs.Report, 0, 10); notify.KindOf(err) != notify.KindUnavailable {
			t.Errorf("the log is away: %v", err)
		}
		time.Sleep(15*time.Minute + time.Second)
		refused(string(fs.Report), "stale_report", notify.KindConflict)
	})
}
