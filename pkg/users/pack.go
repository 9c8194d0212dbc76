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
	unit         = 32 // cells are multiples of it
	largestCell  = 8 * unit
	keysPerPilot = 4
)

// item is an entry to be packed.
type item struct {
	hash       uint64
	key, value []byte
}

// plan is the memory that the state of some items takes.
type plan struct {
	pilots     int
	room, size uint32 // cells and bytes of each
	spill      int    // bytes
}

func (p *plan) cells() int { return int(p.room) * int(p.size) }

// sizes counts entries by their size in units; the last are larger than any cell.
type sizes [largestCell/unit + 1]struct{ n, bytes int }

func (c *sizes) add(size int) {
	i := min((size-1)/unit, len(c)-1)
	c[i].n++
	c[i].bytes += size
}

// plan chooses the size of the cells so that they and what is spilled take least; a
// spilled entry counts two lines more, for it is a second miss.
func (c *sizes) plan() plan {
	n := 0
	for i := range c {
		n += c[i].n
	}
	if n == 0 {
		return plan{}
	}
	p := plan{pilots: (n + keysPerPilot - 1) / keysPerPilot, room: uint32(n + n/15 + 1)}
	least := math.MaxInt
	for last := range len(c) - 1 {
		size, spill, cost := (last+1)*unit, 0, 0
		for i := last + 1; i < len(c); i++ {
			spill += c[i].bytes
			cost += c[i].bytes + c[i].n*2*cacheLine
		}
		if cost += size * int(p.room); cost < least {
			p.size, p.spill, least = uint32(size), spill, cost
		}
	}
	return p
}

// packed returns the same content without changes, of fitting size.
func (s *state) packed() *state {
	k := packers.Get().(*packer)
	var c sizes
	s.each(func(h uint64, key, value []byte) {
		k.items = append(k.items, item{h, key, value})
		c.add(entrySize(key, value))
	})
	p := c.plan()
	next := k.pack(p, make([]uint16, p.pilots), make([]byte, p.cells()))
	packers.Put(k) // not where it panicked: it would hold items of this table
	return next
}

// packer is the room that packing needs. It is empty between two uses.
type packer struct {
	items []item
	order []uint32 // the items, by their pilot
	ends  []uint32 // per pilot, where its items end in order
	taken []uint64 // a bit per cell
	cells []uint32 // per item
}

var packers = sync.Pool{New: func() any { return new(packer) }}

// pack makes a state of the items, which it forgets: all of different keys, as p was
// planned for. The memory it is given is zero.
func (k *packer) pack(p plan, pilots []uint16, cells []byte) *state {
	defer func() {
		clear(k.items) // they alias the state before
		k.items = k.items[:0]
	}()
	s := &state{pilots: pilots, cells: cells, room: p.room, size: p.size, spill: make([]byte, 0, p.spill)}
	k.choose(pilots, p.room)
	for i, it := range k.items {
		if k.cells[i] == noCell {
			s.over = append(s.over, change{hash: it.hash, key: slices.Clone(it.key), value: slices.Clone(it.value)})
			continue
		}
		b := cells[int(k.cells[i])*int(p.size):][:p.size]
		if entrySize(it.key, it.value) > int(p.size) {
			b[1] = 1
			binary.LittleEndian.PutUint64(b[2:], uint64(len(s.spill)))
			binary.LittleEndian.PutUint32(b[10:], uint32(it.hash))
			s.spill = appendEntry(s.spill, it.key, it.value)
			continue
		}
		appendEntry(b[:0], it.key, it.value) // in place, for it fits
	}
	return s
}

// noCell is of an item for which there is no cell: its hash is another's, or no pilot
// was left to try, which was never seen.
const noCell = math.MaxUint32

// choose finds a pilot for the keys of each, so that no two of all the keys are in the
// same cell. Those of the most keys choose first, while there is room.
func (k *packer) choose(pilots []uint16, room uint32) {
	n := len(k.items)
	k.ends = zeros(k.ends, len(pilots))
	k.order, k.cells = zeros(k.order, n), zeros(k.cells, n)
	k.taken = zeros(k.taken, int(room+63)/64)
	for i := range k.items {
		k.ends[pilotOf(k.items[i].hash, len(pilots))]++
	}
	sum, most := uint32(0), uint32(0)
	for i, of := range k.ends {
		k.ends[i], sum, most = sum, sum+of, max(most, of)
	}
	for i := range k.items {
		at := &k.ends[pilotOf(k.items[i].hash, len(pilots))]
		k.order[*at] = uint32(i)
		*at++
	}
	for ; most > 0; most-- {
		from := uint32(0)
		for i, end := range k.ends {
			if end-from == most {
				pilots[i] = k.place(k.order[from:end], room)
			}
			from = end
		}
	}
}

// place finds the pilot of some items and takes their cells.
func (k *packer) place(items []uint32, room uint32) uint16 {
	for len(items) > 0 {
		for pilot := range math.MaxUint16 + 1 {
			placed := 0
			for _, i := range items {
				at := cellOf(k.items[i].hash, uint16(pilot), room)
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
		out := k.twin(items)
		k.cells[items[out]] = noCell
		items[out] = items[0]
		items = items[1:]
	}
	return 0
}

// twin is the place of an item whose hash is another's too; 0: there is none.
func (k *packer) twin(items []uint32) int {
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

// loader fills a table that nobody writes to meanwhile; readers see nothing
// of it until done. A key may be added once; one without a byte is not stored.
type loader struct {
	t       *table
	entries [shards][]byte
	items   []item // of one piece
}

func (l *loader) add(hash uint64, key, value []byte) {
	if len(key) == 0 {
		return
	}
	i := hash >> (64 - shardBits)
	l.entries[i] = appendEntry(l.entries[i], key, value)
}

// together is how many shards' memory is one piece: large enough for large
// pages, without which a look-up among millions of entries takes twice as long
// (BenchmarkLook), and small enough for who waits for it: see Service.loadWanted. A piece
// is free once each of its shards has been packed again.
const together = 64

// wholeLines is the least multiple of a cache line that is not below n.
func wholeLines(n int) int { return (n + cacheLine - 1) &^ (cacheLine - 1) }

// done publishes, piece by piece, in place of what the table held: the peak is one piece
// above the sum.
func (l *loader) done() { l.merge(nil, nil, nil) }

// merge is done that leaves in the table what it held of the keys that stay names and
// that were not added. An added key that skip names is left as the table has it. Both nil
// are done. step, unless nil, is called around each piece: nobody writes to the table
// inside it, and inside one step stay and skip say the same.
func (l *loader) merge(stay, skip func(key []byte) bool, step func(piece func())) {
	if step == nil {
		step = func(piece func()) { piece() }
	}
	for from := 0; from < shards; from += together {
		step(func() { l.publish(from, stay, skip) })
	}
}

// publish is merge of one piece, of the shards from one on.
func (l *loader) publish(from int, stay, skip func(key []byte) bool) {
	k := packers.Get().(*packer)
	var plans [together]plan
	var ends [together]int // of the shards' items in all
	size, pilots := 0, 0
	all := l.items[:0]
	for i := range plans {
		var c sizes
		l.each(from+i, stay, skip, func(hash uint64, key, value []byte) {
			all = append(all, item{hash, key, value})
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
		var s *state
		if len(k.items) > 0 {
			s = k.pack(p, chosen[:p.pilots:p.pilots], cells[:p.cells():p.cells()])
			cells, chosen = cells[wholeLines(p.cells()):], chosen[p.pilots:]
		}
		l.entries[from+i] = nil
		if old := l.t.shards[from+i].state.Swap(s); old != nil {
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

// each visits what a shard will hold, see merge.
func (l *loader) each(shard int, stay, skip func(key []byte) bool, fn func(hash uint64, key, value []byte)) {
	var old *state
	if stay != nil {
		old = l.t.shards[shard].state.Load()
	}
	added := map[string]struct{}(nil)
	if old != nil {
		added = map[string]struct{}{}
	}
	for b := l.entries[shard]; len(b) > 0; {
		key, value := entry(b)
		if b = b[entrySize(key, value):]; skip != nil && skip(key) {
			continue
		}
		if fn(hashKey(key), key, value); added != nil {
			added[unsafe.String(unsafe.SliceData(key), len(key))] = struct{}{} // the entries outlive it
		}
	}
	if old == nil {
		return
	}
	old.each(func(hash uint64, key, value []byte) {
		if _, ok := added[string(key)]; !ok && stay(key) {
			fn(hash, key, value)
		}
	})
}
