package embedded

import "math"

// gap is a range of offsets that a segment should hold and does not.
type gap struct {
	from, to      int64  // offsets
	bytes         []byte // what lies in its place
	after, before int64  // times of the records around it, ms since 1970; 0: not known
}

// mended is a segment as it should be.
type mended struct {
	raw    []byte // whole batches without a gap in their offsets; markers where records are lost
	gaps   []gap
	healed int    // headers that were damaged and could be written anew: nothing is lost
	tail   []byte // what follows the last whole batch of the last segment
	next   int64  // offset behind it
	epoch  int32  // of the last batch
	latest int64  // time of the latest record
}

// span says what is known of a segment from outside of it.
type span struct {
	first   int64 // the offset it begins with
	follows int64 // the offset the segment behind it begins with; -1: it is the last one
	known   int64 // offsets below it were in the log, as others know; 0: nobody knows any
}

// whole walks a segment that is as it was written. ok is false at the first
// thing that is not; then mend looks closer.
func whole(raw, index []byte, s span) (next, latest int64, epoch int32, ok bool) {
	pos := 0
	next = s.first
	for n := 0; pos < len(raw); n++ {
		b, ok := readBatch(raw, pos)
		if !ok || b.first != next {
			return 0, 0, 0, false
		}
		if e, known := indexEpoch(index, n); known && e != b.epoch {
			return 0, 0, 0, false
		}
		pos, next, latest, epoch = pos+b.size, b.next(), max(latest, b.to), b.epoch
	}
	return next, latest, epoch, s.follows < 0 || next == s.follows
}

// mend takes a damaged segment apart. The broker would cut it at the first bad
// checksum and so lose every batch behind it, and give out their offsets again.
func mend(raw, index []byte, s span) (m mended) {
	m.next = s.first
	inStep := true // batches so far are those of the index
	for n, pos := 0, 0; pos < len(raw); n++ {
		b, ok := readBatch(raw, pos)
		if !ok {
			inStep = false
			pos = m.skip(raw, pos, s)
			continue
		}
		body := raw[pos : pos+b.size]
		epoch := b.epoch
		if e, known := indexEpoch(index, n); known && inStep {
			epoch = e
		}
		switch {
		case b.first == m.next && epoch == b.epoch:
			m.keep(body, &b)
		case b.first == m.next || m.misnumbered(raw, &b, s):
			m.heal(body, m.next, epoch)
		default:
			m.lose(gap{from: m.next, to: b.first, after: m.latest, before: b.from})
			m.keep(body, &b)
		}
		pos += b.size
	}
	if s.follows >= 0 {
		m.lose(gap{from: m.next, to: s.follows, bytes: m.tail, after: m.latest})
		m.tail = nil
	}
	return m
}

func (m *mended) keep(raw []byte, b *batch) {
	m.raw = append(m.raw, raw...)
	m.next, m.epoch, m.latest = b.next(), b.epoch, max(m.latest, b.to)
}

func (m *mended) heal(raw []byte, first int64, epoch int32) {
	fixed := readdress(raw, first, epoch)
	b, _ := readBatch(fixed, 0)
	m.keep(fixed, &b)
	m.healed++
}

func (m *mended) lose(g gap) {
	if g.to <= g.from {
		return // bytes that no offset misses
	}
	m.gaps = append(m.gaps, g)
	m.raw = append(m.raw, markers(g.from, g.to, m.epoch, max(g.after, g.before))...)
	m.next = g.to
}

// misnumbered says of a whole batch with an unexpected first offset, which its
// checksum does not cover, that the number is wrong rather than that batches
// before it are missing.
func (m *mended) misnumbered(raw []byte, b *batch, s span) bool {
	if b.first < m.next {
		return true // offsets only grow
	}
	then := m.next + b.count
	if after, ok := readBatch(raw, b.pos+b.size); ok {
		return after.first == then
	}
	if b.pos+b.size < len(raw) {
		return b.first-m.next > maxMarker
	}
	if s.follows >= 0 {
		return s.follows == then
	}
	// The last batch of the partition: records of a gap were there before it,
	// and somebody knew of them.
	return s.known == then || s.known <= b.first
}

// skip passes over bytes at pos that are no whole batch and returns where to go
// on: at the next whole batch, or at the end.
func (m *mended) skip(raw []byte, pos int, s span) int {
	b, found := search(raw, pos+1, m.next, s.limit())
	end := len(raw)
	if found {
		end = b.pos
	}
	then := s.follows // the offset that must come next; -1: any
	if found {
		then = b.first
	}
	if m.healAll(raw[pos:end], then) {
		return end
	}
	if !found {
		m.tail = raw[pos:]
		return end
	}
	m.lose(gap{from: m.next, to: b.first, bytes: raw[pos:end], after: m.latest, before: b.from})
	return end
}

// healAll keeps bytes that are one whole batch but for its header, if its last
// offset is then the one before next; -1: whatever it is.
func (m *mended) healAll(raw []byte, next int64) bool {
	if len(raw) < batchHeader {
		return false
	}
	fixed := readdress(raw, m.next, m.epoch)
	b, ok := readBatch(fixed, 0)
	if !ok || next >= 0 && b.next() != next {
		return false
	}
	m.keep(fixed, &b)
	m.healed++
	return true
}

// limit is the highest offset a batch of this segment may begin with.
func (s span) limit() int64 {
	if s.follows >= 0 {
		return s.follows
	}
	return math.MaxInt64
}

// search finds the first whole batch at or behind pos whose offset lies in
// [first, limit]. One that is followed by the next, or by the end, goes before
// one that is not: a receiver's data may look like a batch.
func search(raw []byte, pos int, first, limit int64) (b batch, found bool) {
	for ; pos+batchHeader <= len(raw); pos++ {
		if raw[pos+atMagic] != 2 {
			continue
		}
		c, ok := readBatch(raw, pos)
		if !ok || c.first < first || c.first > limit || c.first-first > maxMarker {
			continue
		}
		after, more := readBatch(raw, pos+c.size)
		if pos+c.size == len(raw) || more && after.first == c.next() {
			return c, true
		}
		if !found {
			b, found = c, true
		}
	}
	return b, found
}
