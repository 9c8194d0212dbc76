package simulator

import (
	"slices"

	"github.com/notifyd/notifyd/pkg/notify"
)

// pairs holds every (id, address) pair, in bounded memory:
//
//	hot      what changes
//	frozen   a table that was full and is being written; it does not change
//	runs     files of what was frozen, the oldest first
//
// A slot is in the newest of these that has its page and its bit. What comes to a slot
// that is no longer hot puts a new version of it there, and of no neighbour: a page on
// disk may be in parts. The slots of ids that come in the order in which they were made
// are not looked for on disk, because no run reaches so far.
//
// Its methods are called with the ledger's lock held, but for write.
type pairs struct {
	dir    string
	budget int // bytes of hot; frozen takes as much

	hot    *table
	frozen *table // nil: none is being written
	spare  *table // an empty one, to be hot next
	runs   []*ledgerRun
	keys   []pageKey // of write
	err    error     // the first failure of the disk: from there on counts may be wrong
	page   page      // of load
	layers uint16    // the highest
}

func newPairs(dir string, budget int) *pairs {
	return &pairs{dir: dir, budget: budget, hot: newTable()}
}

// newest returns the newest version of a slot, an unused one if there is none.
func (p *pairs) newest(k *pageKey, i int) slot {
	s, alone := p.hot.get(k, i)
	if s.attempts == 0 && !alone && p.frozen != nil {
		s, alone = p.frozen.get(k, i)
	}
	if s.attempts > 0 || alone {
		return s
	}
	for _, r := range slices.Backward(p.runs) {
		switch ok, err := r.load(k, &p.page); {
		case err != nil:
			p.fail(err)
		case ok && p.page.seen>>i&1 == 1:
			return p.page.slots[i]
		}
	}
	return slot{}
}

// alone reports whether nothing but hot can have a page.
func (p *pairs) alone(k *pageKey) bool {
	if p.frozen != nil {
		if _, ok := p.frozen.places[*k]; ok {
			return false
		}
	}
	return !slices.ContainsFunc(p.runs, func(r *ledgerRun) bool { return r.mayHold(k) })
}

// load collects the newest versions of all slots of a page, and reports whether there
// are any.
func (p *pairs) load(k *pageKey, out *page) bool {
	p.hot.load(k, out)
	if p.frozen != nil && p.frozen.load(k, &p.page) {
		out.add(&p.page)
	}
	for _, r := range slices.Backward(p.runs) {
		switch ok, err := r.load(k, &p.page); {
		case err != nil:
			p.fail(err)
		case ok:
			out.add(&p.page)
		}
	}
	return out.seen != 0
}

func (p *pairs) fail(err error) {
	if p.err == nil {
		p.err = err
	}
}

// hit finds e's slot and counts it.
func (p *pairs) hit(id notify.ID, e *entry) hit {
	k, i := keyOf(id)
	addr := uint32(e.addr)
	first := p.newest(&k, i)
	if first.attempts == 0 || first.addr == addr {
		h := first.take(e)
		h.firstOfID = h.first && !first.idCounted
		first.idCounted = first.idCounted || h.first
		p.hot.put(&k, i, first, p.alone)
		return h
	}
	further := k
	var h hit
	for {
		further.layer++
		p.layers = max(p.layers, further.layer)
		if s := p.newest(&further, i); s.attempts == 0 || s.addr == addr {
			h = s.take(e)
			p.hot.put(&further, i, s, p.alone)
			break
		}
	}
	if h.firstOfID = h.first && !first.idCounted; h.firstOfID {
		first.idCounted = true
		p.hot.put(&k, i, first, p.alone)
	}
	return h
}

// full reports whether hot must be frozen, with so many bytes beside it.
func (p *pairs) full(beside int) bool {
	return p.err == nil && len(p.hot.places) > 0 && p.hot.bytes()+beside >= p.budget
}

// freeze makes room in hot. What it returns must be written.
func (p *pairs) freeze() *table {
	p.frozen, p.hot, p.spare = p.hot, p.spare, nil
	if p.hot == nil {
		p.hot = newTable()
	}
	return p.frozen
}

// written takes note of what became of the frozen table. Where the disk failed it stays
// in memory, and nothing is frozen any more.
func (p *pairs) written(r *ledgerRun, err error) {
	if err != nil {
		p.fail(err)
		return
	}
	p.runs = append(p.runs, r)
	p.spare, p.frozen = p.frozen, nil
	p.spare.reset()
}

// diskBytes is how much of the disk the runs take.
func (p *pairs) diskBytes() (n int64) {
	for _, r := range p.runs {
		n += r.size
	}
	return n
}

// inMemory lists the keys of pages in memory, in order, that are wanted.
func (p *pairs) inMemory(wanted func(k *pageKey) bool) (list []pageKey) {
	for _, t := range p.tables() {
		for k := range t.places {
			if wanted(&k) {
				list = append(list, k)
			}
		}
	}
	slices.SortFunc(list, func(a, b pageKey) int { return a.compare(&b) })
	return slices.Compact(list)
}

// fanInMemory lists those of one fan-out.
func (p *pairs) fanInMemory(b notify.Base) (list []pageKey) {
	pages, size := 0, 0
	for _, t := range p.tables() {
		if n, ok := t.last[b]; ok {
			pages = max(pages, int(n)+1)
		}
		size += len(t.places)
	}
	if pages*int(p.layers+1) > size {
		return p.inMemory(func(k *pageKey) bool { return k.fan && k.base == b })
	}
	for n := range pages { // tables are large, and fan-outs mostly are not
		for layer := range p.layers + 1 {
			k := pageKey{base: b, page: uint32(n), layer: layer, fan: true}
			if slices.ContainsFunc(p.tables(), func(t *table) bool { _, ok := t.places[k]; return ok }) {
				list = append(list, k)
			}
		}
	}
	return list
}

func (p *pairs) tables() []*table {
	if p.frozen == nil {
		return []*table{p.hot}
	}
	return []*table{p.hot, p.frozen}
}
