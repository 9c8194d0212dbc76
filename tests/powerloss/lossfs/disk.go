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

// Names is the rule that says which fsync makes a name durable; see the documentation of the
// package.
type Names int

// The models of a file system.
const (
	// WithFile means that an fsync of the file or of its folder makes a name durable. The file
	// systems of Linux work like this.
	WithFile Names = iota
	// WithFolder means that only an fsync of the folder makes a name durable. POSIX guarantees no
	// more than this.
	WithFolder
)

// Disk is a file system in memory that can be mounted. Its exported methods are safe for
// concurrent use.
type Disk struct {
	names Names

	mu      sync.Mutex
	root    *node
	nodes   map[uint64]*node // by id: the nodes that the kernel refers to
	lastID  uint64
	pending []change // volatile changes of names, oldest first
	group   uint64   // number of the last group of changes; see change.group
	syncs   int64    // number of syncs so far
}

// Loss counts the changes that a cut dropped.
type Loss struct {
	Pages int // changed pages of files that still exist after the cut
	Names int // changes of names
}

type page [pageSize]byte

// node is a file or a folder. The fields live, pages and size are its live state: what programs
// see. The fields safe, safePages and safeSize are its durable state: what a power cut leaves.
type node struct {
	id      uint64
	dir     bool
	mode    uint32
	mtime   time.Time
	lookups uint64 // number of references that the kernel has to this node
	parent  *node  // folder of the live name; nil for the root and for a removed node
	moved   bool   // true: Disk.pending may have changes of the names of this node

	live, safe map[string]*node // entries of a folder

	pages, safePages map[int64]*page    // pages of a file; a page in both maps must not be modified
	size, safeSize   int64              // bytes
	dirty            map[int64]struct{} // pages that were changed since the last sync
	low              int64              // smallest size since the last sync
}

// change is a change of one name in the folder dir that is not durable yet. The name belonged to
// the node in the field from, and now belongs to the node in the field to. A nil node means that
// the name does not exist. The two changes of a rename have the same group.
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

// Syncs returns the number of syncs so far.
func (d *Disk) Syncs() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.syncs
}

// Cut cuts the power. If rng is nil, Cut drops all changes that are not durable. Otherwise it keeps
// a random part of them. A file that is open during the cut becomes invalid: later calls that use
// it fail with ESTALE. So the caller should first kill the processes that have files open.
func (d *Disk) Cut(rng *rand.Rand) Loss {
	d.mu.Lock()
	defer d.mu.Unlock()
	var loss Loss
	kept := 0
	if rng != nil && len(d.pending) > 0 {
		kept = rng.IntN(len(d.pending) + 1)
		for kept > 0 && kept < len(d.pending) && d.pending[kept].group == d.pending[kept-1].group {
			kept++ // keep both changes of a rename, or neither
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

// Copy returns a new disk with the data that a cut of d would leave. It does not change d.
func (d *Disk) Copy() *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := New(d.names)
	c.root = c.revive(d.root, nil, nil, new(Loss))
	return c
}

// revive returns a new node with the durable state of n. It does not reuse n, because a process
// that still has n open must not reach the new data. The parent is the folder of the new node.
// revive adds the number of dropped pages to the counts in loss.
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

// tear makes a random part of a file's changed pages durable. It returns the number of changed
// pages that are lost. If rng is nil, all changed pages are lost.
func (n *node) tear(rng *rand.Rand) (lost int) {
	if rng == nil || n.low < n.safeSize && rng.IntN(2) == 0 {
		return len(n.dirty)
	}
	if n.low < n.safeSize { // the file was truncated since the sync; make the truncation durable
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

// clip writes zeros into the last durable page, after the durable end of the file.
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

// link assigns the node child to a name in the folder dir. If child is nil, link removes the name.
func (d *Disk) link(dir *node, name string, child *node) {
	c := change{dir, name, dir.live[name], child, d.group}
	for _, n := range []*node{c.from, c.to} {
		if n != nil {
			n.moved = true
		}
	}
	if c.from != nil {
		c.from.parent = nil
	}
	if child != nil {
		child.parent = dir
	}
	set(dir.live, name, child)
	dir.mtime = time.Now()
	d.pending = append(d.pending, c)
}

// makeDurable makes those pending changes durable for which the function selects returns true. If
// it returns true for one change of a name, makeDurable makes all pending changes of that name
// durable.
func (d *Disk) makeDurable(selects func(c *change) bool) {
	type entry struct {
		dir  *node
		name string
	}
	chosen := map[entry]bool{}
	for i := range d.pending {
		if c := &d.pending[i]; selects(c) {
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
		d.makeDurable(func(c *change) bool { return c.dir == n })
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
			d.makeDurable(func(c *change) bool { return c.from == n || c.to == n })
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

// writable returns page i for writing and marks it as dirty. After the next sync, the page is part
// of the durable state, and the caller must not write to it.
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

// rename moves the entry oldName of the folder oldDir to the name newName in the folder newDir. If
// newName exists already, the moved entry replaces it, or, if existsErr is not 0, rename returns
// existsErr.
func (d *Disk) rename(oldDir *node, oldName string, newDir *node, newName string, existsErr syscall.Errno) syscall.Errno {
	n := oldDir.live[oldName]
	if n == nil {
		return syscall.ENOENT
	}
	old := newDir.live[newName]
	switch {
	case old == n:
		return 0
	case old == nil:
	case existsErr != 0:
		return existsErr
	case old.dir && !n.dir:
		return syscall.EISDIR
	case !old.dir && n.dir:
		return syscall.ENOTDIR
	case old.dir && len(old.live) > 0:
		return syscall.ENOTEMPTY
	}
	d.group++
	d.link(oldDir, oldName, nil)
	d.link(newDir, newName, n)
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
