package lossfs

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Available returns nil if this process can mount a Disk. Otherwise its error says what is
// missing: /dev/fuse, or root rights.
func Available() error {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("FUSE is not available: %w", err)
	}
	f.Close()
	if os.Geteuid() != 0 {
		return fmt.Errorf("mounting a Disk needs root, but this process runs as user %d", os.Geteuid())
	}
	return nil
}

// Mount mounts d on the folder dir until the returned function is called. While a process has files
// of d open, that function tries again, for up to one minute. Then it returns an error.
func (d *Disk) Mount(dir string) (unmount func() error, err error) {
	s := &server{RawFileSystem: fuse.NewDefaultRawFileSystem(), d: d, lists: map[uint64][]fuse.DirEntry{}}
	srv, err := fuse.NewServer(s, dir, &fuse.MountOptions{
		FsName: "lossfs", Name: "lossfs", DirectMountStrict: true, MaxWrite: 1 << 20,
		DisableXAttrs: true, DisableReadDirPlus: true,
	})
	if err != nil {
		return nil, fmt.Errorf("lossfs: mount %s: %w", dir, err)
	}
	var wg sync.WaitGroup
	wg.Go(srv.Serve)
	if err := srv.WaitMount(); err != nil {
		return nil, fmt.Errorf("lossfs: mount %s: %w", dir, err)
	}
	return func() error {
		// Try again while the disk is busy: a new child process has this process's files open
		// between fork and exec.
		err := srv.Unmount()
		for end := time.Now().Add(time.Minute); err != nil && time.Now().Before(end); err = srv.Unmount() {
			time.Sleep(50 * time.Millisecond)
		}
		if err != nil {
			return fmt.Errorf("lossfs: unmount %s: %w", dir, err)
		}
		wg.Wait()
		return nil
	}, nil
}

// server answers the requests of the kernel. The kernel caches nothing: it reads and writes
// directly, and requests names and attributes each time. So after a cut the same mount shows the
// new state.
type server struct {
	fuse.RawFileSystem
	d *Disk

	mu    sync.Mutex
	lists map[uint64][]fuse.DirEntry // entries of each open folder, by file handle
	last  uint64                     // the last handle that was given out
}

// node returns the node with this id. It returns nil for a node that existed before the last cut.
// The caller must hold the lock of the disk.
func (s *server) node(id uint64) *node {
	if id == fuse.FUSE_ROOT_ID {
		return s.d.root
	}
	return s.d.nodes[id]
}

// withNode calls f with the node that has this id. During the call it holds the lock of the disk.
// It returns ESTALE if the node does not exist any more.
func (s *server) withNode(id uint64, f func(n *node) fuse.Status) fuse.Status {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	n := s.node(id)
	if n == nil {
		return fuse.Status(syscall.ESTALE)
	}
	return f(n)
}

func (s *server) entry(n *node, out *fuse.EntryOut) {
	s.d.nodes[n.id] = n
	n.lookups++
	out.NodeId, out.Generation = n.id, 1
	attr(n, &out.Attr)
}

func attr(n *node, a *fuse.Attr) {
	a.Ino, a.Size, a.Nlink, a.Blksize = n.id, uint64(n.size), 1, pageSize
	a.Mode = syscall.S_IFREG | n.mode
	if n.dir {
		a.Mode, a.Nlink = syscall.S_IFDIR|n.mode, 2
	} else {
		a.Blocks = uint64(len(n.pages)) * pageSize / 512
		if n.parent == nil {
			a.Nlink = 0
		}
	}
	a.Uid, a.Gid = uint32(os.Geteuid()), uint32(os.Getegid())
	a.SetTimes(nil, &n.mtime, &n.mtime)
}

func (s *server) Lookup(_ <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	return s.withNode(h.NodeId, func(dir *node) fuse.Status {
		n := dir.live[name]
		if n == nil {
			return fuse.ENOENT
		}
		s.entry(n, out)
		return fuse.OK
	})
}

func (s *server) Forget(id, lookups uint64) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if n := s.d.nodes[id]; n != nil {
		if n.lookups -= min(lookups, n.lookups); n.lookups == 0 {
			delete(s.d.nodes, id)
		}
	}
}

func (s *server) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return s.withNode(in.NodeId, func(n *node) fuse.Status {
		attr(n, &out.Attr)
		return fuse.OK
	})
}

func (s *server) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	return s.withNode(in.NodeId, func(n *node) fuse.Status {
		if size, ok := in.GetSize(); ok {
			if n.dir {
				return fuse.EISDIR
			}
			n.truncate(int64(size))
		}
		if mode, ok := in.GetMode(); ok {
			n.mode = mode
		}
		if t, ok := in.GetMTime(); ok {
			n.mtime = t
		}
		attr(n, &out.Attr)
		return fuse.OK
	})
}

func (s *server) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return s.make(in.NodeId, name, true, in.Mode, out)
}

func (s *server) make(id uint64, name string, folder bool, mode uint32, out *fuse.EntryOut) fuse.Status {
	return s.withNode(id, func(dir *node) fuse.Status {
		n, errno := s.d.create(dir, name, folder, mode)
		if errno == 0 {
			s.entry(n, out)
		}
		return fuse.Status(errno)
	})
}

func (s *server) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	out.OpenFlags = fuse.FOPEN_DIRECT_IO
	return s.make(in.NodeId, name, false, in.Mode, &out.EntryOut)
}

func (s *server) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	out.OpenFlags = fuse.FOPEN_DIRECT_IO
	return s.withNode(in.NodeId, func(n *node) fuse.Status {
		if in.Flags&syscall.O_TRUNC != 0 {
			n.truncate(0)
		}
		return fuse.OK
	})
}

func (s *server) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (out fuse.ReadResult, st fuse.Status) {
	st = s.withNode(in.NodeId, func(n *node) fuse.Status {
		out = fuse.ReadResultData(buf[:n.read(buf, int64(in.Offset))])
		return fuse.OK
	})
	return out, st
}

func (s *server) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	return uint32(len(data)), s.withNode(in.NodeId, func(n *node) fuse.Status {
		off := int64(in.Offset)
		if in.Flags&syscall.O_APPEND != 0 {
			off = n.size
		}
		n.write(data, off)
		return fuse.OK
	})
}

func (s *server) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return s.withNode(in.NodeId, func(n *node) fuse.Status {
		s.d.sync(n)
		return fuse.OK
	})
}

func (s *server) FsyncDir(c <-chan struct{}, in *fuse.FsyncIn) fuse.Status { return s.Fsync(c, in) }

// Fallocate reserves no space. It only makes the file longer, and does nothing with the flag
// FALLOC_FL_KEEP_SIZE.
func (s *server) Fallocate(_ <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	const keepSize = 1
	return s.withNode(in.NodeId, func(n *node) fuse.Status {
		switch {
		case in.Mode&^keepSize != 0:
			return fuse.ENOTSUP
		case in.Mode == 0:
			n.size = max(n.size, int64(in.Offset+in.Length))
		}
		return fuse.OK
	})
}

func (s *server) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.OK }
func (s *server) Release(<-chan struct{}, *fuse.ReleaseIn)         {}

func (s *server) Unlink(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return s.withNode(h.NodeId, func(dir *node) fuse.Status { return fuse.Status(s.d.remove(dir, name, false)) })
}

func (s *server) Rmdir(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return s.withNode(h.NodeId, func(dir *node) fuse.Status { return fuse.Status(s.d.remove(dir, name, true)) })
}

func (s *server) Rename(_ <-chan struct{}, in *fuse.RenameIn, name, target string) fuse.Status {
	const noReplace = 1
	replace, known := map[uint32]syscall.Errno{0: 0, noReplace: syscall.EEXIST}[in.Flags]
	return s.withNode(in.NodeId, func(from *node) fuse.Status {
		to := s.node(in.Newdir)
		switch {
		case to == nil:
			return fuse.Status(syscall.ESTALE)
		case !known:
			return fuse.EINVAL
		}
		return fuse.Status(s.d.rename(from, name, to, target, replace))
	})
}

func (s *server) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return s.withNode(in.NodeId, func(dir *node) fuse.Status {
		var list []fuse.DirEntry
		for _, name := range slices.Sorted(maps.Keys(dir.live)) {
			n := dir.live[name]
			mode := uint32(syscall.S_IFREG)
			if n.dir {
				mode = syscall.S_IFDIR
			}
			list = append(list, fuse.DirEntry{Name: name, Ino: n.id, Mode: mode, Off: uint64(len(list) + 1)})
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.last++
		s.lists[s.last] = list
		out.Fh = s.last
		return fuse.OK
	})
}

func (s *server) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.lists[in.Fh]
	for _, e := range list[min(in.Offset, uint64(len(list))):] {
		if !out.AddDirEntry(e) {
			break
		}
	}
	return fuse.OK
}

func (s *server) ReleaseDir(in *fuse.ReleaseIn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.lists, in.Fh)
}

func (s *server) Access(<-chan struct{}, *fuse.AccessIn) fuse.Status { return fuse.OK }

func (s *server) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	const blocks = 64 << 30 / pageSize
	*out = fuse.StatfsOut{Blocks: blocks, Bfree: blocks, Bavail: blocks, Files: 1 << 20, Ffree: 1 << 20, Bsize: pageSize, Frsize: pageSize, NameLen: 255}
	return fuse.OK
}
