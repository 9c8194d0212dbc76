package embedded

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// newBatch is a batch of n records as a client makes it.
func newBatch(first int64, n int, value []byte) []byte {
	var recs []byte
	for i := range n {
		rec := kmsg.Record{OffsetDelta: int32(i), Value: value}
		rec.Length = int32(len(rec.AppendTo(nil)) - 1) // a length of 0 takes one byte
		recs = append(recs, rec.AppendTo(nil)...)
	}
	b := kmsg.RecordBatch{
		FirstOffset: first, Magic: 2, LastOffsetDelta: int32(n - 1), FirstTimestamp: 1000 + first, MaxTimestamp: 1000 + first,
		ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: int32(n), Records: recs,
	}
	raw := b.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[atLength:], uint32(len(raw)-atEpoch))
	binary.BigEndian.PutUint32(raw[atSum:], crc32.Checksum(raw[atCovered:], castagnoli))
	return raw
}

// sample is a segment that begins at offset 100, and its batches.
func sample(t *testing.T) (raw []byte, bs []batch) {
	t.Helper()
	next := int64(100)
	for i, n := range []int{1, 3, 1, 7, 2} {
		b := newBatch(next, n, bytes.Repeat([]byte{byte('a' + i)}, 5+20*i))
		raw = append(raw, b...)
		next += int64(n)
	}
	for pos := 0; pos < len(raw); {
		b, ok := readBatch(raw, pos)
		if !ok {
			t.Fatalf("no batch at %d", pos)
		}
		bs = append(bs, b)
		pos += b.size
	}
	return raw, bs
}

// finish does to a last segment what checker.end does.
func finish(m *mended, known int64) {
	if m.next < known {
		m.addGap(gap{from: m.next, to: known, bytes: m.tail})
	}
	m.tail = nil
}

// Whatever bit of a segment is wrong: no batch but the one that holds it is
// lost, the others stay at their offsets, and the offsets go on where they did.
func TestEveryFlippedBit(t *testing.T) {
	t.Parallel()
	raw, bs := sample(t)
	index := indexOf(raw)
	end := bs[len(bs)-1].next()
	for name, s := range map[string]segmentContext{
		"before another": {first: 100, nextFirst: end}, "last": {first: 100, nextFirst: -1, knownEnd: end}, "last, unknown": {first: 100, nextFirst: -1},
	} {
		lost := 0
		for bit := range len(raw) * 8 {
			bad := bytes.Clone(raw)
			bad[bit/8] ^= 1 << (bit % 8)
			if _, _, _, ok := walkUndamaged(bad, index, s); ok {
				t.Fatalf("%s: bit %d of byte %d is not noticed", name, bit%8, bit/8)
			}
			m := mend(bad, index, s)
			torn := len(m.tail)
			finish(&m, s.knownEnd)
			if _, _, _, ok := walkUndamaged(m.raw, indexOf(m.raw), segmentContext{first: 100, nextFirst: m.next}); !ok {
				t.Fatalf("%s: byte %d: what is mended is not whole", name, bit/8)
			}
			for _, b := range bs {
				hit := bit/8 >= b.pos && bit/8 < b.pos+b.size
				same := bytes.Contains(m.raw, raw[b.pos:b.pos+b.size])
				switch {
				case !same && len(m.gaps) == 0 && torn == 0:
					t.Fatalf("%s: byte %d: offsets %d to %d are gone and not said to be lost", name, bit/8, b.first, b.next())
				case !same && !hit:
					t.Fatalf("%s: byte %d: offsets %d to %d are gone, and undamaged", name, bit/8, b.first, b.next())
				case !same && torn == 0 && (len(m.gaps) != 1 || m.gaps[0].from != b.first || m.gaps[0].to != b.next()):
					t.Fatalf("%s: byte %d: lost %+v, want %d to %d", name, bit/8, m.gaps, b.first, b.next())
				case same && len(m.gaps) != 0 && m.gaps[0].from == b.first:
					t.Fatalf("%s: byte %d: offset %d is there and said to be lost", name, bit/8, b.first)
				}
			}
			if name != "last, unknown" {
				if m.next != end {
					t.Fatalf("%s: byte %d: ends at %d, want %d", name, bit/8, m.next, end)
				}
			} else if torn > 0 && bit/8 < bs[len(bs)-1].pos {
				t.Fatalf("%s: byte %d: taken for the tail", name, bit/8)
			}
			lost += len(m.gaps)
		}
		// First offset, length, epoch and magic are known without the header.
		if want := 8 * (len(raw) - len(bs)*17); name != "last, unknown" && lost != want {
			t.Errorf("%s: %d of %d bits lost a batch, want %d", name, lost, 8*len(raw), want)
		}
	}
}

// Damage of any length, and bytes that are missing.
func TestDamagedRanges(t *testing.T) {
	t.Parallel()
	raw, bs := sample(t)
	index := indexOf(raw)
	end := bs[len(bs)-1].next()
	rng := rand.New(rand.NewPCG(1, 1))
	for range 5000 {
		from := rng.IntN(len(raw))
		to := from + 1 + rng.IntN(len(raw)-from)
		if slices.ContainsFunc(bs, func(b batch) bool { return from < b.pos && to > b.pos && to < b.pos+atEpoch }) {
			continue // a whole batch with a wrong number behind a lost one: nothing tells how many are missing
		}
		bad := bytes.Clone(raw)
		switch rng.IntN(3) {
		case 0:
			clear(bad[from:to])
		case 1:
			for i := from; i < to; i++ {
				bad[i] = byte(rng.Uint32())
			}
		case 2:
			bad = append(bad[:from:from], bad[to:]...)
		}
		s := segmentContext{first: 100, nextFirst: -1, knownEnd: end}
		m := mend(bad, index, s)
		finish(&m, end)
		if _, _, _, ok := walkUndamaged(m.raw, nil, segmentContext{first: 100, nextFirst: end}); !ok {
			t.Fatalf("[%d, %d): not whole: %d bytes of %d, to %d, %+v", from, to, len(bad), len(raw), m.next, m.gaps)
		}
		var sum int64 // lost, or there
		for _, g := range m.gaps {
			sum += g.to - g.from
		}
		for _, b := range bs {
			there := bytes.Contains(m.raw, raw[b.pos:b.pos+b.size])
			if !there && (to <= b.pos || from >= b.pos+b.size) {
				t.Fatalf("[%d, %d): batch %d was whole and is gone", from, to, b.first)
			}
			if there {
				sum += b.count
			}
		}
		if sum != end-100 {
			t.Fatalf("[%d, %d): %d of %d offsets accounted for", from, to, sum, end-100)
		}
	}
}

// What a receiver is sent may look like a batch: it must not be found inside of
// a damaged one.
func TestBatchInsideOfABatch(t *testing.T) {
	t.Parallel()
	forged := newBatch(101, 1, []byte("forged"))
	raw := newBatch(100, 2, append([]byte("x"), forged...))
	at := len(raw)
	raw = append(raw, newBatch(102, 1, []byte("good"))...)
	raw[70] ^= 1 // in the first record
	m := mend(raw, nil, segmentContext{first: 100, nextFirst: 103})
	if len(m.gaps) != 1 || m.gaps[0].from != 100 || m.gaps[0].to != 102 || len(m.gaps[0].bytes) != at {
		t.Fatalf("%+v", m.gaps)
	}
	if bytes.Contains(m.raw, []byte("forged")) {
		t.Error("the forged batch is in the log")
	}
}

func TestMarkers(t *testing.T) {
	t.Parallel()
	const from, to = 7, 7 + 2*maxMarker + 5
	raw := markers(from, to, 3, 1000)
	next, _, epoch, ok := walkUndamaged(raw, nil, segmentContext{first: from, nextFirst: to})
	if !ok || next != to || epoch != 3 || countBatches(raw) != 3 {
		t.Errorf("%d batches to %d of epoch %d: %v", countBatches(raw), next, epoch, ok)
	}
	if !strings.Contains(string(raw), "notifyd-lost") {
		t.Error("no header")
	}
}
