package history

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Append adds records. The caller passes the records of a partition in the order of their offsets.
// If the Store already has a record, Append skips it, so the caller may safely append a range
// again. When Append returns, queries find the records. But the records are not durable here yet:
// until the offset that Sealed returns has passed a record, only the log has a durable copy. If two
// full tails of the partition wait to be sealed, Append waits.
//
// After an error the caller must append the same records again.
func (s *Store) Append(ctx context.Context, recs ...Record) error {
	for len(recs) > 0 {
		n := 1
		for n < len(recs) && recs[n].Partition == recs[0].Partition && recs[n].Topic == recs[0].Topic {
			n++
		}
		if err := s.appendPart(ctx, s.partOf(Part{recs[0].Topic, recs[0].Partition}), recs[:n]); err != nil {
			return unavailable(err)
		}
		recs = recs[n:]
	}
	return nil
}

// Advance tells the Store that it will get no more records of the partition below offset. The pump
// calls Advance for offsets that have no record: the offsets before the first record of the log,
// and the offsets of records that the log has lost.
func (s *Store) Advance(tp Part, offset int64) {
	p := s.partOf(tp)
	p.appendMu.Lock()
	if offset > p.appendedTo.Load() {
		p.appendedTo.Store(offset)
	}
	p.appendMu.Unlock()
	s.progress.moved()
}

// appendPart appends records of one partition.
func (s *Store) appendPart(ctx context.Context, p *partition, recs []Record) error {
	p.appendMu.Lock()
	defer p.appendMu.Unlock()
	defer s.progress.moved()
	if err := s.failed.Load(); err != nil {
		return *err
	}
	var env notify.Envelope
	for i := range recs {
		r := &recs[i]
		if r.Offset < p.appendedTo.Load() {
			continue
		}
		err := notify.DecodeHead(r.Value, &env)
		if err == nil && !env.Derived() {
			err = s.addChunk(ctx, p, r, &env)
		}
		if errors.Is(err, notify.ErrCorrupt) || errors.Is(err, notify.ErrNewer) {
			// There is nothing to store, because the receivers are unknown. A worker puts a
			// damaged record into the poison topic. A record of a newer release normally stops
			// the worker first, so such a record gets here only after manual changes.
			s.cfg.Log.Warn("history cannot read a record and skips it", "part", p.Part, "offset", r.Offset, "err", err)
		} else if err != nil {
			return err
		}
		p.appendedTo.Store(r.Offset + 1)
	}
	return nil
}

// addChunk indexes an original chunk. If the receivers of the chunk cannot be decoded, addChunk
// returns notify.ErrCorrupt and changes nothing. It computes the hashes before it locks p.mu, so
// that readers wait only while the entries are linked. The caller holds p.appendMu.
func (s *Store) addChunk(ctx context.Context, p *partition, r *Record, env *notify.Envelope) error {
	hashes, first, last, err := hashColumn(p.hashes[:0], env.Receivers, env.Count)
	p.hashes = hashes
	if err != nil {
		return err
	}
	n := len(hashes)
	t := p.active
	if t != nil && (t.users.len()+n > s.cfg.SegmentReceivers || t.size() >= s.cfg.SegmentBytes) {
		if err := s.freezeActive(ctx, p); err != nil {
			return err
		}
		t = nil
	}
	if n > maxOrdinals {
		s.cfg.Log.Error("history skips a chunk that is too large to index", "part", p.Part, "offset", r.Offset, "receivers", n)
		return nil
	}
	if t == nil {
		if t, err = s.newTail(p); err != nil {
			return err
		}
	}
	if len(t.rows) > 0 && len(t.buf) > 0 && len(t.buf)+recordHeader+len(r.Value) > s.cfg.BufferBytes {
		if err := s.flush(p, t); err != nil {
			return err
		}
	}
	if n > t.users.room() {
		p.mu.Lock()
		t.users.grow(n)
		p.mu.Unlock()
	}
	known := t.users.hashes
	copy(known[len(known):len(known)+n], hashes) // into the free room, which readers do not use yet
	ms := r.Time
	if ms == 0 {
		ms = time.Now().UnixMilli()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	row := row{base: env.Chunk.Base, off: t.size(), start: uint32(t.users.len()), first: first, last: last}
	t.buf = appendBodyRecord(t.buf, &bodyRecord{offset: r.Offset, value: r.Value})
	row.size = uint32(t.size() - row.off)
	t.addRow(row, ms)
	t.users.extend(n)
	t.bases.add([]uint64{hashBase(row.base)})
	p.active = t
	return nil
}

// hashColumn appends to hs the hashes of the users in a column. The parameter count is the number
// of receivers in the column. hashColumn returns hs, and the request indexes of the first and the
// last receiver. It returns notify.ErrCorrupt for exactly the columns that notify.DecodeEnvelope
// rejects.
func hashColumn(hs []uint64, column []byte, count uint32) (_ []uint64, first, last uint32, err error) {
	index, n := uint64(0), uint32(0)
	for ; len(column) > 0 && n < count; n++ {
		var delta, flags uint64
		if len(column) >= 2 && column[0] < 0x80 && column[1] < 0x80 {
			delta, flags, column = uint64(column[0]), uint64(column[1]), column[2:]
		} else {
			var k, m int
			if delta, k = binary.Uvarint(column); k <= 0 {
				break
			}
			if flags, m = binary.Uvarint(column[k:]); m <= 0 {
				break
			}
			column = column[k+m:]
		}
		if index += delta; delta > notify.MaxIndex || index > notify.MaxIndex || flags>>2 > uint64(len(column)) {
			return hs, first, last, fmt.Errorf("%w: receiver number %d cannot be decoded", notify.ErrCorrupt, n)
		}
		if n == 0 {
			first = uint32(index)
		}
		last = uint32(index)
		index++
		user := column[:flags>>2]
		hs = append(hs, notify.HashUser(user))
		column = column[len(user):]
		for bits := flags & 3; bits != 0; bits &= bits - 1 { // skip the address and the variables, if the receiver has them
			size, m := binary.Uvarint(column)
			if m <= 0 || size > uint64(len(column)-m) {
				return hs, first, last, fmt.Errorf("%w: receiver number %d cannot be decoded", notify.ErrCorrupt, n)
			}
			column = column[m+int(size):]
		}
	}
	if len(column) > 0 || n != count {
		return hs, first, last, fmt.Errorf("%w: %d of %d receivers could be read, and %d bytes are left after them", notify.ErrCorrupt, n, count, len(column))
	}
	return hs, first, last, nil
}

// newTail creates the file of a new tail. The tail begins with the next record. The caller holds
// appendMu.
func (s *Store) newTail(p *partition) (*tail, error) {
	num := s.nextNum.Add(1)
	name := segmentName(num, tmpSuffix)
	f, err := s.cfg.FS.Create(s.path(name))
	if err != nil {
		return nil, fmt.Errorf("create the file of a segment: %w", err)
	}
	var a arrays
	select {
	case a = <-s.freeArrays:
	default:
	}
	return newTail(num, newBlob(f, segmentName(num, fileSuffix)), s.path(name), p.appendedTo.Load(), a), nil
}

// flush writes the buffered bodies to the file. Readers find the bodies during the write too: the
// bodies are in t.writing until they are in the file. If a write fails, the next flush first
// repeats that write. The appender calls flush. After the tail is frozen, the sealer calls it.
func (s *Store) flush(p *partition, t *tail) error {
	for t.writing != nil || len(t.buf) > 0 {
		if t.writing == nil {
			p.mu.Lock()
			t.writing, t.buf, t.spare = t.buf, t.spare[:0], nil
			p.mu.Unlock()
		}
		if _, err := t.blob.WriteAt(t.writing, t.flushed); err != nil {
			return fmt.Errorf("write %s: %w", t.blob.name, err)
		}
		t.blob.WriteBack(t.flushed, int64(len(t.writing)))
		p.mu.Lock()
		t.flushed += int64(len(t.writing))
		t.writing, t.spare = nil, t.writing[:0]
		p.mu.Unlock()
	}
	return nil
}

// freezeActive passes the active tail to the sealer. If maxFrozen tails of the partition already
// wait to be sealed, freezeActive waits until one of them is sealed. The caller holds appendMu.
func (s *Store) freezeActive(ctx context.Context, p *partition) error {
	select {
	case p.slots <- struct{}{}:
	case <-s.failedCh:
		return *s.failed.Load()
	case <-ctx.Done():
		return notify.Unavailable("history", time.Second, fmt.Errorf("partition %v waits until its full segments are sealed: %w", p.Part, ctx.Err()))
	}
	p.mu.Lock()
	t := p.active
	t.to = p.appendedTo.Load()
	p.frozen = append(p.frozen[:len(p.frozen):len(p.frozen)], t)
	p.active = nil
	p.mu.Unlock()
	s.sealQueue.push(frozenTail{p, t})
	return nil
}
