package memory

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

type deadLetters struct{ *Store }

type letterKey struct {
	id    notify.ID
	epoch uint16
}

func cloneLetter(d engine.DeadLetter) engine.DeadLetter {
	d.Extra = maps.Clone(d.Extra)
	return d
}

func (s deadLetters) Put(ctx context.Context, ds []engine.DeadLetter) error {
	if err := check(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range ds {
		k := letterKey{d.ID, d.Epoch}
		if _, ok := s.dead[k]; ok {
			continue
		}
		s.deadSeq[d.Caller]++
		s.deadOrd++
		d.Seq, d.Ord = s.deadSeq[d.Caller], s.deadOrd
		s.dead[k] = cloneLetter(d)
	}
	return nil
}

func (s deadLetters) Get(ctx context.Context, id notify.ID, epoch uint16) (engine.DeadLetter, error) {
	if err := check(ctx); err != nil {
		return engine.DeadLetter{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d, ok := s.dead[letterKey{id, epoch}]
	if !ok {
		return d, notify.NotFound("dead_letter")
	}
	return cloneLetter(d), nil
}

func (s deadLetters) Feed(ctx context.Context, caller string, after uint64, max int) ([]engine.DeadLetter, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []engine.DeadLetter
	for _, d := range s.dead {
		if d.Caller == caller && d.Seq > after {
			out = append(out, cloneLetter(d))
		}
	}
	slices.SortFunc(out, func(a, b engine.DeadLetter) int { return cmp.Compare(a.Seq, b.Seq) })
	return out[:clamp(len(out), max)], check(ctx)
}

// place orders dead letters newest first; equal times by id and epoch.
func place(d *engine.DeadLetter) []byte {
	b := binary.BigEndian.AppendUint64(nil, ^(uint64(d.LastFailed) ^ 1<<63))
	b = append(b, d.ID.Base[:]...)
	b = binary.BigEndian.AppendUint32(b, d.ID.Index)
	if d.ID.Fan {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	return binary.BigEndian.AppendUint16(b, d.Epoch)
}

func (s deadLetters) List(ctx context.Context, f engine.DeadLetterFilter, cursor []byte, max int) ([]engine.DeadLetter, []byte, error) {
	if err := check(ctx); err != nil || max <= 0 {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []engine.DeadLetter
	for _, d := range s.dead {
		if f.Matches(&d) && bytes.Compare(place(&d), cursor) > 0 {
			out = append(out, cloneLetter(d))
		}
	}
	slices.SortFunc(out, func(a, b engine.DeadLetter) int { return bytes.Compare(place(&a), place(&b)) })
	if len(out) <= max {
		return out, nil, nil
	}
	return out[:max], place(&out[max-1]), nil
}

func (s deadLetters) Walk(ctx context.Context, after, upTo uint64, fn func(*engine.DeadLetter) error) error {
	if err := check(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	var out []engine.DeadLetter
	for _, d := range s.dead {
		if d.Ord > after && d.Ord <= upTo {
			out = append(out, cloneLetter(d))
		}
	}
	s.mu.Unlock()
	slices.SortFunc(out, func(a, b engine.DeadLetter) int { return cmp.Compare(a.Ord, b.Ord) })
	for i := range out {
		if err := fn(&out[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s deadLetters) Last(ctx context.Context) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deadOrd, check(ctx)
}

func (s deadLetters) Move(ctx context.Context, ms []engine.LetterMove) ([]bool, error) {
	if err := check(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	moved := make([]bool, len(ms))
	seen := map[letterKey]bool{}
	for i, m := range ms {
		k := letterKey{m.ID, m.Epoch}
		d, ok := s.dead[k]
		if !ok || seen[k] || d.State != m.From || d.Job != m.FromJob {
			continue
		}
		d.State, d.Job = m.To, m.Job
		s.dead[k], moved[i], seen[k] = d, true, true
	}
	return moved, nil
}

func (s deadLetters) Purge(ctx context.Context, now int64) (n int, err error) {
	if err := check(ctx); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, d := range s.dead {
		if d.Until <= now {
			delete(s.dead, k)
			n++
		}
	}
	return n, nil
}
