package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"sync"
	"sync/atomic"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// DeadLetters returns the contract of dead letters.
func (s *Store) DeadLetters() engine.DeadLetters { return &s.dead }

type deadLetters struct {
	s     *Store
	purge sync.Mutex

	mu   sync.Mutex
	seqs map[string]uint64 // last seq given, per caller that had a Put since Open
	ord  uint64            // last given

	// settled is the last Ord that a loss of power cannot take back. Readers who
	// remember how far they are stop there: a number behind it may be given again, to
	// another letter. The committer's goroutine alone writes it after load, in the
	// order of the numbers.
	settled atomic.Uint64
}

func (d *deadLetters) load(s *Store) (err error) {
	d.s, d.seqs = s, map[string]uint64{}
	defer func() { d.settled.Store(d.ord) }()
	d.ord, err = s.getUint(ordSeqKey)
	return err
}

// find returns the dead letter with this id.
func (d *deadLetters) find(id []byte) (l letter, ok bool, err error) {
	ord, err := d.s.getUint(letterKey(id))
	if err != nil || ord == 0 {
		return l, false, err
	}
	v, err := d.s.get(ordKey(ord))
	if err != nil || v == nil { // purged in between
		return l, false, err
	}
	err = l.unpack(ord, v)
	return l, true, err
}

func (d *deadLetters) Put(ctx context.Context, ds []engine.DeadLetter) error {
	if len(ds) == 0 {
		return nil
	}
	locks := make([]string, len(ds))
	for i := range ds {
		if len(ds[i].Caller) > 1<<16-1 {
			return notify.Invalid("bad_dead_letter", "caller", "a caller has at most 65,535 bytes")
		}
		locks[i] = string(letterKey(letterID(ds[i].ID, ds[i].Epoch)))
	}
	unlock, err := d.s.locks.lock(ctx, locks...)
	if err != nil {
		return err
	}
	letters, err := d.unknown(ds)
	if err != nil {
		unlock()
		return err
	}
	var last uint64 // written before the group is taken, read when it is settled
	return d.s.commit.write(ctx, func(tx tx) {
		// Numbers are given while the group fills, in the order in which the feed
		// becomes visible: nobody who follows it can miss one.
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, l := range letters {
			id := letterID(l.ID, l.Epoch)
			d.seqs[l.Caller]++
			d.ord++
			l.Seq = d.seqs[l.Caller]
			tx.setUint(seqKey(l.Caller), l.Seq)
			tx.setUint(ordSeqKey, d.ord)
			tx.set(feedKey(l.Caller, l.Seq), id)
			tx.set(newestKey(l.LastFailed, id), nil)
			tx.set(untilKey(l.Until, id), nil)
			binary.BigEndian.PutUint64(l.value, l.Seq)
			tx.set(ordKey(d.ord), l.value)
			tx.setUint(letterKey(id), d.ord)
			last = d.ord
		}
	}, func(err error) {
		if err == nil && last > 0 {
			d.settled.Store(last)
		}
		unlock()
	})
}

// unknown returns those of ds that are not stored, each once.
func (d *deadLetters) unknown(ds []engine.DeadLetter) ([]*letter, error) {
	letters := make([]*letter, 0, len(ds))
	seen := make(map[string]bool, len(ds))
	for i := range ds {
		id := letterID(ds[i].ID, ds[i].Epoch)
		if seen[string(id)] {
			continue
		}
		ord, err := d.s.getUint(letterKey(id))
		if err != nil {
			return nil, err
		}
		if ord != 0 {
			continue
		}
		l := &letter{DeadLetter: ds[i]}
		if err := d.loadSeq(l.Caller); err != nil {
			return nil, err
		}
		if l.pack() != nil {
			return nil, notify.Invalid("bad_dead_letter", "extra", "the dead letter cannot be stored")
		}
		seen[string(id)] = true
		letters = append(letters, l)
	}
	return letters, nil
}

func (d *deadLetters) Walk(ctx context.Context, behind, upTo uint64, fn func(*engine.DeadLetter) error) error {
	if upTo = min(upTo, d.settled.Load()); behind >= upTo {
		return nil
	}
	to := []byte{tDeadOrd + 1}
	if upTo < math.MaxUint64 {
		to = ordKey(upTo + 1)
	}
	n := -1
	return d.s.each(span{ordKey(behind + 1), to}, func(k, v []byte) (bool, error) {
		if err := sometimes(ctx, &n); err != nil {
			return false, err
		}
		var l letter
		if err := l.unpack(binary.BigEndian.Uint64(k[1:]), v); err != nil {
			return false, err
		}
		err := fn(&l.DeadLetter)
		return err == nil, err
	})
}

func (d *deadLetters) Last(context.Context) (uint64, error) { return d.settled.Load(), nil }

func (d *deadLetters) Move(ctx context.Context, ms []engine.LetterMove) ([]bool, error) {
	moved := make([]bool, len(ms))
	if len(ms) == 0 {
		return moved, nil
	}
	locks := make([]string, len(ms))
	for i := range ms {
		locks[i] = string(letterKey(letterID(ms[i].ID, ms[i].Epoch)))
	}
	unlock, err := d.s.locks.lock(ctx, locks...)
	if err != nil {
		return nil, err
	}
	var letters []letter
	seen := map[string]bool{}
	for i, m := range ms {
		id := locks[i]
		l, ok, err := d.find([]byte(id[1:]))
		if err != nil {
			unlock()
			return nil, err
		}
		if !ok || seen[id] || l.State != m.From || l.Job != m.FromJob {
			continue
		}
		l.State, l.Job = m.To, m.Job
		if err := l.pack(); err != nil {
			unlock()
			return nil, notify.Invalid("bad_dead_letter", "job", "the dead letter cannot be stored")
		}
		binary.BigEndian.PutUint64(l.value, l.Seq)
		letters, moved[i], seen[id] = append(letters, l), true, true
	}
	if len(letters) == 0 {
		unlock()
		return moved, nil
	}
	err = d.s.commit.write(ctx, func(tx tx) {
		for i := range letters {
			tx.set(ordKey(letters[i].Ord), letters[i].value)
		}
	}, func(error) { unlock() })
	if err != nil {
		return nil, err
	}
	return moved, nil
}

// loadSeq makes sure that the caller's last seq is in memory.
func (d *deadLetters) loadSeq(caller string) error {
	d.mu.Lock()
	_, ok := d.seqs[caller]
	d.mu.Unlock()
	if ok {
		return nil
	}
	last, err := d.s.getUint(seqKey(caller))
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.seqs[caller]; !ok { // else somebody was faster and went on from it
		d.seqs[caller] = last
	}
	return nil
}

func (d *deadLetters) Get(_ context.Context, id notify.ID, epoch uint16) (engine.DeadLetter, error) {
	l, ok, err := d.find(letterID(id, epoch))
	if err == nil && !ok {
		err = notify.NotFound("dead_letter")
	}
	return l.DeadLetter, err
}

func (d *deadLetters) Feed(ctx context.Context, caller string, behind uint64, max int) (out []engine.DeadLetter, err error) {
	if max <= 0 || behind == math.MaxUint64 || len(caller) > 1<<16-1 {
		return nil, nil
	}
	settled := d.settled.Load()
	all := under(appendStr([]byte{tFeed}, caller))
	err = d.s.each(span{feedKey(caller, behind+1), all.To}, func(_, id []byte) (bool, error) {
		l, ok, err := d.find(id)
		if err != nil {
			return false, err
		}
		if ok && l.Ord > settled { // those behind it are not settled either
			return false, nil
		}
		if ok { // else purged since the scan began
			out = append(out, l.DeadLetter)
		}
		return len(out) < max, ctx.Err()
	})
	if err != nil {
		return nil, translate(err)
	}
	return out, nil
}

// List's cursor is the key of the last dead letter returned, without its table.
func (d *deadLetters) List(ctx context.Context, f engine.DeadLetterFilter, cursor []byte, max int) (out []engine.DeadLetter, _ []byte, err error) {
	if max <= 0 {
		return nil, nil, nil
	}
	r := under([]byte{tDeadNewest})
	if f.Until != 0 {
		r.From = appendInt([]byte{tDeadNewest}, ^(f.Until - 1))
	}
	if f.Since != 0 {
		r.To = after(appendInt([]byte{tDeadNewest}, ^f.Since))
	}
	if cursor != nil {
		if len(cursor) != 8+letterIDLen {
			return nil, nil, notify.Invalid("bad_cursor", "cursor", "not a cursor of this list")
		}
		if c := after(append([]byte{tDeadNewest}, cursor...)); bytes.Compare(c, r.From) > 0 {
			r.From = c
		}
	}
	if bytes.Compare(r.From, r.To) >= 0 {
		return nil, nil, nil
	}
	n, more, settled := -1, false, d.settled.Load()
	var last []byte
	err = d.s.each(r, func(k, _ []byte) (bool, error) {
		if err := sometimes(ctx, &n); err != nil {
			return false, err
		}
		// A letter that is listed must be found by a plan, which walks settled letters.
		l, ok, err := d.find(k[9:])
		if err != nil || !ok || l.Ord > settled || !f.Matches(&l.DeadLetter) {
			return true, err
		}
		if len(out) == max { // one more exists: there is a next page
			more = true
			return false, nil
		}
		out = append(out, l.DeadLetter)
		last = append(last[:0], k[1:]...)
		return true, nil
	})
	if err != nil {
		return nil, nil, err
	}
	if !more {
		last = nil
	}
	return out, last, nil
}

func (d *deadLetters) Purge(ctx context.Context, now int64) (total int, err error) {
	now = min(now, math.MaxInt64-1)
	d.purge.Lock()
	defer d.purge.Unlock()
	for {
		n, more, err := d.purgeSome(ctx, now)
		total += n
		if err != nil || !more {
			return total, err
		}
	}
}

func (d *deadLetters) purgeSome(ctx context.Context, now int64) (n int, more bool, err error) {
	var ids [][]byte
	var locks []string
	err = d.s.each(span{[]byte{tDeadUntil}, appendInt([]byte{tDeadUntil}, now+1)}, func(k, _ []byte) (bool, error) {
		id := bytes.Clone(k[9:])
		ids = append(ids, id)
		locks = append(locks, string(letterKey(id)))
		return len(ids) < manyAtOnce, nil
	})
	if err != nil || len(ids) == 0 {
		return 0, false, err
	}
	unlock, err := d.s.locks.lock(ctx, locks...)
	if err != nil {
		return 0, false, err
	}
	var gone [][]byte
	for _, id := range ids {
		l, ok, err := d.find(id)
		if err != nil {
			unlock()
			return 0, false, err
		}
		if ok && l.Until <= now {
			gone = append(gone, letterKey(id), ordKey(l.Ord), feedKey(l.Caller, l.Seq), newestKey(l.LastFailed, id), untilKey(l.Until, id))
			n++
		}
	}
	err = d.s.commit.write(ctx, func(tx tx) {
		for _, k := range gone {
			tx.delete(k)
		}
	}, func(error) { unlock() })
	if err != nil {
		return 0, false, err
	}
	return n, len(ids) == manyAtOnce, nil
}
