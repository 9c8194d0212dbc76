package cassandra

import (
	"context"
	"encoding/json"
	"math"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

type jobs struct{ s *Store }

// birth is what a name's row holds until its job is there.
type birth struct {
	Job     engine.Job
	Entries []engine.JobEntry
}

func jobChanged() error {
	return &notify.Error{Kind: notify.KindConflict, Code: "job_changed", Msg: "the job was changed since it was read"}
}

func jobExists() error {
	return &notify.Error{Kind: notify.KindConflict, Code: "job_exists", Msg: "another job has this id"}
}

// ordinal maps an entry's place to a column that sorts the same.
func ordinal(at uint64) int64 { return int64(at ^ 1<<63) }

// jobRow is a job's partition; it is there if version is not 0.
type jobRow struct {
	job     engine.Job
	version int64
	dropped bool
}

func (r *jobRow) lives() bool { return r.version > 0 && !r.dropped }

// row reads a job at SERIAL.
func (j jobs) row(ctx context.Context, id string) (jobRow, error) {
	return j.read(ctx, id, j.s.getSerial)
}

// at reads a job whose version is the one that the caller has read.
func (j jobs) at(ctx context.Context, id string, version uint64) (jobRow, error) {
	r, err := j.row(ctx, id)
	if err == nil && (!r.lives() || r.job.Version != version) {
		err = jobChanged()
	}
	return r, err
}

func (j jobs) read(ctx context.Context, id string, get func(context.Context, string, []any, ...any) (bool, error)) (r jobRow, err error) {
	if id == "" {
		return r, nil
	}
	var data []byte
	ok, err := get(ctx, `SELECT version, dropped, data FROM jobs WHERE id = ? LIMIT 1`, []any{id}, &r.version, &r.dropped, &data)
	if err != nil || !ok || r.version == 0 {
		return jobRow{}, err
	}
	if !r.dropped && json.Unmarshal(data, &r.job) != nil {
		return jobRow{}, corrupt("the job " + id)
	}
	return r, nil
}

type nameRow struct {
	id     string
	writer int64
	data   []byte
}

func (j jobs) name(ctx context.Context, kind, name string) (r nameRow, ok bool, err error) {
	ok, err = j.s.getSerial(ctx, `SELECT id, writer, data FROM job_names WHERE kind = ? AND name = ?`, []any{kind, name}, &r.id, &r.writer, &r.data)
	return r, ok, err
}

func (j jobs) free(ctx context.Context, kind, name, id string) error {
	_, err := j.s.settle(ctx, "name of a job", func() (verdict, error) {
		r, ok, err := j.name(ctx, kind, name)
		switch {
		case err != nil:
			return 0, err
		case ok && r.id == id:
			return undone, nil
		}
		return done, nil
	}, stmt{`DELETE FROM job_names WHERE kind = ? AND name = ? IF id = ?`, []any{kind, name, id}})
	return err
}

func (j jobs) Create(ctx context.Context, in engine.Job, entries ...engine.JobEntry) (engine.Job, bool, error) {
	none := engine.Job{}
	if in.ID == "" || len(in.ID) > 1<<10 || len(in.Kind) > 1<<15 || len(in.Name) > 1<<15 {
		return none, false, notify.Invalid("bad_job", "id", "a job has an id of 1 to 1,024 bytes, a kind and a name")
	}
	unlock, err := j.s.locks.lock(ctx, "job/"+in.Kind+"/"+in.Name)
	if err != nil {
		return none, false, err
	}
	defer unlock()
	in.Version = 1
	data, err := json.Marshal(birth{in, entries})
	if err != nil {
		return none, false, notify.Invalid("bad_job", "", "the job cannot be stored")
	}
	me := nonce()
	for range swapTries {
		holder, ok, err := j.name(ctx, in.Kind, in.Name)
		if err != nil {
			return none, false, err
		}
		if !ok {
			if taken, err := j.row(ctx, in.ID); err != nil || taken.version > 0 {
				if err == nil {
					err = jobExists()
				}
				return none, false, err
			}
			if err := j.claim(ctx, &in, me, data); err != nil {
				return none, false, err
			}
			continue // its job is missing, as if the claim had been interrupted here
		}
		r, err := j.row(ctx, holder.id)
		if err == nil && r.version == 0 {
			r, err = j.finish(ctx, in.Kind, in.Name, holder)
		}
		switch {
		case err != nil:
			return none, false, err
		case r.lives() && r.job.Kind == in.Kind && r.job.Name == in.Name:
			return r.job, holder.writer == me, nil
		case r.lives() && holder.id == in.ID:
			// Its id was taken between the look and the claim.
			if err := j.free(ctx, in.Kind, in.Name, holder.id); err != nil {
				return none, false, err
			}
			return none, false, jobExists()
		}
		// The job it names was dropped, or belongs to another name.
		if err := j.free(ctx, in.Kind, in.Name, holder.id); err != nil {
			return none, false, err
		}
	}
	return none, false, unsettled("job " + in.ID)
}

// claim takes a name for a job, unless it is taken.
func (j jobs) claim(ctx context.Context, in *engine.Job, me int64, data []byte) error {
	_, err := j.s.swap(ctx, swap{
		what: "name of a job", to: me, writer: me, elseLost: true,
		look: stmt{`SELECT writer, writer FROM job_names WHERE kind = ? AND name = ?`, []any{in.Kind, in.Name}},
	}, stmt{`INSERT INTO job_names (kind, name, id, writer, data) VALUES (?, ?, ?, ?, ?) IF NOT EXISTS`, []any{in.Kind, in.Name, in.ID, me, data}})
	return err
}

// finish makes the job that a name's row describes, and returns what is there in
// the end.
func (j jobs) finish(ctx context.Context, kind, name string, n nameRow) (jobRow, error) {
	var b birth
	if json.Unmarshal(n.data, &b) != nil {
		return jobRow{}, corrupt("the name of the job " + n.id)
	}
	err := j.s.write(ctx, j.s.clock.now(), stmt{`INSERT INTO jobs_by_time (part, created, id) VALUES (0, ?, ?)`, []any{b.Job.Created, n.id}})
	if err != nil {
		return jobRow{}, err
	}
	if _, err := j.put(ctx, &b.Job, 0, n.writer, b.Entries); err != nil {
		return jobRow{}, err
	}
	return j.row(ctx, n.id)
}

// jobSwap changes a job's partition, which has the version old.
func jobSwap(id string, old, writer int64) swap {
	return swap{
		what: "job " + id, from: old, to: old + 1, writer: writer,
		look: stmt{`SELECT version, writer FROM jobs WHERE id = ? LIMIT 1`, []any{id}},
	}
}

// put swaps a job's partition if its version is old (0: there is none).
func (j jobs) put(ctx context.Context, in *engine.Job, old, me int64, entries []engine.JobEntry) (bool, error) {
	data, err := json.Marshal(in)
	if err != nil {
		return false, notify.Invalid("bad_job", "", "the job cannot be stored")
	}
	stmts := []stmt{{`UPDATE jobs SET version = ?, writer = ?, data = ? WHERE id = ? IF version = ?`, []any{int64(in.Version), me, data, in.ID, orNull(old)}}}
	last := map[uint64]int{}
	for i := range entries {
		last[entries[i].At] = i
	}
	for i := range entries {
		if last[entries[i].At] != i {
			continue // the same again replaces
		}
		doc := entries[i].Doc
		if doc == nil {
			doc = []byte{}
		}
		stmts = append(stmts, stmt{`INSERT INTO jobs (id, at, doc) VALUES (?, ?, ?)`, []any{in.ID, ordinal(entries[i].At), doc}})
	}
	return j.s.swap(ctx, jobSwap(in.ID, old, me), stmts...)
}

func (j jobs) Put(ctx context.Context, in engine.Job, entries ...engine.JobEntry) (engine.Job, error) {
	unlock, err := j.s.locks.lock(ctx, "job/"+in.ID)
	if err != nil {
		return engine.Job{}, err
	}
	defer unlock()
	old, err := j.at(ctx, in.ID, in.Version)
	if err != nil {
		return engine.Job{}, err
	}
	in.Kind, in.Name, in.Created = old.job.Kind, old.job.Name, old.job.Created // its identity
	in.Version++
	won, err := j.put(ctx, &in, old.version, nonce(), entries)
	if err == nil && !won {
		err = jobChanged()
	}
	if err != nil {
		return engine.Job{}, err
	}
	return in, nil
}

func (j jobs) Get(ctx context.Context, id string) (engine.Job, bool, error) {
	r, err := j.row(ctx, id)
	if err != nil || !r.lives() {
		return engine.Job{}, false, err
	}
	return r.job, true, nil
}

// Drop ends the job first; from then on it is forgotten, whatever else is left
// of it if the call is interrupted.
func (j jobs) Drop(ctx context.Context, id string, version uint64) error {
	unlock, err := j.s.locks.lock(ctx, "job/"+id)
	if err != nil {
		return err
	}
	defer unlock()
	old, err := j.at(ctx, id, version)
	if err != nil {
		return err
	}
	me := nonce()
	won, err := j.s.swap(ctx, jobSwap(id, old.version, me), stmt{`UPDATE jobs SET version = ?, writer = ?, dropped = true, data = null WHERE id = ? IF version = ?`, []any{old.version + 1, me, id, old.version}})
	if err == nil && !won {
		err = jobChanged()
	}
	if err != nil {
		return err
	}
	if err := j.free(ctx, old.job.Kind, old.job.Name, id); err != nil {
		return err
	}
	at := j.s.clock.now()
	err = j.s.write(ctx, at, stmt{`DELETE FROM jobs_by_time WHERE part = 0 AND created = ? AND id = ?`, []any{old.job.Created, id}})
	if err != nil {
		return err
	}
	// Entries have the timestamps of the servers, which may be ahead of ours. No
	// job of this id comes again, so none is newer than what is there.
	var newest int64
	if _, err := j.s.get(ctx, `SELECT max(writetime(doc)) FROM jobs WHERE id = ? AND at >= ?`, []any{id, int64(math.MinInt64)}, &newest); err != nil {
		return err
	}
	return j.s.write(ctx, max(at, newest), stmt{`DELETE FROM jobs WHERE id = ? AND at >= ?`, []any{id, int64(math.MinInt64)}})
}

func (j jobs) Entries(ctx context.Context, id string, after uint64, max int) (out []engine.JobEntry, err error) {
	if max <= 0 || id == "" || after == math.MaxUint64 {
		return nil, nil
	}
	if r, err := j.row(ctx, id); err != nil || !r.lives() {
		return nil, err
	}
	err = j.s.rows(ctx, func(scan func(...any) bool) error {
		for {
			var at int64
			var doc []byte
			if !scan(&at, &doc) {
				return nil
			}
			out = append(out, engine.JobEntry{At: uint64(at) ^ 1<<63, Doc: doc})
		}
	}, `SELECT at, doc FROM jobs WHERE id = ? AND at > ? LIMIT ?`, id, ordinal(after), max)
	return out, err
}

// List reads jobs as of every swap answered before: operators list them every
// second.
func (j jobs) List(ctx context.Context, max int) (out []engine.Job, err error) {
	if max <= 0 {
		return nil, nil
	}
	var ids []string
	err = j.s.rows(ctx, func(scan func(...any) bool) error {
		for id := ""; len(ids) < 2*max && scan(&id); {
			ids = append(ids, id)
		}
		return nil
	}, `SELECT id FROM jobs_by_time WHERE part = 0`)
	if err != nil {
		return nil, err
	}
	rows, err := readEach(ids, func(id string) (jobRow, error) { return j.read(ctx, id, j.s.get) })
	if err != nil {
		return nil, err
	}
	for i := range rows {
		if rows[i].lives() && len(out) < max {
			out = append(out, rows[i].job)
		}
	}
	return out, nil
}
