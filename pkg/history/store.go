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

// Store keeps the history of the whole log in one process. All methods are safe for concurrent use.
// Append calls for one partition run one after the other.
type Store struct {
	cfg Config

	parts struct {
		sync.RWMutex
		byName map[Part]*partition
		list   []*partition // replaced, never changed in place
	}
	viewMu sync.RWMutex // guards view
	view   *segmentView

	// changeMu is held while segments are merged or removed, or while Snapshot copies them.
	changeMu sync.Mutex
	nextNum  atomic.Uint64
	// failed is set when the Store is closed, or when a sync failed and the content of the disk is
	// unknown.
	failed     atomic.Pointer[error]
	failedCh   chan struct{} // closed when the field failed is set
	freeArrays chan arrays   // memory of sealed tails, for new tails
	progress   offsetProgress
	sealQueue  sealQueue
	cached     cachedSegments
	offsets    offsetsFile

	listBounds listBounds
	listTokens chan struct{} // contains one token for each running List

	damageMu sync.Mutex // guards the fields damaged and lost
	damaged  map[string]error
	lost     []lostTime
	unknown  atomic.Int64 // damaged files whose bounds could not be read
}

// Damage is a file whose content differs from what was written.
type Damage struct {
	File string
	Err  error
}

const (
	tmpSuffix  = ".tmp"
	fileSuffix = ".seg"
)

// Open opens the sealed segments in the folder and deletes unsealed files. The pump reads the
// records of the deleted files from the log again. Damaged files are not changed; Damaged reports
// them. Open starts no goroutine; Run does the background work.
func Open(cfg Config) (*Store, error) {
	cfg = setting.Fill(cfg)
	if cfg.FS == nil {
		cfg.FS = osFS{}
	}
	if cfg.Dir == "" {
		return nil, errors.New("history: no folder is configured; set Config.Dir")
	}
	if err := setting.Err("history", &cfg); err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, freeArrays: make(chan arrays, 16), damaged: map[string]error{}, failedCh: make(chan struct{}), listBounds: defaultListBounds, listTokens: make(chan struct{}, maxLists)}
	s.parts.byName = map[Part]*partition{}
	s.progress.ch = make(chan struct{})
	s.sealQueue.wake = make(chan struct{}, 1)
	s.offsets = offsetsFile{fs: cfg.FS, dir: cfg.Dir}
	s.view = &segmentView{}
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

// Run seals, merges and removes segments until ctx ends, and then returns nil. While Run is not
// running, no tail is sealed, so Append waits as soon as a partition has two full tails. An error
// of Run means that a sync failed and the content of the disk is unknown. The process must then
// restart. No record is lost: everything above the offsets that Sealed returns is still in the
// log.
func (s *Store) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.sealAll(ctx) })
	g.Go(func() error { return s.freezeOld(ctx) })
	g.Go(func() error { return s.maintain(ctx) })
	err := g.Wait()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// Close closes the files. After the next Open, the pump reads unsealed records from the log again.
// Run must have returned before Close.
func (s *Store) Close() error {
	s.stopWriting(notify.Unavailable("history", 0, errors.New("the history is closed")))
	for _, p := range s.allParts() {
		p.appendMu.Lock()
		p.mu.Lock()
		for _, t := range p.tails() {
			t.takeArrays()
			t.blob.release()
		}
		p.active, p.frozen = nil, nil
		p.mu.Unlock()
		p.appendMu.Unlock()
	}
	s.viewMu.Lock()
	old := s.view
	s.view = &segmentView{}
	s.view.refs.Store(1)
	s.viewMu.Unlock()
	old.release()
	s.cached.close()
	return nil
}

// stopWriting stops all writing for good.
func (s *Store) stopWriting(err error) {
	if s.failed.CompareAndSwap(nil, &err) {
		close(s.failedCh)
	}
}

// Resume returns the offset at which the pump must begin to read each partition after a start. A
// partition that the Store has never seen is missing in the map; the pump reads it from the log's
// start.
func (s *Store) Resume() map[Part]int64 { return s.Sealed() }

// Sealed returns, for each partition, the offset below which the log may be trimmed.
func (s *Store) Sealed() map[Part]int64 {
	m := map[Part]int64{}
	for _, p := range s.allParts() {
		p.mu.RLock()
		m[p.Part] = p.sealedTo
		p.mu.RUnlock()
	}
	return m
}

// Damaged lists the damaged files found so far, by name.
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

// reportDamage records that a file is damaged and logs it once.
func (s *Store) reportDamage(file string, err error) {
	s.damageMu.Lock()
	_, known := s.damaged[file]
	s.damaged[file] = err
	s.damageMu.Unlock()
	if !known {
		s.cfg.Log.Error("history segment is damaged", "file", file, "err", err)
	}
}

// CodeRecordLost is the code of the notify.KindGone error for a notification that was not found and
// may have been in one of the records that the log lost (Store.Lost).
const CodeRecordLost = "record_lost"

// lostTime is a period, in ms since 1970. The log lost records of that period before they were
// appended to the Store.
type lostTime struct{ from, to int64 }

// lostSlack is a margin. A request may have been accepted this much before or after the times
// that Lost gets, which are the times of the records before and after the lost records.
const lostSlack = time.Minute

// Lost reports to the Store that the log lost records. The records were written between earliest
// and latest (ms since 1970; 0: unknown). If a notification accepted in that period is not found,
// queries return notify.KindGone with the code CodeRecordLost instead of notify.KindNotFound,
// because the notification may have been lost.
func (s *Store) Lost(earliest, latest int64) {
	l := lostTime{earliest - lostSlack.Milliseconds(), latest + lostSlack.Milliseconds()}
	if latest == 0 {
		l.to = math.MaxInt64
	}
	s.damageMu.Lock()
	defer s.damageMu.Unlock()
	s.lost = append(s.lost, l)
}

// mayBeLost reports whether the log may have lost a request that was accepted at acceptedAt.
func (s *Store) mayBeLost(acceptedAt time.Time) bool {
	s.damageMu.Lock()
	defer s.damageMu.Unlock()
	ms := acceptedAt.UnixMilli()
	return slices.ContainsFunc(s.lost, func(l lostTime) bool { return l.from <= ms && ms <= l.to })
}

// Stats are the sizes that metrics and doctor show.
type Stats struct {
	Segments  int
	Receivers int64 // in sealed segments
	Bytes     int64 // bytes of sealed segments
	Tail      int64 // receivers in memory
}

// Stats returns the current sizes.
func (s *Store) Stats() Stats {
	var st Stats
	v := s.acquireView()
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

// load opens the sealed files and deletes temporary files.
func (s *Store) load() error {
	names, err := s.cfg.FS.List(s.cfg.Dir)
	if err != nil {
		return err
	}
	sort.Strings(names)
	byNum := map[uint64]*segment{}
	for _, name := range names {
		num, ok := segmentNumber(name)
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
				s.reportDamage(name, err)
			case err != nil:
				return fmt.Errorf("%s: %w", name, err)
			default:
				byNum[num] = seg
			}
		}
	}
	var segs []*segment
	for num, seg := range byNum {
		for _, old := range seg.meta.Replaces { // a crash may have interrupted the merge before these segments were removed
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
	s.replaceView(segs, nil)
	for _, seg := range segs {
		seg.blob.release() // the view has its own reference
	}
	return s.loadOffsets(segs)
}

// loadOffsets computes the sealed offset of each partition.
func (s *Store) loadOffsets(segs []*segment) error {
	sealed, err := s.offsets.read()
	if errors.Is(err, errDamaged) {
		s.reportDamage(offsetsName, err)
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

func segmentNumber(name string) (uint64, bool) {
	stem, ok := strings.CutSuffix(name, fileSuffix)
	if !ok {
		if stem, ok = strings.CutSuffix(name, tmpSuffix); !ok {
			return 0, false
		}
	}
	n, err := strconv.ParseUint(stem, 10, 64)
	return n, err == nil
}

func (s *Store) allParts() []*partition {
	s.parts.RLock()
	defer s.parts.RUnlock()
	return s.parts.list
}

func (s *Store) partOf(tp Part) *partition {
	s.parts.RLock()
	p := s.parts.byName[tp]
	s.parts.RUnlock()
	if p == nil {
		p = s.addPart(tp, 0)
	}
	return p
}

func (s *Store) addPart(tp Part, sealed int64) *partition {
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

// unavailable wraps an error of the file system as notify.KindUnavailable. It returns a
// *notify.Error and a cancellation unchanged.
func unavailable(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*notify.Error](err); ok || errors.Is(err, context.Canceled) {
		return err
	}
	return notify.Unavailable("history", time.Second, err)
}
