package lossfs

import (
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"
)

const pageSize = 4096

// Names says what makes a name durable; see the package's documentation.
type Names int

// The models.
const (
	// WithFile: an fsync of the file or of its folder. Linux's file systems.
	WithFile Names = iota
	// WithFolder: an fsync of the folder only. The letter of POSIX.
	WithFolder
)

// Disk is the file system behind a mount. It lives in memory and may be used
// from any goroutine.
type Disk struct {
	names Names

	mu      sync.Mutex
	root    *node
	nodes   map[uint64]*node // those the kernel knows, by id
	lastID  uint64
	pending []change // volatile changes of names, in their order
	group   uint64   // of the last change; a rename's two share one
	syncs   int64
}

// Loss counts what a cut dropped.
type Loss struct {
	Pages int // of files that survived
	Names int // changes of names
}

type page [pageSize]byte

// node is a file or a folder. Of each pair of fields, the second is what a cut
// would leave.
type node struct {
	id      uint64
	dir     bool
	mode    uint32
	mtime   time.Time
	lookups uint64
	parent  *node // of the live name; nil: unlinked, or the root
	moved   bool  // changes of its names are pending

	live, safe map[string]*node // of a folder

	pages, safePages map[int64]*page // of a file; a page in both maps is never written to
	size, safeSize   int64
	dirty            map[int64]struct{} // pages that differ
	low              int64              // smallest size since the last sync
}

// change of a name: in dir, name meant from and means to.
type change struct {
	dir      *node
	name     string
	from, to *node
	group    uint64
}

// New returns an empty disk.
func New(names Names) *Disk {
	d := &Disk{names: names, nodes: map[uint64]*node{}}
	d.root = d.newNode(true, 0o755)
	return d
}

func (d *Disk) newNode(dir bool, mode uint32) *node {
	d.lastID++
	n := &node{id: d.lastID, dir: dir, mode: mode & 0o7777, mtime: time.Now()}
	if dir {
		n.live, n.safe = map[string]*node{}, map[string]*node{}
	} else {
		n.pages, n.safePages, n.dirty = map[int64]*page{}, map[int64]*page{}, map[int64]struct{}{}
	}
	return n
}

// Syncs is the number of syncs so far.
func (d *Disk) Syncs() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.syncs
}

// Cut drops what is volatile, or keeps part of it where rng is not nil. Files
// that are open lose their names: what is written to them afterwards reaches
// nothing, so the processes that hold them should be dead.
func (d *Disk) Cut(rng *rand.Rand) Loss {
	d.mu.Lock()
	defer d.mu.Unlock()
	var loss Loss
	kept := 0
	if rng != nil && len(d.pending) > 0 {
		kept = rng.IntN(len(d.pending) + 1)
		for kept > 0 && kept < len(d.pending) && d.pending[kept].group == d.pending[kept-1].group {
			kept++ // all of a rename or nothing
		}
	}
	for _, c := range d.pending[:kept] {
		set(c.dir.safe, c.name, c.to)
	}
	loss.Names = len(d.pending) - kept
	d.pending = nil
	old := d.root
	d.nodes = map[uint64]*node{}
	d.root = d.revive(old, nil, rng, &loss)
	return loss
}

// Copy returns a new disk with the data that a cut would leave of this one. It does not change
// this one.
func (d *Disk) Copy() *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := New(d.names)
	c.root = c.revive(d.root, nil, nil, new(Loss))
	return c
}

// revive copies what a cut leaves of n into a new node, so that nobody who
// still holds the old one reaches it.
func (d *Disk) revive(n, parent *node, rng *rand.Rand, loss *Loss) *node {
	r := d.newNode(n.dir, n.mode)
	r.mtime, r.parent = n.mtime, parent
	if n.dir {
		for _, name := range slices.Sorted(maps.Keys(n.safe)) {
			c := d.revive(n.safe[name], r, rng, loss)
			r.live[name], r.safe[name] = c, c
		}
		return r
	}
	loss.Pages += n.tear(rng)
	r.pages, r.safePages = maps.Clone(n.safePages), maps.Clone(n.safePages)
	r.size, r.safeSize, r.low = n.safeSize, n.safeSize, n.safeSize
	return r
}

// tear makes a random part of a file's volatile pages durable and returns how
// many it left out.
func (n *node) tear(rng *rand.Rand) (lost int) {
	if rng == nil || n.low < n.safeSize && rng.IntN(2) == 0 {
		return len(n.dirty)
	}
	if n.low < n.safeSize { // the truncation came through
		for i := range n.safePages {
			if i*pageSize >= n.low {
				delete(n.safePages, i)
			}
		}
		n.safeSize = n.low
		n.clip()
	}
	if n.size > n.safeSize && rng.IntN(2) == 0 {
		n.safeSize = n.size
	}
	for _, i := range slices.Sorted(maps.Keys(n.dirty)) {
		if i*pageSize >= n.safeSize || rng.IntN(2) == 0 {
			lost++
			continue
		}
		set(n.safePages, i, n.pages[i])
	}
	n.clip()
	return lost
}

// clip writes zeros behind the durable end of the last page.
func (n *node) clip() {
	if p := n.safePages[n.safeSize/pageSize]; p != nil {
		c := *p
		clear(c[n.safeSize%pageSize:])
		n.safePages[n.safeSize/pageSize] = &c
	}
}

func set[K comparable, V any](m map[K]*V, k K, v *V) {
	if v == nil {
		delete(m, k)
	} else {
		m[k] = v
	}
}

// link gives name in dir a new meaning; to nil removes it.
func (d *Disk) link(dir *node, name string, to *node) {
	c := change{dir, name, dir.live[name], to, d.group}
	for _, n := range []*node{c.from, c.to} {
		if n != nil {
			n.moved = true
		}
	}
	if c.from != nil {
		c.from.parent = nil
	}
	if to != nil {
		to.parent = dir
	}
	set(dir.live, name, to)
	dir.mtime = time.Now()
	d.pending = append(d.pending, c)
}

// settle makes the changes durable that which names, by folder and name.
func (d *Disk) settle(which func(c *change) bool) {
	type entry struct {
		dir  *node
		name string
	}
	chosen := map[entry]bool{}
	for i := range d.pending {
		if c := &d.pending[i]; which(c) {
			chosen[entry{c.dir, c.name}] = true
		}
	}
	if len(chosen) == 0 {
		return
	}
	for e := range chosen {
		set(e.dir.safe, e.name, e.dir.live[e.name])
	}
	d.pending = slices.DeleteFunc(d.pending, func(c change) bool { return chosen[entry{c.dir, c.name}] })
}

func (d *Disk) sync(n *node) {
	d.syncs++
	if n.dir {
		d.settle(func(c *change) bool { return c.dir == n })
	} else {
		for i := range n.dirty {
			set(n.safePages, i, n.pages[i])
		}
		clear(n.dirty)
		n.safeSize, n.low = n.size, n.size
	}
	if d.names == WithFolder {
		return
	}
	for ; n != nil; n = n.parent {
		if n.moved {
			d.settle(func(c *change) bool { return c.from == n || c.to == n })
			n.moved = false
		}
	}
}

func (n *node) truncate(size int64) {
	for i := range n.pages {
		if i*pageSize >= size {
			delete(n.pages, i)
			n.dirty[i] = struct{}{}
		}
	}
	if in := size % pageSize; in != 0 && size < n.size && n.pages[size/pageSize] != nil {
		clear(n.writable(size / pageSize)[in:])
	}
	n.size, n.low, n.mtime = size, min(n.low, size), time.Now()
}

// writable returns page i for writing; the caller must not hold it over a sync.
func (n *node) writable(i int64) *page {
	p := n.pages[i]
	switch p {
	case nil:
		p = new(page)
	case n.safePages[i]:
		c := *p
		p = &c
	}
	n.pages[i] = p
	n.dirty[i] = struct{}{}
	return p
}

func (n *node) write(b []byte, off int64) {
	n.size = max(n.size, off+int64(len(b)))
	n.mtime = time.Now()
	for len(b) > 0 {
		k := copy(n.writable(off / pageSize)[off%pageSize:], b)
		b, off = b[k:], off+int64(k)
	}
}

func (n *node) read(b []byte, off int64) int {
	b = b[:max(min(int64(len(b)), n.size-off), 0)]
	for rest := b; len(rest) > 0; {
		var k int
		if p := n.pages[off/pageSize]; p != nil {
			k = copy(rest, p[off%pageSize:])
		} else {
			k = min(len(rest), int(pageSize-off%pageSize))
			clear(rest[:k])
		}
		rest, off = rest[k:], off+int64(k)
	}
	return len(b)
}

// rename moves a name, replacing what it finds.
func (d *Disk) rename(from *node, name string, to *node, target string, replace syscall.Errno) syscall.Errno {
	n := from.live[name]
	if n == nil {
		return syscall.ENOENT
	}
	old := to.live[target]
	switch {
	case old == n:
		return 0
	case old == nil:
	case replace != 0:
		return replace
	case old.dir && !n.dir:
		return syscall.EISDIR
	case !old.dir && n.dir:
		return syscall.ENOTDIR
	case old.dir && len(old.live) > 0:
		return syscall.ENOTEMPTY
	}
	d.group++
	d.link(from, name, nil)
	d.link(to, target, n)
	return 0
}

func (d *Disk) create(dir *node, name string, folder bool, mode uint32) (*node, syscall.Errno) {
	if !dir.dir {
		return nil, syscall.ENOTDIR
	}
	if dir.live[name] != nil {
		return nil, syscall.EEXIST
	}
	n := d.newNode(folder, mode)
	d.group++
	d.link(dir, name, n)
	return n, 0
}

func (d *Disk) remove(dir *node, name string, folder bool) syscall.Errno {
	n := dir.live[name]
	switch {
	case n == nil:
		return syscall.ENOENT
	case folder && !n.dir:
		return syscall.ENOTDIR
	case !folder && n.dir:
		return syscall.EISDIR
	case n.dir && len(n.live) > 0:
		return syscall.ENOTEMPTY
	}
	d.group++
	d.link(dir, name, nil)
	return 0
}
