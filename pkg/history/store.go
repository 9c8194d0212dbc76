package history

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

var _ Reader = (*Store)(nil)

// Store keeps the history of the whole log of one process. All methods may be
// called from any goroutine; Append calls of one partition follow each other.
type Store struct {
	cfg Config

	parts struct {
		sync.RWMutex
		byName map[Part]*part
		list   []*part // replaced, never changed
	}
	viewMu sync.RWMutex
	view   *view

	changeMu sync.Mutex // one merge or removal of segments at a time
	nextNum  atomic.Uint64
	failed   atomic.Pointer[error] // closed, or a sync failed: what is durable is unknown
	dead     chan struct{}         // closed when failed is set
	free     chan arrays
	progress progress
	queue    sealQueue
	recent   recent
	offsets  offsetsFile

	listBounds listBounds
	lists      chan struct{} // one per List that reads

	damageMu sync.Mutex
	damaged  map[string]error
	lost     []lostTime
	unknown  atomic.Int64 // damaged files whose bounds could not be read
}

// Damage names a file that is not what was written.
type Damage struct {
	File string
	Err  error
}

const (
	tmpSuffix  = ".tmp"
	fileSuffix = ".seg"
)

// Open reads what is sealed in the folder and throws away what is not: the
// pump feeds it again. Damaged files are left as they are and reported by
// Damaged. Nothing runs until Run.
func Open(cfg Config) (*Store, error) {
	cfg = setting.Fill(cfg)
	if cfg.FS == nil {
		cfg.FS = osFS{}
	}
	if cfg.Dir == "" {
		return nil, errors.New("history: no folder configured")
	}
	if err := setting.Err("history", &cfg); err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, free: make(chan arrays, 16), damaged: map[string]error{}, dead: make(chan struct{}), listBounds: defaultListBounds, lists: make(chan struct{}, maxLists)}
	s.parts.byName = map[Part]*part{}
	s.progress.ch = make(chan struct{})
	s.queue.wake = make(chan struct{}, 1)
	s.offsets = offsetsFile{fs: cfg.FS, dir: cfg.Dir}
	s.view = &view{}
	s.view.refs.Store(1)
	if err := cfg.FS.MkdirAll(cfg.Dir); err != nil {
		return nil, unavailable(err)
	}
	if err := s.load(); err != nil {
		s.Close()
		return nil, unavailable(err)
	}
	return s, nil
}

// Run seals, merges and removes segments until ctx ends; nil then. Append
// waits when full tails pile up without it. An error means that what is
// durable is unknown (a sync failed): the process must start again, the log
// still holds everything behind Sealed.
func (s *Store) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.sealAll(ctx) })
	g.Go(func() error { return s.ageAll(ctx) })
	g.Go(func() error { return s.maintain(ctx) })
	err := g.Wait()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// Close closes the files. What is not sealed is read from the log again by the
// next Open. Run must have returned.
func (s *Store) Close() error {
	s.fail(notify.Unavailable("history", 0, errors.New("closed")))
	for _, p := range s.allParts() {
		p.appendMu.Lock()
		p.mu.Lock()
		for _, t := range p.tails() {
			t.take()
			t.blob.release()
		}
		p.active, p.frozen = nil, nil
		p.mu.Unlock()
		p.appendMu.Unlock()
	}
	s.viewMu.Lock()
	old := s.view
	s.view = &view{}
	s.view.refs.Store(1)
	s.viewMu.Unlock()
	old.release()
	s.recent.close()
	return nil
}

// fail ends all writing, for good.
func (s *Store) fail(err error) {
	if s.failed.CompareAndSwap(nil, &err) {
		close(s.dead)
	}
}

// Resume returns where each partition must be read again after a start.
// Partitions never seen are missing: they are read from the log's start.
func (s *Store) Resume() map[Part]int64 { return s.Sealed() }

// Sealed returns for each partition the offset behind which the log may be
// trimmed.
func (s *Store) Sealed() map[Part]int64 {
	m := map[Part]int64{}
	for _, p := range s.allParts() {
		p.mu.RLock()
		m[p.Part] = p.sealed
		p.mu.RUnlock()
	}
	return m
}

// Damaged lists the files found damaged so far, by name.
func (s *Store) Damaged() []Damage {
	s.damageMu.Lock()
	defer s.damageMu.Unlock()
	var ds []Damage
	for f, err := range s.damaged {
		ds = append(ds, Damage{f, err})
	}
	sort.Slice(ds, func(i, j int) bool { return ds[i].File < ds[j].File })
	return ds
}

func (s *Store) damage(file string, err error) {
	s.damageMu.Lock()
	_, known := s.damaged[file]
	s.damaged[file] = err
	s.damageMu.Unlock()
	if !known {
		s.cfg.Log.Error("history segment is damaged", "file", file, "err", err)
	}
}

// CodeRecordLost is the code of notify.KindGone for what may have been among the
// records that the log lost (Store.Lost).
const CodeRecordLost = "record_lost"

// lostTime is a time of which the log lost records before they were kept here.
type lostTime struct{ from, to int64 }

// lostSlack is how much earlier or later a request may have been accepted than
// the records around a lost one were written.
const lostSlack = time.Minute

// Lost tells that the log has lost records that lay between records written at
// after and before, in ms since 1970, 0 where that is not known. A notification
// accepted then that is not found is not "not found": it may have been one of
// them.
func (s *Store) Lost(after, before int64) {
	l := lostTime{after - lostSlack.Milliseconds(), before + lostSlack.Milliseconds()}
	if before == 0 {
		l.to = math.MaxInt64
	}
	s.damageMu.Lock()
	defer s.damageMu.Unlock()
	s.lost = append(s.lost, l)
}

// mayBeLost reports whether a request of this time may have been lost by the
// log.
func (s *Store) mayBeLost(at time.Time) bool {
	s.damageMu.Lock()
	defer s.damageMu.Unlock()
	ms := at.UnixMilli()
	return slices.ContainsFunc(s.lost, func(l lostTime) bool { return l.from <= ms && ms <= l.to })
}

// Stats are sizes for metrics and doctor.
type Stats struct {
	Segments  int
	Receivers int64 // in sealed segments
	Bytes     int64 // of sealed segments
	Tail      int64 // receivers in memory
}

// Stats returns the sizes as of now.
func (s *Store) Stats() Stats {
	var st Stats
	v := s.acquire()
	defer v.release()
	st.Segments = len(v.segs)
	for _, seg := range v.segs {
		st.Receivers += int64(seg.meta.Receivers)
		st.Bytes += seg.size
	}
	for _, p := range s.allParts() {
		p.mu.RLock()
		for _, t := range p.tails() {
			st.Tail += int64(t.users.len())
		}
		p.mu.RUnlock()
	}
	return st
}

// load opens the sealed files.
func (s *Store) load() error {
	names, err := s.cfg.FS.List(s.cfg.Dir)
	if err != nil {
		return err
	}
	sort.Strings(names)
	byNum := map[uint64]*segment{}
	for _, name := range names {
		num, ok := numOf(name)
		switch {
		case !ok:
		case strings.HasSuffix(name, tmpSuffix):
			if err := s.cfg.FS.Remove(s.path(name)); err != nil {
				return err
			}
		default:
			s.nextNum.Store(max(s.nextNum.Load(), num))
			seg, err := openSegment(s.cfg.FS, s.cfg.Dir, name)
			switch {
			case errors.Is(err, errDamaged):
				s.unknown.Add(1)
				s.damage(name, err)
			case err != nil:
				return fmt.Errorf("%s: %w", name, err)
			default:
				byNum[num] = seg
			}
		}
	}
	var segs []*segment
	for num, seg := range byNum {
		for _, old := range seg.meta.Replaces { // a merge that was cut before it cleaned up
			if o := byNum[old]; o != nil && old < num {
				o.replaced = true
			}
		}
	}
	for _, seg := range byNum {
		if seg.replaced {
			seg.blob.release()
			if err := s.cfg.FS.Remove(s.path(seg.blob.name)); err != nil {
				return err
			}
			continue
		}
		segs = append(segs, seg)
	}
	s.install(segs, nil)
	for _, seg := range segs {
		seg.blob.release() // the view holds it now
	}
	return s.loadOffsets(segs)
}

// loadOffsets finds how far each partition is sealed.
func (s *Store) loadOffsets(segs []*segment) error {
	sealed, err := s.offsets.read()
	if errors.Is(err, errDamaged) {
		s.damage(offsetsName, err)
	} else if err != nil {
		return err
	}
	if sealed == nil {
		sealed = map[Part]int64{}
	}
	for _, seg := range segs {
		for _, sp := range seg.meta.Parts {
			tp := Part{sp.Topic, sp.Partition}
			sealed[tp] = max(sealed[tp], sp.To)
		}
	}
	for tp, off := range sealed {
		s.addPart(tp, off)
	}
	return nil
}

func (s *Store) path(name string) string { return filepath.Join(s.cfg.Dir, name) }

func segmentName(num uint64, suffix string) string { return fmt.Sprintf("%012d%s", num, suffix) }

func numOf(name string) (uint64, bool) {
	stem, ok := strings.CutSuffix(name, fileSuffix)
	if !ok {
		if stem, ok = strings.CutSuffix(name, tmpSuffix); !ok {
			return 0, false
		}
	}
	n, err := strconv.ParseUint(stem, 10, 64)
	return n, err == nil
}

func (s *Store) allParts() []*part {
	s.parts.RLock()
	defer s.parts.RUnlock()
	return s.parts.list
}

func (s *Store) partOf(tp Part) *part {
	s.parts.RLock()
	p := s.parts.byName[tp]
	s.parts.RUnlock()
	if p == nil {
		p = s.addPart(tp, 0)
	}
	return p
}

func (s *Store) addPart(tp Part, sealed int64) *part {
	s.parts.Lock()
	defer s.parts.Unlock()
	if p := s.parts.byName[tp]; p != nil {
		return p
	}
	p := newPart(tp, sealed)
	s.parts.byName[tp] = p
	s.parts.list = append(s.parts.list[:len(s.parts.list):len(s.parts.list)], p)
	return p
}

// unavailable translates errors of the file system: all of them mean that this
// store cannot answer now, for whatever reason.
func unavailable(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*notify.Error](err); ok || errors.Is(err, context.Canceled) {
		return err
	}
	return notify.Unavailable("history", time.Second, err)
}
