package embedded

import "math"

// gap is a range of offsets whose records the segment has lost.
type gap struct {
	from, to      int64  // the first lost offset, and the offset after the last lost record
	bytes         []byte // the bytes that were found instead of the records
	after, before int64  // bounds of the times of the lost records, ms since 1970, see Loss.After; 0: not known
}

// mended is a segment after repair.
type mended struct {
	raw    []byte // undamaged batches, without a gap between their offsets; markers replace lost records
	gaps   []gap
	healed int    // number of damaged headers that were rewritten without a loss
	tail   []byte // bytes after the last undamaged batch of the last segment
	next   int64  // offset after the last batch
	epoch  int32  // leader epoch of the last batch
	latest int64  // time of the latest record, ms since 1970
}

// segmentContext holds the facts about a segment that other files show.
type segmentContext struct {
	first     int64 // offset of the segment's first record
	nextFirst int64 // first offset of the next segment; -1: this is the last segment
	knownEnd  int64 // other files prove that the log held every offset below knownEnd; 0: there is no such proof
}

// walkUndamaged reads the batches of a segment in order. At the first damage it stops and returns
// false as the result ok; then the caller must call mend.
func walkUndamaged(raw, index []byte, s segmentContext) (next, latest int64, epoch int32, ok bool) {
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
	return next, latest, epoch, s.nextFirst < 0 || next == s.nextFirst
}

// mend repairs a damaged segment. Without the repair, the broker would cut the segment at the first
// bad checksum. All later batches would be lost, and new records would get the offsets of the lost
// records.
func mend(raw, index []byte, s segmentContext) (m mended) {
	m.next = s.first
	inStep := true // true: batch n still corresponds to entry n of the index
	for n, pos := 0, 0; pos < len(raw); n++ {
		b, ok := readBatch(raw, pos)
		if !ok {
			inStep = false
			pos = m.skipDamage(raw, pos, s)
			continue
		}
		body := raw[pos : pos+b.size]
		epoch := b.epoch
		if e, known := indexEpoch(index, n); known && inStep {
			epoch = e
		}
		switch {
		case b.first == m.next && epoch == b.epoch:
			m.addBatch(body, &b)
		case b.first == m.next || m.hasWrongOffset(raw, &b, s):
			m.renumber(body, m.next, epoch)
		default:
			m.addGap(gap{from: m.next, to: b.first, after: m.latest, before: b.from})
			m.addBatch(body, &b)
		}
		pos += b.size
	}
	if s.nextFirst >= 0 {
		m.addGap(gap{from: m.next, to: s.nextFirst, bytes: m.tail, after: m.latest})
		m.tail = nil
	}
	return m
}

func (m *mended) addBatch(raw []byte, b *batch) {
	m.raw = append(m.raw, raw...)
	m.next, m.epoch, m.latest = b.next(), b.epoch, max(m.latest, b.to)
}

func (m *mended) renumber(raw []byte, first int64, epoch int32) {
	fixed := readdress(raw, first, epoch)
	b, _ := readBatch(fixed, 0)
	m.addBatch(fixed, &b)
	m.healed++
}

func (m *mended) addGap(g gap) {
	if g.to <= g.from {
		return // bytes are damaged, but no offset is missing
	}
	m.gaps = append(m.gaps, g)
	m.raw = append(m.raw, markers(g.from, g.to, m.epoch, max(g.after, g.before))...)
	m.next = g.to
}

// hasWrongOffset is called for an undamaged batch that does not begin at the expected offset. The
// checksum does not cover the field of the first offset. hasWrongOffset returns true if this field
// is wrong, and false if batches before this batch are missing.
func (m *mended) hasWrongOffset(raw []byte, b *batch, s segmentContext) bool {
	if b.first < m.next {
		return true // offsets in a segment only grow
	}
	then := m.next + b.count
	if after, ok := readBatch(raw, b.pos+b.size); ok {
		return after.first == then
	}
	if b.pos+b.size < len(raw) {
		return b.first-m.next > maxMarker
	}
	if s.nextFirst >= 0 {
		return s.nextFirst == then
	}
	// This is the last batch of the partition. If records before it were missing, another file would
	// prove that the log held them.
	return s.knownEnd == then || s.knownEnd <= b.first
}

// skipDamage is called for a position pos of a segment at which no undamaged batch begins. If only
// the header of a batch is damaged, skipDamage repairs it. Otherwise it replaces the bytes before
// the next undamaged batch by markers; if no such batch follows, it keeps the bytes in m.tail. It
// returns the position of the next undamaged batch, or the end of the segment.
func (m *mended) skipDamage(raw []byte, pos int, s segmentContext) int {
	b, found := findBatch(raw, pos+1, m.next, s.maxFirst())
	end := len(raw)
	if found {
		end = b.pos
	}
	then := s.nextFirst // offset that must follow the damage; -1: any offset may follow
	if found {
		then = b.first
	}
	if m.repairHeader(raw[pos:end], then) {
		return end
	}
	if !found {
		m.tail = raw[pos:]
		return end
	}
	m.addGap(gap{from: m.next, to: b.first, bytes: raw[pos:end], after: m.latest, before: b.from})
	return end
}

// repairHeader adds the bytes raw as a batch with a corrected header, and returns true. It returns
// false and adds nothing if more than the header was damaged, or if the offset after the batch is
// not wantNext. A wantNext of -1 accepts any offset.
func (m *mended) repairHeader(raw []byte, wantNext int64) bool {
	if len(raw) < batchHeader {
		return false
	}
	fixed := readdress(raw, m.next, m.epoch)
	b, ok := readBatch(fixed, 0)
	if !ok || wantNext >= 0 && b.next() != wantNext {
		return false
	}
	m.addBatch(fixed, &b)
	m.healed++
	return true
}

// maxFirst returns the highest first offset that a batch of this segment may have.
func (s segmentContext) maxFirst() int64 {
	if s.nextFirst >= 0 {
		return s.nextFirst
	}
	return math.MaxInt64
}

// findBatch finds the first undamaged batch at or after pos whose first offset is from minFirst to
// maxFirst. The data of a record may look like a batch. So findBatch prefers a batch that is
// directly before another batch or the end of the segment.
func findBatch(raw []byte, pos int, minFirst, maxFirst int64) (b batch, found bool) {
	for ; pos+batchHeader <= len(raw); pos++ {
		if raw[pos+atMagic] != 2 {
			continue
		}
		c, ok := readBatch(raw, pos)
		if !ok || c.first < minFirst || c.first > maxFirst || c.first-minFirst > maxMarker {
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
