package simulator

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/bits"
	"os"
	"slices"
	"sort"

	"github.com/cespare/xxhash/v2"
)

// ledgerRun is a file with a part of the pairs: the pages of one table, sorted by key. It never
// changes. Its index has one key for about every indexEvery bytes. Its filter recognizes nearly all
// pages that are not in the run.
//
// The head of a page has these fields; the number is the length in bytes:
//
//	flags     1   the flags below; flagMore: the page has a layer above 0
//	base     16
//	page      4   fan-out only
//	layer     2   with flagMore only
//	seen      8   fan-out only
//	short     8   fan-out only: which slots have the short form; for a single this is a bit of flags
//	at        8   earliest time of the slots
//	provider  1   provider of the first slot and of every short slot
//	status    2   status of the first slot and of every short slot
//
// The slots follow the head. A short slot contains the address, the attempt, and the time since the
// earliest time in the head (10 bytes). A full slot contains all fields (21 bytes). So a delivered
// receiver of a fan-out needs 11 bytes, and a delivered single needs 38 bytes.
type ledgerRun struct {
	file     *os.File // an unlinked file: its disk space becomes free when the process ends
	size     int64
	first    pageKey
	last     pageKey
	index    []indexEntry
	filter   bloomFilter
	buf      []byte // the block that was read last
	buffered int    // number of the block in buf; -1: no block
}

type indexEntry struct {
	key pageKey
	at  int64
}

const (
	indexEvery = 16 << 10
	plainSlot  = 4 + 2 + 4
	fullSlot   = 8 + 4 + 2 + 2 + 2 + 2 + 1
)

const (
	flagFan = 1 << iota
	flagMore
	flagPlain
	flagCounted // in a full slot: idCounted is true
)

// tempFile makes an unlinked file in the directory dir. Its disk space becomes free even if the
// process is killed.
func tempFile(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "notifyd-ledger-")
	if err == nil {
		err = os.Remove(f.Name())
	}
	return f, err
}

// writeRun writes a table to a new run. The table must not change during the call. The parameter
// keys is memory for a list of the table's keys, so that the next call can use this memory again.
func writeRun(dir string, t *pairTable, keys *[]pageKey) (*ledgerRun, error) {
	list := (*keys)[:0]
	for k := range t.places {
		list = append(list, k)
	}
	*keys = list
	slices.SortFunc(list, func(a, b pageKey) int { return a.compare(&b) })
	f, err := tempFile(dir)
	if err != nil {
		return nil, err
	}
	r := &ledgerRun{file: f, first: list[0], last: list[len(list)-1], filter: newFilter(len(list)), buffered: -1}
	w := bufio.NewWriterSize(f, 256<<10)
	var p pairPage
	var b []byte
	next := int64(0)
	for i := range list {
		k := &list[i]
		if r.size >= next {
			r.index = append(r.index, indexEntry{*k, r.size})
			next = r.size + indexEvery
		}
		t.loadPage(k, &p)
		b = appendPage(b[:0], k, &p)
		r.size += int64(len(b))
		r.filter.add(k)
		if _, err := w.Write(b); err != nil {
			_ = f.Close() // return the error of the write instead
			return nil, err
		}
	}
	if err := w.Flush(); err != nil {
		_ = f.Close() // return the error of the write instead
		return nil, err
	}
	return r, nil
}

// isShort returns true if the slot can have the short form. The parameter first is the first slot
// of its page, and the parameter at is the earliest time of the page.
func (s *pairSlot) isShort(k *pageKey, first *pairSlot, at int64) bool {
	return s.attempts == 1 && s.deliveries == 1 && s.idCounted == (k.layer == 0) &&
		s.provider == first.provider && s.status == first.status && s.at-at <= math.MaxUint32
}

func appendPage(b []byte, k *pageKey, p *pairPage) []byte {
	le := binary.LittleEndian
	first := &p.slots[bits.TrailingZeros64(p.seen)]
	at := first.at
	for m := p.seen; m != 0; m &= m - 1 {
		at = min(at, p.slots[bits.TrailingZeros64(m)].at)
	}
	plain := uint64(0)
	for m := p.seen; m != 0; m &= m - 1 {
		if i := bits.TrailingZeros64(m); p.slots[i].isShort(k, first, at) {
			plain |= 1 << i
		}
	}
	flags := byte(0)
	if k.fan {
		flags = flagFan
	} else if plain != 0 {
		flags = flagPlain
	}
	if k.layer > 0 {
		flags |= flagMore
	}
	b = append(append(b, flags), k.base[:]...)
	if k.fan {
		b = le.AppendUint32(b, k.page)
	}
	if k.layer > 0 {
		b = le.AppendUint16(b, k.layer)
	}
	if k.fan {
		b = le.AppendUint64(le.AppendUint64(b, p.seen), plain)
	}
	b = append(le.AppendUint64(b, uint64(at)), byte(first.provider))
	b = le.AppendUint16(b, uint16(first.status))
	for m := p.seen; m != 0; m &= m - 1 {
		i := bits.TrailingZeros64(m)
		s := &p.slots[i]
		if plain>>i&1 == 1 {
			b = le.AppendUint32(le.AppendUint16(le.AppendUint32(b, s.addr), s.attempt), uint32(s.at-at))
			continue
		}
		b = le.AppendUint32(le.AppendUint64(b, uint64(s.at)), s.addr)
		b = le.AppendUint16(le.AppendUint16(b, s.attempts), s.deliveries)
		b = le.AppendUint16(le.AppendUint16(b, s.attempt), uint16(s.status))
		counted := byte(0)
		if s.idCounted {
			counted = flagCounted
		}
		b = append(b, byte(s.provider)|counted<<4)
	}
	return b
}

// pageHead is the head of a page. It precedes the slots.
type pageHead struct {
	key         pageKey
	seen, short uint64
	size        int // length of the head
}

// length returns the length of the page in bytes, with its slots.
func (h *pageHead) length() int {
	n := bits.OnesCount64(h.short)
	return h.size + n*plainSlot + (bits.OnesCount64(h.seen)-n)*fullSlot
}

// readHead parses the head of a page. b must begin with a whole page.
func readHead(b []byte, h *pageHead) {
	le := binary.LittleEndian
	flags := b[0]
	h.key = pageKey{fan: flags&flagFan != 0}
	n := 1 + copy(h.key.base[:], b[1:])
	if h.key.fan {
		h.key.page = le.Uint32(b[n:])
		n += 4
	}
	if flags&flagMore != 0 {
		h.key.layer = le.Uint16(b[n:])
		n += 2
	}
	h.seen, h.short = 1, uint64(flags&flagPlain)/flagPlain
	if h.key.fan {
		h.seen, h.short = le.Uint64(b[n:]), le.Uint64(b[n+8:])
		n += 16
	}
	h.size = n + 8 + 1 + 2
}

// readPage parses the slots that follow a head.
func readPage(b []byte, h *pageHead, p *pairPage) {
	le := binary.LittleEndian
	at := int64(le.Uint64(b[h.size-11:]))
	provider, status := Provider(b[h.size-3]), int16(le.Uint16(b[h.size-2:]))
	p.seen = h.seen
	b = b[h.size:]
	for m := h.seen; m != 0; m &= m - 1 {
		i := bits.TrailingZeros64(m)
		s := &p.slots[i]
		if h.short>>i&1 == 1 {
			*s = pairSlot{
				at: at + int64(le.Uint32(b[6:])), addr: le.Uint32(b), attempt: le.Uint16(b[4:]),
				attempts: 1, deliveries: 1, status: status, provider: provider, idCounted: h.key.layer == 0,
			}
			b = b[plainSlot:]
			continue
		}
		*s = pairSlot{
			at: int64(le.Uint64(b)), addr: le.Uint32(b[8:]), attempts: le.Uint16(b[12:]), deliveries: le.Uint16(b[14:]),
			attempt: le.Uint16(b[16:]), status: int16(le.Uint16(b[18:])), provider: Provider(b[20] & 15), idCounted: b[20]>>4 != 0,
		}
		b = b[fullSlot:]
	}
}

func (r *ledgerRun) mayHold(k *pageKey) bool {
	return k.compare(&r.last) <= 0 && k.compare(&r.first) >= 0 && r.filter.mayHold(k)
}

// loadPage reads a page into p. It returns false if the run does not contain the page. Only one
// goroutine may call it at a time.
func (r *ledgerRun) loadPage(k *pageKey, p *pairPage) (bool, error) {
	if !r.mayHold(k) {
		return false, nil
	}
	n := r.blockOf(k)
	if r.buffered != n {
		b, err := r.readBlock(n, r.buf)
		if err != nil {
			r.buffered = -1
			return false, err
		}
		r.buf, r.buffered = b, n
	}
	var h pageHead
	for b := r.buf; len(b) > 0; b = b[h.length():] {
		readHead(b, &h)
		switch c := h.key.compare(k); {
		case c == 0:
			readPage(b, &h, p)
			return true, nil
		case c > 0:
			return false, nil
		}
	}
	return false, nil
}

// blockOf returns the number of the block that contains k, if the run contains k.
func (r *ledgerRun) blockOf(k *pageKey) int {
	return max(sort.Search(len(r.index), func(i int) bool { return r.index[i].key.compare(k) > 0 })-1, 0)
}

// readBlock reads block n into b, or into a new slice if b is too small. It returns the slice.
func (r *ledgerRun) readBlock(n int, b []byte) ([]byte, error) {
	from, to := r.index[n].at, r.size
	if n+1 < len(r.index) {
		to = r.index[n+1].at
	}
	b = slices.Grow(b[:0], int(to-from))[:to-from]
	if _, err := r.file.ReadAt(b, from); err != nil {
		return nil, fmt.Errorf("ledger: %w", unexpectedEOF(err))
	}
	return b, nil
}

func unexpectedEOF(err error) error {
	if err == io.EOF { //nolint:errorlint // ReadAt does not wrap it
		return io.ErrUnexpectedEOF
	}
	return err
}

// bloomFilter is a Bloom filter with 10 bits per key. Of the keys that the run does not contain,
// about one in a hundred passes the filter. For such a key the run is read in vain.
type bloomFilter []uint64

const (
	filterBits   = 10
	filterProbes = 6
)

func newFilter(n int) bloomFilter { return make(bloomFilter, n*filterBits/64+1) }

// probes calls visit with the position of each filter bit that belongs to the page key k, until
// visit returns false.
func (f bloomFilter) probes(k *pageKey, visit func(word int, bit uint64) bool) bool {
	var b [24]byte
	copy(b[:], k.base[:])
	binary.LittleEndian.PutUint32(b[16:], k.page)
	binary.LittleEndian.PutUint16(b[20:], k.layer)
	b[22] = byte(b2u(k.fan))
	h := xxhash.Sum64(b[:])
	step := h>>32 | 1
	for range filterProbes {
		hi, _ := bits.Mul64(h, uint64(len(f))*64)
		if !visit(int(hi/64), 1<<(hi%64)) {
			return false
		}
		h = (h + step) * 0x9e3779b97f4a7c15
	}
	return true
}

func (f bloomFilter) add(k *pageKey) {
	f.probes(k, func(word int, bit uint64) bool { f[word] |= bit; return true })
}

func (f bloomFilter) mayHold(k *pageKey) bool {
	return f.probes(k, func(word int, bit uint64) bool { return f[word]&bit != 0 })
}
