package users

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"sync"
	"unsafe"
)

const (
	cellUnit     = 32 // the size of a cell is a multiple of cellUnit bytes
	largestCell  = 8 * cellUnit
	keysPerPilot = 4
)

// packItem is an entry to be packed.
type packItem struct {
	hash       uint64
	key, value []byte
}

// cellLayout is the memory that a shardState needs for its items.
type cellLayout struct {
	pilots              int
	cellCount, cellSize uint32 // number of cells, and bytes of each cell
	spill               int    // bytes
}

func (p *cellLayout) cells() int { return int(p.cellCount) * int(p.cellSize) }

// sizeHistogram counts entries by their size, in units of cellUnit. The last class counts entries
// that are larger than any cell.
type sizeHistogram [largestCell/cellUnit + 1]struct{ n, bytes int }

func (c *sizeHistogram) add(size int) {
	i := min((size-1)/cellUnit, len(c)-1)
	c[i].n++
	c[i].bytes += size
}

// plan chooses the cell size for which the cells and the spilled entries need the least memory. It
// adds two cache lines to the cost of each spilled entry, because a spilled entry costs a second
// cache miss.
func (c *sizeHistogram) plan() cellLayout {
	n := 0
	for i := range c {
		n += c[i].n
	}
	if n == 0 {
		return cellLayout{}
	}
	p := cellLayout{pilots: (n + keysPerPilot - 1) / keysPerPilot, cellCount: uint32(n + n/15 + 1)}
	least := math.MaxInt
	for last := range len(c) - 1 {
		size, spill, cost := (last+1)*cellUnit, 0, 0
		for i := last + 1; i < len(c); i++ {
			spill += c[i].bytes
			cost += c[i].bytes + c[i].n*2*cacheLine
		}
		if cost += size * int(p.cellCount); cost < least {
			p.cellSize, p.spill, least = uint32(size), spill, cost
		}
	}
	return p
}

// repack returns a shardState with the same entries, without an overlay of recent changes.
func (s *shardState) repack() *shardState {
	k := packers.Get().(*packer)
	var c sizeHistogram
	s.each(func(h uint64, key, value []byte) {
		k.items = append(k.items, packItem{h, key, value})
		c.add(entrySize(key, value))
	})
	p := c.plan()
	next := k.pack(p, make([]uint16, p.pilots), make([]byte, p.cells()))
	packers.Put(k) // not deferred: after a panic, k would keep items of this table
	return next
}

// packer contains the scratch memory for packing. It is empty between two uses.
type packer struct {
	items []packItem
	order []uint32 // the items, ordered by pilot
	ends  []uint32 // for each pilot, the index just after the pilot's last item in the field order
	taken []uint64 // one bit for each cell
	cells []uint32 // for each item, its cell
}

var packers = sync.Pool{New: func() any { return new(packer) }}

// pack builds a shardState from k.items and then clears k.items. All items must have different
// keys. The parameter p must be the layout for these items. The slices pilots and cells become part
// of the shardState, and must be zeroed.
func (k *packer) pack(p cellLayout, pilots []uint16, cells []byte) *shardState {
	defer func() {
		clear(k.items) // the items alias memory of the earlier shardState
		k.items = k.items[:0]
	}()
	s := &shardState{pilots: pilots, cells: cells, cellCount: p.cellCount, cellSize: p.cellSize, spill: make([]byte, 0, p.spill)}
	k.choosePilots(pilots, p.cellCount)
	for i, it := range k.items {
		if k.cells[i] == noCell {
			s.overlay = append(s.overlay, keyChange{hash: it.hash, key: slices.Clone(it.key), value: slices.Clone(it.value)})
			continue
		}
		b := cells[int(k.cells[i])*int(p.cellSize):][:p.cellSize]
		if entrySize(it.key, it.value) > int(p.cellSize) {
			b[1] = 1
			binary.LittleEndian.PutUint64(b[2:], uint64(len(s.spill)))
			binary.LittleEndian.PutUint32(b[10:], uint32(it.hash))
			s.spill = appendEntry(s.spill, it.key, it.value)
			continue
		}
		appendEntry(b[:0], it.key, it.value) // written in place, because the entry fits into the cell
	}
	return s
}

// noCell means that an item has no cell. Either another item has the same hash, or no pilot gave
// the item a free cell. The second case was never observed.
const noCell = math.MaxUint32

// choosePilots chooses a pilot for each group of keys, so that no two keys use the same cell. It
// begins with the largest groups, while most cells are free.
func (k *packer) choosePilots(pilots []uint16, cellCount uint32) {
	n := len(k.items)
	k.ends = zeros(k.ends, len(pilots))
	k.order, k.cells = zeros(k.order, n), zeros(k.cells, n)
	k.taken = zeros(k.taken, int(cellCount+63)/64)
	for i := range k.items {
		k.ends[pilotIndex(k.items[i].hash, len(pilots))]++
	}
	sum, most := uint32(0), uint32(0)
	for i, of := range k.ends {
		k.ends[i], sum, most = sum, sum+of, max(most, of)
	}
	for i := range k.items {
		at := &k.ends[pilotIndex(k.items[i].hash, len(pilots))]
		k.order[*at] = uint32(i)
		*at++
	}
	for ; most > 0; most-- {
		from := uint32(0)
		for i, end := range k.ends {
			if end-from == most {
				pilots[i] = k.placeItems(k.order[from:end], cellCount)
			}
			from = end
		}
	}
}

// placeItems finds a pilot that gives each item of one group a free cell, and marks these cells as
// taken. If no pilot does, it leaves items out (noCell) until one does.
func (k *packer) placeItems(items []uint32, cellCount uint32) uint16 {
	for len(items) > 0 {
		for pilot := range math.MaxUint16 + 1 {
			placed := 0
			for _, i := range items {
				at := cellIndex(k.items[i].hash, uint16(pilot), cellCount)
				bit := uint64(1) << (at & 63)
				if k.taken[at>>6]&bit != 0 {
					break
				}
				k.taken[at>>6] |= bit
				k.cells[i] = at
				placed++
			}
			if placed == len(items) {
				return uint16(pilot)
			}
			for _, i := range items[:placed] {
				at := k.cells[i]
				k.taken[at>>6] &^= 1 << (at & 63)
			}
		}
		out := k.duplicateHash(items)
		k.cells[items[out]] = noCell
		items[out] = items[0]
		items = items[1:]
	}
	return 0
}

// duplicateHash returns the index of an item with the same hash as another item; 0 if all hashes
// differ.
func (k *packer) duplicateHash(items []uint32) int {
	for i := range items {
		for _, o := range items[i+1:] {
			if k.items[o].hash == k.items[items[i]].hash {
				return i
			}
		}
	}
	return 0
}

func zeros[T uint32 | uint64](b []T, n int) []T {
	if cap(b) < n {
		return make([]T, n)
	}
	b = b[:n]
	clear(b)
	return b
}

func appendEntry(b, key, value []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(key)))
	b = binary.AppendUvarint(b, uint64(len(value)))
	return append(append(b, key...), value...)
}

func entrySize(k, v []byte) int {
	return uvarintLen(len(k)) + uvarintLen(len(v)) + len(k) + len(v)
}

func uvarintLen(n int) int { return (bits.Len(uint(n)|1) + 6) / 7 }

// loader fills a table. Readers do not see the new entries until publishAll or merge. While merge
// publishes, other goroutines must not write to the table (see merge). No key may be added twice to
// the same loader. An empty key is ignored.
type loader struct {
	t       *table
	entries [shards][]byte
	items   []packItem // the items of one piece
}

func (l *loader) add(hash uint64, key, value []byte) {
	if len(key) == 0 {
		return
	}
	i := hash >> (64 - shardBits)
	l.entries[i] = appendEntry(l.entries[i], key, value)
}

// shardsPerPiece is how many shards share one piece of memory. A piece must be large enough for
// large pages: with small pages a look-up among millions of entries takes twice as long
// (BenchmarkLook). A piece must also be small, because other goroutines wait for applyMu while it
// is built (Service.loadWanted). A piece is freed only after all of its shards have been packed
// again.
const shardsPerPiece = 64

// wholeLines rounds n up to a multiple of cacheLine.
func wholeLines(n int) int { return (n + cacheLine - 1) &^ (cacheLine - 1) }

// publishAll replaces the contents of the table piece by piece. At the peak it needs the memory of
// one additional piece.
func (l *loader) publishAll() { l.merge(nil, nil, nil) }

// merge publishes the entries that were added to the loader, except the entries for whose key skip
// returns true. It also keeps the entries of the table for whose key keepOld returns true. If the
// table and the loader have the same key, the published entry of the loader wins. If keepOld is
// nil, merge keeps no entry of the table. If skip is nil, it publishes all added entries.
//
// merge publishes the table in pieces. For each piece it calls step with a function that publishes
// the piece, and step must call this function. If step is nil, merge calls the function itself.
// While the function runs, no other goroutine may write to the table, and the results of keepOld
// and skip must not change.
func (l *loader) merge(keepOld, skip func(key []byte) bool, step func(piece func())) {
	if step == nil {
		step = func(piece func()) { piece() }
	}
	for from := 0; from < shards; from += shardsPerPiece {
		step(func() { l.publishPiece(from, keepOld, skip) })
	}
}

// publishPiece does the work of merge for the shards of one piece, which begins at firstShard.
func (l *loader) publishPiece(firstShard int, keepOld, skip func(key []byte) bool) {
	k := packers.Get().(*packer)
	var plans [shardsPerPiece]cellLayout
	var ends [shardsPerPiece]int // for each shard, the index just after the shard's last item in the slice all
	size, pilots := 0, 0
	all := l.items[:0]
	for i := range plans {
		var c sizeHistogram
		l.eachResult(firstShard+i, keepOld, skip, func(hash uint64, key, value []byte) {
			all = append(all, packItem{hash, key, value})
			c.add(entrySize(key, value))
		})
		plans[i], ends[i] = c.plan(), len(all)
		size += wholeLines(plans[i].cells())
		pilots += plans[i].pilots
	}
	cells, chosen := make([]byte, size), make([]uint16, pilots)
	pieces := [...][]byte{cells, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(chosen))), 2*pilots)}
	for _, p := range pieces {
		preferLargePages(p)
	}
	n, begin, scratch := len(all), 0, k.items
	for i := range plans {
		p := plans[i]
		k.items = all[begin:ends[i]:ends[i]]
		begin = ends[i]
		var s *shardState
		if len(k.items) > 0 {
			s = k.pack(p, chosen[:p.pilots:p.pilots], cells[:p.cells():p.cells()])
			cells, chosen = cells[wholeLines(p.cells()):], chosen[p.pilots:]
		}
		l.entries[firstShard+i] = nil
		if old := l.t.shards[firstShard+i].state.Swap(s); old != nil {
			n -= old.len()
		}
	}
	for _, p := range pieces {
		makeLargePages(p)
	}
	l.items, k.items = all, scratch
	packers.Put(k)
	l.t.live.Add(int64(n))
}

// eachResult calls fn for each entry that the shard will have after merge.
func (l *loader) eachResult(shard int, keepOld, skip func(key []byte) bool, fn func(hash uint64, key, value []byte)) {
	var old *shardState
	if keepOld != nil {
		old = l.t.shards[shard].state.Load()
	}
	added := map[string]struct{}(nil)
	if old != nil {
		added = map[string]struct{}{}
	}
	for b := l.entries[shard]; len(b) > 0; {
		key, value := splitEntry(b)
		if b = b[entrySize(key, value):]; skip != nil && skip(key) {
			continue
		}
		if fn(hashKey(key), key, value); added != nil {
			added[unsafe.String(unsafe.SliceData(key), len(key))] = struct{}{} // the entries outlive the map
		}
	}
	if old == nil {
		return
	}
	old.each(func(hash uint64, key, value []byte) {
		if _, ok := added[string(key)]; !ok && keepOld(key) {
			fn(hash, key, value)
		}
	})
}
