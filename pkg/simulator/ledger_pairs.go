package simulator

import (
	"slices"

	"github.com/notifyd/notifyd/pkg/notify"
)

// pairStore holds every (id, address) pair, in bounded memory:
//
//	hotTable     pairs that may change
//	frozenTable  a full table that is being written; it does not change
//	runs         files of tables that were frozen, the oldest first
//
// If several of these places contain a slot, the slot in the newest place is current. hotTable is the
// newest place, and runs[0] is the oldest place. To change a slot that is not in hotTable, pairStore
// adds a new version of this slot to hotTable, without the neighbours of the slot. So the slots of a
// page may be spread over several runs. If ids come in the order in which they were made, nothing is
// read from disk, because their keys are higher than all keys in the runs.
//
// The caller of each method holds the lock of the ledger. Only writeRun runs without the lock.
type pairStore struct {
	dir    string
	budget int // bytes of memory for hotTable; frozenTable may use the same number of bytes in addition

	hotTable    *pairTable
	frozenTable *pairTable // nil: no table is being written
	spareTable  *pairTable // an empty table that becomes the next hotTable; nil: none
	runs        []*ledgerRun
	runKeys     []pageKey // memory for the keys that writeRun sorts
	err         error     // first error of the disk; counts may be wrong after it
	pageBuf     pairPage  // buffer that newestVersion and loadPage use
	layers      uint16    // number of the highest layer
}

func newPairs(dir string, budget int) *pairStore {
	return &pairStore{dir: dir, budget: budget, hotTable: newTable()}
}

// newestVersion returns the newest version of a slot, or an unused slot if no version exists.
func (p *pairStore) newestVersion(k *pageKey, i int) pairSlot {
	s, alone := p.hotTable.slotOf(k, i)
	if s.attempts == 0 && !alone && p.frozenTable != nil {
		s, alone = p.frozenTable.slotOf(k, i)
	}
	if s.attempts > 0 || alone {
		return s
	}
	for _, r := range slices.Backward(p.runs) {
		switch ok, err := r.loadPage(k, &p.pageBuf); {
		case err != nil:
			p.noteError(err)
		case ok && p.pageBuf.seen>>i&1 == 1:
			return p.pageBuf.slots[i]
		}
	}
	return pairSlot{}
}

// isAlone returns true if only hotTable can contain a version of the page k.
func (p *pairStore) isAlone(k *pageKey) bool {
	if p.frozenTable != nil {
		if _, ok := p.frozenTable.places[*k]; ok {
			return false
		}
	}
	return !slices.ContainsFunc(p.runs, func(r *ledgerRun) bool { return r.mayHold(k) })
}

// loadPage collects the newest versions of all slots of the page k in the parameter page. It
// returns false if no slot is used.
func (p *pairStore) loadPage(k *pageKey, page *pairPage) bool {
	p.hotTable.loadPage(k, page)
	if p.frozenTable != nil && p.frozenTable.loadPage(k, &p.pageBuf) {
		page.add(&p.pageBuf)
	}
	for _, r := range slices.Backward(p.runs) {
		switch ok, err := r.loadPage(k, &p.pageBuf); {
		case err != nil:
			p.noteError(err)
		case ok:
			page.add(&p.pageBuf)
		}
	}
	return page.seen != 0
}

func (p *pairStore) noteError(err error) {
	if p.err == nil {
		p.err = err
	}
}

// countHit finds the slot of e's pair and counts e in it.
func (p *pairStore) countHit(id notify.ID, e *ledgerEntry) pairHit {
	k, i := keyOf(id)
	addr := uint32(e.addr)
	first := p.newestVersion(&k, i)
	if first.attempts == 0 || first.addr == addr {
		h := first.countTake(e)
		h.firstOfID = h.first && !first.idCounted
		first.idCounted = first.idCounted || h.first
		p.hotTable.setSlot(&k, i, first, p.isAlone)
		return h
	}
	further := k
	var h pairHit
	for {
		further.layer++
		p.layers = max(p.layers, further.layer)
		if s := p.newestVersion(&further, i); s.attempts == 0 || s.addr == addr {
			h = s.countTake(e)
			p.hotTable.setSlot(&further, i, s, p.isAlone)
			break
		}
	}
	if h.firstOfID = h.first && !first.idCounted; h.firstOfID {
		first.idCounted = true
		p.hotTable.setSlot(&k, i, first, p.isAlone)
	}
	return h
}

// isFull returns true if hotTable must be frozen. otherBytes is the size of other memory that is
// written to disk together with hotTable.
func (p *pairStore) isFull(otherBytes int) bool {
	return p.err == nil && len(p.hotTable.places) > 0 && p.hotTable.bytes()+otherBytes >= p.budget
}

// freeze replaces hotTable with an empty table and returns the old table. The caller must write the
// old table to a run.
func (p *pairStore) freeze() *pairTable {
	p.frozenTable, p.hotTable, p.spareTable = p.hotTable, p.spareTable, nil
	if p.hotTable == nil {
		p.hotTable = newTable()
	}
	return p.frozenTable
}

// frozenWritten ends the write of the frozen table. If the write failed, the table stays in memory,
// and no further table is frozen.
func (p *pairStore) frozenWritten(r *ledgerRun, err error) {
	if err != nil {
		p.noteError(err)
		return
	}
	p.runs = append(p.runs, r)
	p.spareTable, p.frozenTable = p.frozenTable, nil
	p.spareTable.reset()
}

// diskBytes returns how many bytes the runs need on disk.
func (p *pairStore) diskBytes() (n int64) {
	for _, r := range p.runs {
		n += r.size
	}
	return n
}

// pagesInMemory returns the sorted keys of the pages in memory for which wanted returns true.
func (p *pairStore) pagesInMemory(wanted func(k *pageKey) bool) (list []pageKey) {
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

// fanoutPagesInMemory returns the sorted keys of all pages of one fan-out that are in memory.
func (p *pairStore) fanoutPagesInMemory(b notify.Base) (list []pageKey) {
	pages, size := 0, 0
	for _, t := range p.tables() {
		if n, ok := t.highestPage[b]; ok {
			pages = max(pages, int(n)+1)
		}
		size += len(t.places)
	}
	if pages*int(p.layers+1) > size {
		return p.pagesInMemory(func(k *pageKey) bool { return k.fan && k.base == b })
	}
	// Look up each possible page of the fan-out. This is faster than a search through all pages,
	// because most fan-outs have few pages.
	for n := range pages {
		for layer := range p.layers + 1 {
			k := pageKey{base: b, page: uint32(n), layer: layer, fan: true}
			if slices.ContainsFunc(p.tables(), func(t *pairTable) bool { _, ok := t.places[k]; return ok }) {
				list = append(list, k)
			}
		}
	}
	return list
}

func (p *pairStore) tables() []*pairTable {
	if p.frozenTable == nil {
		return []*pairTable{p.hotTable}
	}
	return []*pairTable{p.hotTable, p.frozenTable}
}
