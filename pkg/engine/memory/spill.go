package memory

import (
	"bytes"
	"context"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

type spill struct{ *Store }

func cloneSpilled(r engine.Spilled) engine.Spilled {
	r.Key, r.Value = bytes.Clone(r.Key), bytes.Clone(r.Value)
	return r
}

func size(rs []engine.Spilled) (n int64) {
	for _, r := range rs {
		n += int64(len(r.Topic) + len(r.Key) + len(r.Value))
	}
	return n
}

func (s spill) Push(ctx context.Context, recs []engine.Spilled, limit int64) error {
	if err := check(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if add := size(recs); add > 0 && size(s.spilled)+add > limit {
		return &notify.Error{Kind: notify.KindUnavailable, Code: "spill_full", Msg: "the spill buffer is full"}
	}
	for _, r := range recs {
		s.spillSeq++
		r.Seq = s.spillSeq
		s.spilled = append(s.spilled, cloneSpilled(r))
	}
	return nil
}

func (s spill) Peek(ctx context.Context, max int) ([]engine.Spilled, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []engine.Spilled
	for _, r := range s.spilled[:clamp(len(s.spilled), max)] {
		out = append(out, cloneSpilled(r))
	}
	return out, check(ctx)
}

func (s spill) Drop(ctx context.Context, seq uint64) error {
	if err := check(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.spilled) > 0 && s.spilled[0].Seq <= seq {
		s.spilled = s.spilled[1:]
	}
	return nil
}

func (s spill) Stats(ctx context.Context) (records, bytes, oldest int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.spilled) > 0 {
		oldest = s.spilled[0].At
	}
	return int64(len(s.spilled)), size(s.spilled), oldest, check(ctx)
}
