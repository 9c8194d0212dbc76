package pebble

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"math"
	"slices"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Jobs returns the contract of operations jobs. There are few: they are listed
// by reading all.
func (s *Store) Jobs() engine.Jobs { return jobs{s} }

type jobs struct{ s *Store }

func jobNameKey(kind, name string) []byte {
	return append(appendStr([]byte{tJobName}, kind), name...)
}

func (j jobs) Create(ctx context.Context, in engine.Job, entries ...engine.JobEntry) (engine.Job, bool, error) {
	if in.ID == "" || len(in.ID) > 1<<16-1 || len(in.Kind) > 1<<16-1 {
		return engine.Job{}, false, notify.Invalid("bad_job", "id", "a job has an id and a kind")
	}
	nameKey, idKey := jobNameKey(in.Kind, in.Name), key(tJob, in.ID)
	unlock, err := j.s.locks.lock(ctx, string(nameKey), string(idKey))
	if err != nil {
		return engine.Job{}, false, err
	}
	old, ok, err := j.existing(ctx, nameKey, in.ID)
	if err != nil || ok {
		unlock()
		return old, false, err
	}
	in.Version = 1
	v, err := json.Marshal(in)
	if err != nil {
		unlock()
		return engine.Job{}, false, notify.Invalid("bad_job", "", "the job cannot be stored")
	}
	err = j.s.commit.write(ctx, func(tx tx) {
		tx.set(nameKey, []byte(in.ID))
		tx.set(idKey, v)
		tx.entries(in.ID, entries)
	}, func(error) { unlock() })
	if err != nil {
		return engine.Job{}, false, err
	}
	return in, true, nil
}

// existing returns the job that has the name; a taken id is a conflict.
func (j jobs) existing(ctx context.Context, nameKey []byte, id string) (engine.Job, bool, error) {
	holder, err := j.s.get(nameKey)
	if err != nil {
		return engine.Job{}, false, err
	}
	if holder != nil {
		return j.Get(ctx, string(holder))
	}
	if _, taken, err := j.Get(ctx, id); err != nil || taken {
		if err == nil {
			err = &notify.Error{Kind: notify.KindConflict, Code: "job_exists", Msg: "another job has this id"}
		}
		return engine.Job{}, false, err
	}
	return engine.Job{}, false, nil
}

func jobEntryKey(id string, at uint64) []byte {
	return binary.BigEndian.AppendUint64(appendStr([]byte{tJobEntry}, id), at)
}

func (t tx) entries(id string, entries []engine.JobEntry) {
	for i := range entries {
		t.set(jobEntryKey(id, entries[i].At), entries[i].Doc)
	}
}

func (j jobs) Put(ctx context.Context, in engine.Job, entries ...engine.JobEntry) (engine.Job, error) {
	k := key(tJob, in.ID)
	unlock, err := j.s.locks.lock(ctx, string(k))
	if err != nil {
		return engine.Job{}, err
	}
	old, ok, err := j.Get(ctx, in.ID)
	if err == nil && (!ok || old.Version != in.Version) {
		err = &notify.Error{Kind: notify.KindConflict, Code: "job_changed", Msg: "the job was changed since it was read"}
	}
	if err != nil {
		unlock()
		return engine.Job{}, err
	}
	in.Kind, in.Name, in.Created = old.Kind, old.Name, old.Created // its identity
	in.Version++
	v, err := json.Marshal(in)
	if err != nil {
		unlock()
		return engine.Job{}, notify.Invalid("bad_job", "", "the job cannot be stored")
	}
	err = j.s.commit.write(ctx, func(tx tx) {
		tx.set(k, v)
		tx.entries(in.ID, entries)
	}, func(error) { unlock() })
	if err != nil {
		return engine.Job{}, err
	}
	return in, nil
}

func (j jobs) Get(_ context.Context, id string) (out engine.Job, ok bool, err error) {
	k := key(tJob, id)
	v, err := j.s.get(k)
	if err != nil || v == nil {
		return out, false, err
	}
	if json.Unmarshal(v, &out) != nil {
		return engine.Job{}, false, corrupt("job", k)
	}
	return out, true, nil
}

func (j jobs) Drop(ctx context.Context, id string, version uint64) error {
	changed := &notify.Error{Kind: notify.KindConflict, Code: "job_changed", Msg: "the job was changed since it was read"}
	old, ok, err := j.Get(ctx, id)
	if err == nil && !ok {
		err = changed
	}
	if err != nil {
		return err
	}
	k, nameKey := key(tJob, id), jobNameKey(old.Kind, old.Name) // its name never changes
	unlock, err := j.s.locks.lock(ctx, string(nameKey), string(k))
	if err != nil {
		return err
	}
	if old, ok, err = j.Get(ctx, id); err == nil && (!ok || old.Version != version) {
		err = changed
	}
	if err != nil {
		unlock()
		return err
	}
	entries := under(appendStr([]byte{tJobEntry}, id))
	return j.s.commit.write(ctx, func(tx tx) {
		tx.delete(nameKey)
		tx.delete(k)
		tx.deleteRange(entries.From, entries.To)
	}, func(error) { unlock() })
}

func (j jobs) Entries(ctx context.Context, id string, behind uint64, max int) (out []engine.JobEntry, err error) {
	if max <= 0 || behind == math.MaxUint64 || len(id) > 1<<16-1 {
		return nil, nil
	}
	all := under(appendStr([]byte{tJobEntry}, id))
	err = j.s.each(span{jobEntryKey(id, behind+1), all.To}, func(k, v []byte) (bool, error) {
		out = append(out, engine.JobEntry{At: binary.BigEndian.Uint64(k[len(k)-8:]), Doc: bytes.Clone(v)})
		return len(out) < max, ctx.Err()
	})
	return out, translate(err)
}

func (j jobs) List(ctx context.Context, max int) ([]engine.Job, error) {
	var all []engine.Job
	err := j.s.each(under([]byte{tJob}), func(k, v []byte) (bool, error) {
		var one engine.Job
		if json.Unmarshal(v, &one) != nil {
			return false, corrupt("job", k)
		}
		all = append(all, one)
		return true, ctx.Err()
	})
	if err != nil {
		return nil, translate(err)
	}
	slices.SortFunc(all, func(a, b engine.Job) int {
		return cmp.Or(cmp.Compare(b.Created, a.Created), cmp.Compare(b.ID, a.ID))
	})
	return all[:min(len(all), max)], nil
}
