package memory

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

type cancels struct{ *Store }

func (s cancels) Put(ctx context.Context, c engine.Cancel) (uint64, error) {
	if err := check(ctx); err != nil {
		return 0, err
	}
	if c.Scope == "" {
		return 0, notify.Invalid("bad_cancel", "scope", "a cancellation has a scope")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, old := range s.cancels {
		if old.Scope == c.Scope {
			return old.Version, nil
		}
	}
	c.Version = 1
	if n := len(s.cancels); n > 0 {
		c.Version = s.cancels[n-1].Version + 1
	}
	s.cancels = append(s.cancels, c)
	return c.Version, nil
}

func (s cancels) Get(ctx context.Context, scope string) (engine.Cancel, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.cancels, func(c engine.Cancel) bool { return c.Scope == scope })
	if i < 0 {
		return engine.Cancel{}, false, check(ctx)
	}
	return s.cancels[i], true, check(ctx)
}

func (s cancels) Changes(ctx context.Context, since uint64, max int) ([]engine.Cancel, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := slices.IndexFunc(s.cancels, func(c engine.Cancel) bool { return c.Version > since })
	if from < 0 {
		return nil, check(ctx)
	}
	rest := s.cancels[from:]
	return slices.Clone(rest[:clamp(len(rest), max)]), check(ctx)
}

type campaigns struct{ *Store }

type campaign struct {
	engine.Campaign
	seen map[uint32]bool
}

func (s campaigns) AddPart(ctx context.Context, id, caller string, part uint32, base notify.Base, accepted, rejected int64, at int64) error {
	if err := check(ctx); err != nil {
		return err
	}
	if id == "" {
		return notify.Invalid("bad_campaign", "campaign", "a campaign has an id")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.campaigns[id]
	switch {
	case c == nil:
		c = &campaign{engine.Campaign{ID: id, Caller: caller, Created: at}, map[uint32]bool{}}
		s.campaigns[id] = c
	case c.Caller != caller:
		return notify.NotFound("campaign")
	}
	if !c.seen[part] {
		c.seen[part] = true
		c.Parts++
		c.Accepted += accepted
		c.Rejected += rejected
		c.Bases = append(c.Bases, base)
	}
	return nil
}

func (s campaigns) Get(ctx context.Context, id string) (engine.Campaign, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.campaigns[id]
	if c == nil {
		return engine.Campaign{}, false, check(ctx)
	}
	out := c.Campaign
	out.Bases = slices.Clone(out.Bases)
	return out, true, check(ctx)
}

func (s campaigns) List(ctx context.Context, caller string, after engine.Campaign, max int) ([]engine.Campaign, error) {
	if err := check(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return engine.ListCampaigns(func(yield func(engine.Campaign, error) bool) {
		for _, c := range s.campaigns {
			head := c.Campaign
			head.Bases = nil
			if !yield(head, nil) {
				return
			}
		}
	}, caller, after, max)
}

type jobs struct{ *Store }

func cloneJob(j engine.Job) engine.Job {
	j.Cursor, j.Spec, j.Result = bytes.Clone(j.Cursor), bytes.Clone(j.Spec), bytes.Clone(j.Result)
	return j
}

func (s jobs) Create(ctx context.Context, j engine.Job, entries ...engine.JobEntry) (engine.Job, bool, error) {
	if err := check(ctx); err != nil {
		return engine.Job{}, false, err
	}
	if j.ID == "" {
		return engine.Job{}, false, notify.Invalid("bad_job", "id", "a job has an id and a kind")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, old := range s.jobs {
		if old.Kind == j.Kind && old.Name == j.Name {
			return cloneJob(old), false, nil
		}
	}
	if _, ok := s.jobs[j.ID]; ok {
		return engine.Job{}, false, conflict("job_exists", "another job has this id")
	}
	j.Version = 1
	s.jobs[j.ID] = cloneJob(j)
	s.keep(j.ID, entries)
	return j, true, nil
}

func (s jobs) Put(ctx context.Context, j engine.Job, entries ...engine.JobEntry) (engine.Job, error) {
	if err := check(ctx); err != nil {
		return engine.Job{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.jobs[j.ID]
	if !ok || old.Version != j.Version {
		return engine.Job{}, conflict("job_changed", "the job was changed since it was read")
	}
	j.Kind, j.Name, j.Created = old.Kind, old.Name, old.Created
	j.Version++
	s.jobs[j.ID] = cloneJob(j)
	s.keep(j.ID, entries)
	return j, nil
}

func (s jobs) keep(id string, entries []engine.JobEntry) {
	for _, e := range entries {
		if s.entries[id] == nil {
			s.entries[id] = map[uint64][]byte{}
		}
		s.entries[id][e.At] = bytes.Clone(e.Doc)
	}
}

func (s jobs) Entries(ctx context.Context, id string, after uint64, max int) ([]engine.JobEntry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []engine.JobEntry
	for at, doc := range s.entries[id] {
		if at > after {
			out = append(out, engine.JobEntry{At: at, Doc: bytes.Clone(doc)})
		}
	}
	slices.SortFunc(out, func(a, b engine.JobEntry) int { return cmp.Compare(a.At, b.At) })
	return out[:clamp(len(out), max)], check(ctx)
}

func (s jobs) Drop(ctx context.Context, id string, version uint64) error {
	if err := check(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.jobs[id]; !ok || old.Version != version {
		return conflict("job_changed", "the job was changed since it was read")
	}
	delete(s.jobs, id)
	delete(s.entries, id)
	return nil
}

func (s jobs) Get(ctx context.Context, id string) (engine.Job, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j, ok := s.jobs[id]
	return cloneJob(j), ok, check(ctx)
}

func (s jobs) List(ctx context.Context, max int) ([]engine.Job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []engine.Job
	for _, j := range s.jobs {
		all = append(all, cloneJob(j))
	}
	slices.SortFunc(all, func(a, b engine.Job) int {
		return cmp.Or(cmp.Compare(b.Created, a.Created), cmp.Compare(b.ID, a.ID))
	})
	return all[:clamp(len(all), max)], check(ctx)
}
