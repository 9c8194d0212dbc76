package store

import (
	"bytes"
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
)

// Jobs keeps jobs and their reports.
//
// It keeps a partition for each kind and name: the job that has the name, and its
// report. One more partition says of each id which kind and name its job has. It is
// written before the job and removed behind it, so it may name a job that is not there.
type Jobs struct{ rows rows.Partitions }

// JobsOver returns the jobs over p.
func JobsOver(p rows.Partitions) *Jobs { return &Jobs{p} }

const (
	jobKey      = "j"
	entryPrefix = "e"
	maxJobID    = 1 << 10 // bytes, also of a kind
	maxJobName  = 1 << 15
)

func partOfJob(j *engine.Job) rows.Part {
	return rows.Part{Table: tableJobs.Table, Name: strconv.Quote(j.Kind) + j.Name}
}

// jobRows returns the rows of a job and of entries of its report. Of two entries with one
// place the last one counts.
func jobRows(j *engine.Job, entries []engine.JobEntry) ([]rows.Row, error) {
	v, err := pack("bad_job", "job", j)
	if err != nil {
		return nil, err
	}
	out := []rows.Row{{Key: jobKey, Value: v}}
	last := map[uint64]int{}
	for i := range entries {
		last[entries[i].At] = i
	}
	for i, e := range entries {
		if last[e.At] == i {
			out = append(out, rows.Row{Key: entryPrefix + num(e.At), Value: present(e.Doc)})
		}
	}
	return out, nil
}

// in returns the job of a partition, nil if there is none, and its row.
func (j *Jobs) in(ctx context.Context, part rows.Part) (*engine.Job, []rows.Row, error) {
	job, stored, err := load[engine.Job](ctx, j.rows, part, jobKey)
	if err != nil || stored == nil {
		return nil, []rows.Row{{Key: jobKey}}, err
	}
	return &job, []rows.Row{{Key: jobKey, Value: stored}}, nil
}

// find returns the job that has an id, nil if there is none, its partition and its row.
func (j *Jobs) find(ctx context.Context, id string) (*engine.Job, rows.Part, []rows.Row, error) {
	part := rows.Part{Table: tableJobs.Table}
	name, err := j.rows.Get(ctx, tableJobs, id)
	if err != nil || name[0] == nil {
		return nil, part, nil, err
	}
	part.Name = string(name[0])
	job, row, err := j.in(ctx, part)
	if job != nil && job.ID != id {
		job = nil
	}
	return job, part, row, err
}

// changeID stores which partition an id has, nil for none, if it has another one.
func (j *Jobs) changeID(ctx context.Context, id string, from, to []byte) (bool, error) {
	return j.rows.Swap(ctx, rows.Change{Part: tableJobs, If: []rows.Row{{Key: id, Value: from}}, Do: []rows.Row{{Key: id, Value: to}}})
}

// Create stores a job, or returns the one that has its (Kind, Name) and false. The
// entries are stored with it, both or none. Its id must never have been used, not even
// by a job that was dropped: Create may refuse it then (notify.KindConflict).
func (j *Jobs) Create(ctx context.Context, in engine.Job, entries ...engine.JobEntry) (engine.Job, bool, error) {
	none, part := engine.Job{}, partOfJob(&in)
	if in.ID == "" || len(in.ID) > maxJobID || len(in.Kind) > maxJobID || len(in.Name) > maxJobName {
		return none, false, notify.Invalid("bad_job", "id", "a job has an id of 1 to 1,024 bytes, a kind and a name")
	}
	end, err := j.rows.Turn(ctx, part)
	if err != nil {
		return none, false, err
	}
	defer end()
	in.Version = 1
	do, err := jobRows(&in, entries)
	if err != nil {
		return none, false, err
	}
	name, claimed := []byte(part.Name), false
	for {
		old, row, err := j.in(ctx, part)
		if err != nil {
			return none, false, err
		}
		if old != nil {
			if claimed && old.ID != in.ID {
				_, err = j.changeID(ctx, in.ID, name, nil)
			}
			return *old, false, err
		}
		won, err := j.changeID(ctx, in.ID, nil, name)
		if err != nil {
			return none, false, err
		}
		if !won {
			got, err := j.rows.Get(ctx, tableJobs, in.ID)
			if err != nil {
				return none, false, err
			}
			if !bytes.Equal(got[0], name) {
				return none, false, &notify.Error{Kind: notify.KindConflict, Code: "job_exists", Msg: "another job has this id"}
			}
		}
		claimed = true
		won, err = j.rows.Swap(ctx, rows.Change{Part: part, If: row, Do: do})
		if err != nil {
			return none, false, err
		}
		if won {
			return in, true, nil
		}
	}
}

// change looks for the job that has an id and a version, and swaps what to makes of it.
func (j *Jobs) change(ctx context.Context, id string, version uint64, to func(*engine.Job) (rows.Change, error)) error {
	end, err := j.rows.Turn(ctx, rows.Part{Table: tableJobs.Table, Name: id})
	if err != nil {
		return err
	}
	defer end()
	old, part, row, err := j.find(ctx, id)
	if err == nil && (old == nil || old.Version != version) {
		err = changed("job_changed", "job")
	}
	if err != nil {
		return err
	}
	c, err := to(old)
	if err != nil {
		return err
	}
	c.Part, c.If = part, row
	won, err := j.rows.Swap(ctx, c)
	if err == nil && !won {
		err = changed("job_changed", "job")
	}
	return err
}

// Put stores in if the stored version is in.Version; else notify.KindConflict. The
// entries are stored with it, both or none.
func (j *Jobs) Put(ctx context.Context, in engine.Job, entries ...engine.JobEntry) (engine.Job, error) {
	err := j.change(ctx, in.ID, in.Version, func(old *engine.Job) (c rows.Change, err error) {
		in.Kind, in.Name, in.Created = old.Kind, old.Name, old.Created // its identity
		in.Version++
		c.Do, err = jobRows(&in, entries)
		return c, err
	})
	if err != nil {
		return engine.Job{}, err
	}
	return in, nil
}

// Get returns the job of an id.
func (j *Jobs) Get(ctx context.Context, id string) (engine.Job, bool, error) {
	job, _, _, err := j.find(ctx, id)
	if err != nil || job == nil {
		return engine.Job{}, false, err
	}
	return *job, true, nil
}

// Drop forgets a job, its name and its entries, all or none, if the stored version is
// version; else, and for no job, notify.KindConflict.
func (j *Jobs) Drop(ctx context.Context, id string, version uint64) error {
	var name []byte
	err := j.change(ctx, id, version, func(old *engine.Job) (rows.Change, error) {
		name = []byte(partOfJob(old).Name)
		return rows.Change{Do: []rows.Row{{Key: jobKey}}, Clear: []string{entryPrefix}}, nil
	})
	if err == nil {
		_, err = j.changeID(ctx, id, name, nil)
	}
	return err
}

// Entries returns a job's entries with At > after, ascending.
func (j *Jobs) Entries(ctx context.Context, id string, after uint64, max int) ([]engine.JobEntry, error) {
	job, part, _, err := j.find(ctx, id)
	if err != nil || job == nil {
		return nil, err
	}
	in := rows.Range{Prefix: entryPrefix, After: entryPrefix + num(after)}
	return list(ctx, j.rows, part, in, max, func(r rows.Row) (engine.JobEntry, error) {
		return engine.JobEntry{At: numberAt(r.Key), Doc: bytes.Clone(r.Value)}, nil
	})
}

// List returns jobs, newest first. It reads all: there are few. Operators list them every
// second, so it scans.
func (j *Jobs) List(ctx context.Context, max int) ([]engine.Job, error) {
	names, err := list(ctx, j.rows, tableJobs, rows.Range{}, math.MaxInt, func(r rows.Row) (rows.Row, error) {
		return rows.Row{Key: r.Key, Value: bytes.Clone(r.Value)}, nil
	})
	if err != nil {
		return nil, err
	}
	found, err := together(names, func(name rows.Row) (engine.Job, error) {
		part := rows.Part{Table: tableJobs.Table, Name: string(name.Value)}
		jobs, err := list(ctx, j.rows, part, rows.Range{Prefix: jobKey}, 1, unpack[engine.Job])
		if err != nil || len(jobs) == 0 || jobs[0].ID != name.Key {
			return engine.Job{}, err
		}
		return jobs[0], nil
	})
	if err != nil {
		return nil, err
	}
	all := slices.DeleteFunc(found, func(job engine.Job) bool { return job.ID == "" })
	slices.SortFunc(all, func(a, b engine.Job) int {
		return cmp.Or(cmp.Compare(b.Created, a.Created), cmp.Compare(b.ID, a.ID))
	})
	return all[:min(len(all), max)], nil
}
