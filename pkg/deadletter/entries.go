package deadletter

import (
	"context"

	"github.com/notifyd/notifyd/pkg/engine"
)

// entries returns up to n entries of a job's set from a position on.
func (m *Manager) entries(ctx context.Context, id string, at, n int) ([]entry, error) {
	var out []entry
	for page := at / pageSize; len(out) < n; page++ {
		es, err := m.cfg.Jobs.Entries(ctx, id, setAt+uint64(page), 1)
		if err != nil {
			return nil, err
		}
		if len(es) == 0 || es[0].At != setAt+uint64(page)+1 {
			break
		}
		all, err := readPage(es[0].Doc)
		if err != nil {
			return nil, err
		}
		from := max(at-page*pageSize, 0)
		if from >= len(all) {
			break
		}
		out = append(out, all[from:min(len(all), from+n-len(out))]...)
	}
	return out, nil
}

// letters returns the letters of entries; nil for one that is gone.
func (m *Manager) letters(ctx context.Context, es []entry) ([]*engine.DeadLetter, error) {
	out := make([]*engine.DeadLetter, len(es))
	place := make(map[uint64]int, len(es))
	lo, hi := ^uint64(0), uint64(0)
	for i, e := range es {
		place[e.ord] = i
		lo, hi = min(lo, e.ord), max(hi, e.ord)
	}
	take := func(d *engine.DeadLetter) error {
		if i, ok := place[d.Ord]; ok {
			c := *d
			out[i] = &c
		}
		return nil
	}
	if len(es) > 0 && hi-lo < uint64(8*len(es)) {
		return out, m.cfg.Letters.Walk(ctx, lo-1, hi, take)
	}
	for _, e := range es { // far apart
		if err := m.cfg.Letters.Walk(ctx, e.ord-1, e.ord, take); err != nil {
			return nil, err
		}
	}
	return out, nil
}
