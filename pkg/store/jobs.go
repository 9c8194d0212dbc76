package store

import (
	"bytes"
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
)

type jobs struct{ rows rows.Rows }

func jobName(j *engine.Job) string { return "n" + str(j.Kind) + j.Name }

// jobRows returns the rows of a job and of entries of its report.
func jobRows(j *engine.Job, entries []engine.JobEntry) ([]rows.Row, error) {
	v, err := pack("bad_job", "job", j)
	if err != nil {
		return nil, err
	}
	out := []rows.Row{{Key: "j" + j.ID, Value: v}}
	for _, e := range entries {
		out = append(out, rows.Row{Key: "e" + str(j.ID) + num(e.At), Value: present(e.Doc)})
	}
	return out, nil
}

func (j jobs) Create(ctx context.Context, in engine.Job, entries ...engine.JobEntry) (engine.Job, bool, error) {
	if in.ID == "" || len(in.ID) > maxPart || len(in.Kind) > maxPart {
		return engine.Job{}, false, notify.Invalid("bad_job", "id", "a job has an id and a kind")
	}
	in.Version = 1
	do, err := jobRows(&in, entries)
	if err != nil {
		return engine.Job{}, false, err
	}
	name, id := jobName(&in), "j"+in.ID
	do = append(do, rows.Row{Key: name, Value: []byte(in.ID)})
	for {
		won, err := j.rows.Swap(ctx, rows.Change{Part: tableJobs, If: []rows.Row{{Key: name}, {Key: id}}, Do: do})
		if err != nil {
			return engine.Job{}, false, err
		}
		if won {
			return in, true, nil
		}
		got, err := j.rows.Get(ctx, tableJobs, name, id)
		switch {
		case err != nil:
			return engine.Job{}, false, err
		case got[0] != nil:
			if old, ok, err := j.Get(ctx, string(got[0])); ok || err != nil {
				return old, false, err
			}
		case got[1] != nil:
			return engine.Job{}, false, &notify.Error{Kind: notify.KindConflict, Code: "job_exists", Msg: "another job has this id"}
		}
	}
}

// at returns a job and its row if the stored version is version.
func (j jobs) at(ctx context.Context, id string, version uint64) (engine.Job, []rows.Row, error) {
	old, stored, err := load[engine.Job](ctx, j.rows, tableJobs, "j"+id)
	if err == nil && (stored == nil || old.Version != version) {
		err = changed("job_changed", "job")
	}
	return old, []rows.Row{{Key: "j" + id, Value: stored}}, err
}

func (j jobs) swap(ctx context.Context, old, do []rows.Row) error {
	won, err := j.rows.Swap(ctx, rows.Change{Part: tableJobs, If: old, Do: do})
	if err == nil && !won {
		err = changed("job_changed", "job")
	}
	return err
}

func (j jobs) Put(ctx context.Context, in engine.Job, entries ...engine.JobEntry) (engine.Job, error) {
	old, stored, err := j.at(ctx, in.ID, in.Version)
	if err != nil {
		return engine.Job{}, err
	}
	in.Kind, in.Name, in.Created = old.Kind, old.Name, old.Created // its identity
	in.Version++
	do, err := jobRows(&in, entries)
	if err == nil {
		err = j.swap(ctx, stored, do)
	}
	if err != nil {
		return engine.Job{}, err
	}
	return in, nil
}

func (j jobs) Get(ctx context.Context, id string) (engine.Job, bool, error) {
	job, stored, err := load[engine.Job](ctx, j.rows, tableJobs, "j"+id)
	return job, stored != nil && err == nil, err
}

// Drop reads which entries there are. One that is added meanwhile changes the job.
func (j jobs) Drop(ctx context.Context, id string, version uint64) error {
	old, stored, err := j.at(ctx, id, version)
	if err != nil {
		return err
	}
	do, err := removals(ctx, j.rows, tableJobs, rows.Range{Prefix: "e" + str(id)})
	if err != nil {
		return err
	}
	return j.swap(ctx, stored, append(do, rows.Row{Key: "j" + id}, rows.Row{Key: jobName(&old)}))
}

func (j jobs) Entries(ctx context.Context, id string, after uint64, max int) ([]engine.JobEntry, error) {
	if len(id) > maxPart {
		return nil, nil
	}
	in := rows.Range{Prefix: "e" + str(id), After: "e" + str(id) + num(after)}
	return list(ctx, j.rows, tableJobs, in, max, func(r rows.Row) (engine.JobEntry, error) {
		return engine.JobEntry{At: numberAt(r.Key), Doc: bytes.Clone(r.Value)}, nil
	})
}

func (j jobs) List(ctx context.Context, max int) ([]engine.Job, error) {
	all, err := list(ctx, j.rows, tableJobs, rows.Range{Prefix: "j"}, math.MaxInt, unpack[engine.Job])
	slices.SortFunc(all, func(a, b engine.Job) int {
		return cmp.Or(cmp.Compare(b.Created, a.Created), cmp.Compare(b.ID, a.ID))
	})
	return all[:min(len(all), max)], err
}
