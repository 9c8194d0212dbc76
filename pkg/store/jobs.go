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
// Each job has a partition for its kind and name, with the job and its report. One more partition
// stores, for each job id, the kind and name of the job. This id row is written before the job and
// removed after the job. So an id row may exist without its job.
type Jobs struct{ rows rows.Partitions }

// JobsOver returns the Jobs that are stored in p.
func JobsOver(p rows.Partitions) *Jobs { return &Jobs{p} }

const (
	jobKey      = "j"
	entryPrefix = "e"
	maxJobID    = 1 << 10 // longest id and longest kind of a job, in bytes
	maxJobName  = 1 << 15
)

func partOfJob(j *engine.Job) rows.Partition {
	return rows.Partition{Table: tableJobs.Table, Name: strconv.Quote(j.Kind) + j.Name}
}

// jobRows returns the row of a job and the rows of report entries. If several entries have the same
// At, only the last of them is stored.
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
			out = append(out, rows.Row{Key: entryPrefix + num(e.At), Value: nonNil(e.Doc)})
		}
	}
	return out, nil
}

// jobInPart returns the job in the partition part, or nil if there is no job. It also returns the
// stored row of the job, for the condition of a later swap.
func (j *Jobs) jobInPart(ctx context.Context, part rows.Partition) (*engine.Job, []rows.Row, error) {
	job, stored, err := loadRecord[engine.Job](ctx, j.rows, part, jobKey)
	if err != nil || stored == nil {
		return nil, []rows.Row{{Key: jobKey}}, err
	}
	return &job, []rows.Row{{Key: jobKey, Value: stored}}, nil
}

// jobByID returns the job with an id, or nil if there is no such job. It also returns the job's
// partition and its stored row, for the condition of a later swap.
func (j *Jobs) jobByID(ctx context.Context, id string) (*engine.Job, rows.Partition, []rows.Row, error) {
	part := rows.Partition{Table: tableJobs.Table}
	name, err := j.rows.Get(ctx, tableJobs, id)
	if err != nil || name[0] == nil {
		return nil, part, nil, err
	}
	part.Name = string(name[0])
	job, row, err := j.jobInPart(ctx, part)
	if job != nil && job.ID != id {
		job = nil
	}
	return job, part, row, err
}

// swapID changes the partition name that is stored for a job id from oldName to newName. A nil name
// means that nothing is stored for the id.
func (j *Jobs) swapID(ctx context.Context, id string, oldName, newName []byte) (bool, error) {
	return j.rows.Swap(ctx, rows.Change{Part: tableJobs, Expect: []rows.Row{{Key: id, Value: oldName}}, Set: []rows.Row{{Key: id, Value: newName}}})
}

// Create stores a job with its entries in one commit. If a job with the same (Kind, Name) exists,
// Create returns the existing job and false. The id in.ID must never have been used before, not
// even by a job that was dropped. Otherwise Create may return notify.KindConflict.
func (j *Jobs) Create(ctx context.Context, in engine.Job, entries ...engine.JobEntry) (engine.Job, bool, error) {
	none, part := engine.Job{}, partOfJob(&in)
	if in.ID == "" || len(in.ID) > maxJobID || len(in.Kind) > maxJobID || len(in.Name) > maxJobName {
		return none, false, notify.Invalid("bad_job", "id", "a job must have an id of 1 to 1,024 bytes, a kind of at most 1,024 bytes and a name of at most 32,768 bytes")
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
		old, row, err := j.jobInPart(ctx, part)
		if err != nil {
			return none, false, err
		}
		if old != nil {
			if claimed && old.ID != in.ID {
				_, err = j.swapID(ctx, in.ID, name, nil)
			}
			return *old, false, err
		}
		won, err := j.swapID(ctx, in.ID, nil, name)
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
		won, err = j.rows.Swap(ctx, rows.Change{Part: part, Expect: row, Set: do})
		if err != nil {
			return none, false, err
		}
		if won {
			return in, true, nil
		}
	}
}

// swapJob changes the job that has this id and version. It calls makeChange with the job and stores
// the change that makeChange returns. It returns notify.KindConflict if there is no such job or if
// the job has changed.
func (j *Jobs) swapJob(ctx context.Context, id string, version uint64, makeChange func(*engine.Job) (rows.Change, error)) error {
	end, err := j.rows.Turn(ctx, rows.Partition{Table: tableJobs.Table, Name: id})
	if err != nil {
		return err
	}
	defer end()
	old, part, row, err := j.jobByID(ctx, id)
	if err == nil && (old == nil || old.Version != version) {
		err = errChanged("job_changed", "job")
	}
	if err != nil {
		return err
	}
	c, err := makeChange(old)
	if err != nil {
		return err
	}
	c.Part, c.Expect = part, row
	won, err := j.rows.Swap(ctx, c)
	if err == nil && !won {
		err = errChanged("job_changed", "job")
	}
	return err
}

// Put stores a job and its entries in one commit. The parameter in is the job. If the stored
// version does not equal in.Version, Put returns notify.KindConflict.
func (j *Jobs) Put(ctx context.Context, in engine.Job, entries ...engine.JobEntry) (engine.Job, error) {
	err := j.swapJob(ctx, in.ID, in.Version, func(old *engine.Job) (c rows.Change, err error) {
		in.Kind, in.Name, in.Created = old.Kind, old.Name, old.Created // the identity of a job never changes
		in.Version++
		c.Set, err = jobRows(&in, entries)
		return c, err
	})
	if err != nil {
		return engine.Job{}, err
	}
	return in, nil
}

// Get returns the job with an id, or false if there is no such job.
func (j *Jobs) Get(ctx context.Context, id string) (engine.Job, bool, error) {
	job, _, _, err := j.jobByID(ctx, id)
	if err != nil || job == nil {
		return engine.Job{}, false, err
	}
	return *job, true, nil
}

// Drop removes a job, its entries and its id row. It returns notify.KindConflict if the stored
// version differs from the parameter version, or if the job does not exist.
func (j *Jobs) Drop(ctx context.Context, id string, version uint64) error {
	var name []byte
	err := j.swapJob(ctx, id, version, func(old *engine.Job) (rows.Change, error) {
		name = []byte(partOfJob(old).Name)
		return rows.Change{Set: []rows.Row{{Key: jobKey}}, Clear: []string{entryPrefix}}, nil
	})
	if err == nil {
		_, err = j.swapID(ctx, id, name, nil)
	}
	return err
}

// Entries returns up to max entries of a job whose At is greater than the parameter after, ascending.
func (j *Jobs) Entries(ctx context.Context, id string, after uint64, max int) ([]engine.JobEntry, error) {
	job, part, _, err := j.jobByID(ctx, id)
	if err != nil || job == nil {
		return nil, err
	}
	in := rows.Range{Prefix: entryPrefix, After: entryPrefix + num(after)}
	return scanList(ctx, j.rows, part, in, max, func(r rows.Row) (engine.JobEntry, error) {
		return engine.JobEntry{At: numberAt(r.Key), Doc: bytes.Clone(r.Value)}, nil
	})
}

// List returns up to max jobs, newest first. It reads all jobs, because there are few. It uses scans,
// which do not wait for running writes, because operators' screens list jobs every second.
func (j *Jobs) List(ctx context.Context, max int) ([]engine.Job, error) {
	names, err := scanList(ctx, j.rows, tableJobs, rows.Range{}, math.MaxInt, func(r rows.Row) (rows.Row, error) {
		return rows.Row{Key: r.Key, Value: bytes.Clone(r.Value)}, nil
	})
	if err != nil {
		return nil, err
	}
	found, err := getConcurrently(names, func(name rows.Row) (engine.Job, error) {
		part := rows.Partition{Table: tableJobs.Table, Name: string(name.Value)}
		jobs, err := scanList(ctx, j.rows, part, rows.Range{Prefix: jobKey}, 1, unpack[engine.Job])
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
