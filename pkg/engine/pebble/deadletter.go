package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"math"
	"sync"

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
}

func (d *deadLetters) load(s *Store) error {
	d.s, d.seqs = s, map[string]uint64{}
	return nil
}

// letter is what is stored, behind its seq: a dead letter has parts its JSON
// form does not show.
type letter struct {
	engine.DeadLetter
	Chunk notify.Chunk `json:"chunk"`

	value []byte // to be written: room for the seq, and the JSON
}

func (l *letter) pack() error {
	doc, err := json.Marshal(l)
	l.value = append(make([]byte, 8, 8+len(doc)), doc...)
	return err
}

const letterIDLen = 16 + 4 + 1 + 2

func letterID(id notify.ID, epoch uint16) []byte {
	b := append(make([]byte, 0, letterIDLen), id.Base[:]...)
	b = binary.BigEndian.AppendUint32(b, id.Index)
	fan := byte(0)
	if id.Fan {
		fan = 1
	}
	b = append(b, fan)
	return binary.BigEndian.AppendUint16(b, epoch)
}

func letterKey(id []byte) []byte { return append([]byte{tDead}, id...) }

func untilKey(until int64, id []byte) []byte {
	return append(appendInt([]byte{tDeadUntil}, until), id...)
}

func newestKey(failed int64, id []byte) []byte {
	return append(appendInt([]byte{tDeadNewest}, ^failed), id...)
}

func feedKey(caller string, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(appendStr([]byte{tFeed}, caller), seq)
}

func seqKey(caller string) []byte { return appendStr([]byte{tFeedSeq}, caller) }

// find returns the dead letter with this id.
func (d *deadLetters) find(id []byte) (l letter, ok bool, err error) {
	v, err := d.s.get(letterKey(id))
	if err != nil || v == nil {
		return l, false, err
	}
	if len(v) < 8 || json.Unmarshal(v[8:], &l) != nil {
		return letter{}, false, corrupt("dead letter", id)
	}
	l.DeadLetter.Chunk, l.Seq = l.Chunk, binary.BigEndian.Uint64(v)
	return l, true, nil
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
	letters, err := d.merge(ds)
	if err != nil {
		unlock()
		return err
	}
	return d.s.commit.write(ctx, func(tx tx) {
		// Seqs are given while the group fills, in the order in which the feed
		// becomes visible: nobody who follows it can miss one.
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, l := range letters {
			id := letterID(l.ID, l.Epoch)
			if l.Seq == 0 {
				d.seqs[l.Caller]++
				l.Seq = d.seqs[l.Caller]
				tx.setUint(seqKey(l.Caller), l.Seq)
				tx.set(feedKey(l.Caller, l.Seq), id)
				tx.set(newestKey(l.LastFailed, id), nil)
				tx.set(untilKey(l.Until, id), nil)
			}
			binary.BigEndian.PutUint64(l.value, l.Seq)
			tx.set(letterKey(id), l.value)
		}
	}, func(error) { unlock() })
}

// merge joins ds with what is stored; new ones have no Seq yet.
func (d *deadLetters) merge(ds []engine.DeadLetter) ([]*letter, error) {
	letters := make([]*letter, 0, len(ds))
	seen := make(map[string]*letter, len(ds))
	for i := range ds {
		id := letterID(ds[i].ID, ds[i].Epoch)
		if l := seen[string(id)]; l != nil {
			l.State = ds[i].State
			continue
		}
		old, ok, err := d.find(id)
		if err != nil {
			return nil, err
		}
		l := &old
		if ok {
			l.State = ds[i].State
		} else {
			l = &letter{DeadLetter: ds[i], Chunk: ds[i].Chunk}
			l.Seq = 0
			if err := d.loadSeq(l.Caller); err != nil {
				return nil, err
			}
		}
		seen[string(id)] = l
		letters = append(letters, l)
	}
	for _, l := range letters {
		if l.pack() != nil {
			return nil, notify.Invalid("bad_dead_letter", "extra", "the dead letter cannot be stored")
		}
	}
	return letters, nil
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
	all := under(appendStr([]byte{tFeed}, caller))
	err = d.s.each(span{feedKey(caller, behind+1), all.To}, func(_, id []byte) (bool, error) {
		l, ok, err := d.find(id)
		if err != nil {
			return false, err
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
	n, more := -1, false
	var last []byte
	err = d.s.each(r, func(k, _ []byte) (bool, error) {
		if err := sometimes(ctx, &n); err != nil {
			return false, err
		}
		l, ok, err := d.find(k[9:])
		if err != nil || !ok || !matches(&f, &l.DeadLetter) {
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

func matches(f *engine.DeadLetterFilter, d *engine.DeadLetter) bool {
	for _, p := range [...][2]string{
		{f.Caller, d.Caller}, {f.Channel, d.Channel}, {f.Category, d.Category}, {f.Class, d.Class},
		{f.Code, d.Code}, {f.Provider, d.Provider}, {f.Template, d.Template}, {f.State, d.State},
	} {
		if p[0] != "" && p[0] != p[1] {
			return false
		}
	}
	return true
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
			gone = append(gone, letterKey(id), feedKey(l.Caller, l.Seq), newestKey(l.LastFailed, id), untilKey(l.Until, id))
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
