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
		if old, ok := s.dead[k]; ok {
			old.State = d.State
			s.dead[k] = old
			continue
		}
		s.deadSeq[d.Caller]++
		d.Seq = s.deadSeq[d.Caller]
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
		if matches(&f, &d) && bytes.Compare(place(&d), cursor) > 0 {
			out = append(out, cloneLetter(d))
		}
	}
	slices.SortFunc(out, func(a, b engine.DeadLetter) int { return bytes.Compare(place(&a), place(&b)) })
	if len(out) <= max {
		return out, nil, nil
	}
	return out[:max], place(&out[max-1]), nil
}

func matches(f *engine.DeadLetterFilter, d *engine.DeadLetter) bool {
	is := func(want, have string) bool { return want == "" || want == have }
	return is(f.Caller, d.Caller) && is(f.Channel, d.Channel) && is(f.Category, d.Category) &&
		is(f.Class, d.Class) && is(f.Code, d.Code) && is(f.Provider, d.Provider) &&
		is(f.Template, d.Template) && is(f.State, d.State) &&
		(f.Since == 0 || d.LastFailed >= f.Since) && (f.Until == 0 || d.LastFailed < f.Until)
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
