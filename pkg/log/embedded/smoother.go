package embedded

import (
	"fmt"
	"os"
	"path/filepath"
)

// smoother starts the write-back of each partition's last segment as it grows.
// Left alone, the kernel writes dirty pages in bursts that stall every writer of
// the volume: a closed loop fell from 12.6-14M to 4.6M receivers/s. It is idle
// in Fsync mode, where nothing stays dirty.
type smoother struct {
	dir  string
	open map[string]*growing // by partition folder
}

type growing struct {
	base    int64
	f       *os.File
	started int64 // written back up to here
}

func newSmoother(cfg Config) *smoother {
	if cfg.Dir == "" || cfg.Durability == Fsync || !canSmooth {
		return nil
	}
	return &smoother{dir: cfg.Dir, open: make(map[string]*growing)}
}

// find looks for new segments. A folder that cannot be read, or a file that
// went, is left to the next look: smoothing is a courtesy.
func (s *smoother) find() {
	if s == nil {
		return
	}
	last := make(map[string]int64)
	if eachSegment(s.dir, func(p string, base, _ int64) { last[p] = max(last[p], base) }) != nil {
		return
	}
	for p, base := range last {
		g := s.open[p]
		if g != nil && g.base == base {
			continue
		}
		f, err := os.Open(filepath.Join(s.dir, "partitions", p, fmt.Sprintf("%d.dat", base)))
		if err != nil {
			continue
		}
		if g != nil {
			s.push(g) // its end
			g.f.Close()
		}
		s.open[p] = &growing{base: base, f: f}
	}
}

// flush starts the write-back of what was appended since the last time.
func (s *smoother) flush() {
	if s == nil {
		return
	}
	for _, g := range s.open {
		s.push(g)
	}
}

func (s *smoother) push(g *growing) {
	info, err := g.f.Stat()
	if err != nil || info.Size() <= g.started {
		return
	}
	if startWriteBack(g.f, g.started, info.Size()-g.started) == nil {
		g.started = info.Size()
	}
}

func (s *smoother) close() {
	if s == nil {
		return
	}
	for _, g := range s.open {
		g.f.Close()
	}
}
