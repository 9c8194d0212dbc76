package archive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/internal/killpoint"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// Kinds of files. Each kind has a folder with the same name.
const (
	DeadLetters = "dead-letters"
	Outcomes    = "outcomes"
)

// Config configures an Archiver. Dir, Letters, Callers, History, Status and Meta are required.
// Every other field has a default.
type Config struct {
	// Dir is the folder of the archive. Files in it may be moved to another place at any time,
	// except files whose names end in .tmp.
	Dir string
	// Letters contains the dead letters, by caller. Callers returns the callers that have dead
	// letters.
	Letters engine.DeadLetters
	Callers func() []string
	History History
	Status  engine.Status
	Meta    engine.Meta
	// Every is the interval between two runs.
	Every time.Duration `default:"1h"`
	// After is the age at which an outcome's record is archived. It must be below the retention
	// of history.
	After time.Duration `default:"24h"`
	// Wait is how long records that are not archived are kept after their retention.
	Wait time.Duration `default:"168h"`
	// Bucket receives the files. A file is removed from Dir once it is in the bucket. nil: files
	// stay in Dir.
	Bucket Bucket
	// Shared means that several processes use the archive. Only one of them at a time writes the
	// archive. So in every process, Status, Positions and PurgeBefore read the progress from the
	// store.
	Shared bool
	// Written is called for each archived file, with its kind and number of lines. May be nil.
	Written func(kind string, lines int)
	// Failed is called with the error of each run that failed. May be nil.
	Failed func(error)
	Logger *slog.Logger `default:"discard"`

	hit func(string) // killpoint.Hit, or a test's function
}

// Bucket stores files. *s3.Bucket implements it.
type Bucket interface {
	// Put stores a file under a name with slashes. The parameter sum is the SHA-256 of its content
	// in hexadecimal. If the bucket has a file with this name and sum, Put does nothing. If it has
	// another file with this name, Put returns an fs.ErrExist error. If two calls with the same
	// name run at the same time, one stores its file and the other returns that error.
	Put(ctx context.Context, name, file, sum string) error
	// Has reports whether the bucket has a file with this name and sum.
	Has(ctx context.Context, name, sum string) (bool, error)
}

// History is the source of outcomes: a history.Store or an OverLog.
type History interface {
	// Settled returns an offset for each partition: every record below this offset was written
	// before cutoff, in ms since 1970.
	Settled(ctx context.Context, cutoff int64) (map[history.Part]int64, error)
	// Range reads all partitions of the map ends and calls fn with the envelope of each record. It
	// begins at the offset starts[partition], or at the first record if starts has no such entry.
	// It ends before the offset ends[partition]. The envelopes stay valid after Range has returned.
	Range(ctx context.Context, starts, ends map[history.Part]int64, fn func(env *notify.Envelope) error) (damaged int, err error)
}

// Archiver writes the archive. Only one Archiver may run on a store and folder. Status, Positions
// and PurgeBefore only read, so they may be called from any goroutine.
type Archiver struct {
	cfg Config

	// Only the goroutine of Once uses the fields row, rowUnsure and lastSum.
	row []byte // the stored row, for the next compare and swap
	// rowUnsure means that the stored row may differ from the field row. Another process may have
	// written the stored row, or a write of this process failed.
	rowUnsure bool
	lastSum   string // SHA-256 of the last file that this process completed, or compared with the row

	mu      sync.Mutex // guards the fields below
	st      archiveState
	lastErr error // error of the last run; nil if it succeeded
}

// archiveState is the progress of the archive. It is stored as the row metaKey of engine.Meta.
type archiveState struct {
	Files   uint64            `json:"files"`   // number of the last file
	Letters map[string]uint64 `json:"letters"` // by caller: sequence number of the last archived dead letter
	History map[string]int64  `json:"history"` // by topic/partition: the offset below which all records are archived
	Done    int64             `json:"done_ms"` // start of the last run that finished, ms since 1970
	Pending *pendingFile      `json:"pending,omitempty"`
}

// pendingFile is a complete file that may not have its final name yet. It contains the progress to
// store once the file is published.
type pendingFile struct {
	Manifest Manifest          `json:"manifest"`
	Letters  map[string]uint64 `json:"letters,omitempty"`
	History  map[string]int64  `json:"history,omitempty"`
	// Others lists earlier versions of this file: other processes have completed files with the
	// same name but other content. Each version is in the folder of its process, and that process
	// may still put it into the bucket.
	Others []pendingFile `json:"others,omitempty"`
}

const metaKey = "archive"

// Open reads the progress of the archive. It writes nothing to Dir; Run first finishes a file that
// was pending before a crash. Open returns an error if a required field is missing or the row
// cannot be read.
func Open(ctx context.Context, cfg Config) (*Archiver, error) {
	if cfg.Dir == "" || cfg.Letters == nil || cfg.Callers == nil || cfg.History == nil || cfg.Status == nil || cfg.Meta == nil {
		return nil, errors.New("archive: Dir, Letters, Callers, History, Status and Meta are required")
	}
	cfg = setting.Fill(cfg)
	if cfg.hit == nil {
		cfg.hit = killpoint.Hit
	}
	a := &Archiver{cfg: cfg}
	if err := a.load(ctx); err != nil {
		return nil, err
	}
	if a.st.Done == 0 { // there is no row yet: the age of the archive counts from now
		st := a.st
		st.Done = time.Now().UnixMilli()
		if err := a.storeState(ctx, st); err != nil && !errors.Is(err, errRowChanged) {
			return nil, err
		}
	}
	return a, nil
}

// readRow returns the stored state, and the row from which it was decoded.
func (a *Archiver) readRow(ctx context.Context) (st archiveState, row []byte, err error) {
	if row, err = a.cfg.Meta.GetMeta(ctx, metaKey); err != nil {
		return archiveState{}, nil, err
	}
	if len(row) > 0 {
		if err := json.Unmarshal(row, &st); err != nil {
			return archiveState{}, nil, fmt.Errorf("archive: cannot decode the row \"archive\" of the store: %w", err)
		}
	}
	// JSON omits empty maps, but the code writes to these maps.
	if st.Letters == nil {
		st.Letters = map[string]uint64{}
	}
	if p := st.Pending; p != nil {
		p.initMaps()
		for i := range p.Others {
			p.Others[i].initMaps()
		}
	}
	return st, row, nil
}

// initMaps makes the maps that JSON omits when they are empty.
func (p *pendingFile) initMaps() {
	if p.Letters == nil {
		p.Letters = map[string]uint64{}
	}
}

// load reads the state from the row and makes it the current state.
func (a *Archiver) load(ctx context.Context) error {
	st, row, err := a.readRow(ctx)
	if err != nil {
		return err
	}
	a.setState(st, row)
	return nil
}

// setState replaces the state and the row from which it was decoded.
func (a *Archiver) setState(st archiveState, row []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.st, a.row = st, row
}

// errRowChanged means that another process has written the row after this process read it.
var errRowChanged = errors.New("another process has written the archive's row; this process reads it again")

// storeState writes the row by compare and swap and makes st the current state. It returns
// errRowChanged if another process has written the row since this process read it.
func (a *Archiver) storeState(ctx context.Context, st archiveState) error {
	b, err := json.Marshal(st)
	if err != nil {
		return err
	}
	won, err := a.cfg.Meta.SwapMeta(ctx, metaKey, a.row, b)
	if err == nil && !won {
		err = errRowChanged
	}
	if err != nil {
		a.rowUnsure = true
		return err
	}
	a.setState(st, b)
	return nil
}

// retryAfter is the longest pause after a failed run.
const retryAfter = time.Minute

// Run writes the archive every Config.Every until ctx ends, and then returns nil. It repeats a
// failed run after at most retryAfter.
func (a *Archiver) Run(ctx context.Context) error {
	a.rowUnsure = true
	for {
		err := a.Once(ctx)
		if ctx.Err() != nil {
			return nil
		}
		wait := a.cfg.Every
		if err != nil {
			wait = min(wait, retryAfter)
			a.cfg.Logger.Warn("cannot write the archive; will try again", "dir", a.cfg.Dir, "err", err)
			if a.cfg.Failed != nil {
				a.cfg.Failed(err)
			}
		}
		if !notify.Sleep(ctx, wait) {
			return nil
		}
	}
}

// Once archives everything that is due now, in at most one file of each kind. It must not run at
// the same time as Run.
func (a *Archiver) Once(ctx context.Context) (err error) {
	defer func() {
		a.mu.Lock()
		a.lastErr = err
		a.mu.Unlock()
	}()
	began := time.Now()
	if a.rowUnsure {
		if err := a.load(ctx); err != nil {
			return err
		}
		a.rowUnsure = false
	}
	if p := a.st.Pending; p != nil {
		// Compare the file with the row only once, and not again at each try while the bucket is
		// unreachable.
		if p.Manifest.SHA256 != a.lastSum {
			if err := dropOtherVersions(a.cfg.Dir, &p.Manifest); err != nil {
				return err
			}
			a.lastSum = p.Manifest.SHA256
		}
		if err := a.publishPending(ctx); err != nil {
			return err
		}
	}
	if err := removeTemporary(a.cfg.Dir); err != nil {
		return err
	}
	if err := a.uploadAll(ctx); err != nil {
		return err
	}
	if err := a.archiveLetters(ctx, began); err != nil {
		return err
	}
	if err := a.archiveOutcomes(ctx, began); err != nil {
		return err
	}
	st := a.st
	st.Done = began.UnixMilli()
	return a.storeState(ctx, st)
}

// writeFile writes one file with the lines that the function fill adds, and stores the progress
// that fill returns. The second result of fill is the number of damaged chunks. If there is a
// pending file, the new file replaces it and gets its name.
func (a *Archiver) writeFile(ctx context.Context, kind string, now time.Time, fill func(add func(any) error) (*pendingFile, int, error)) error {
	m, lost := nameOf(kind, now, a.st.Files+1), a.st.Pending
	if lost != nil {
		m = nameOf(kind, lost.Manifest.Written, lost.Manifest.Number)
	}
	w, err := createFile(a.cfg.Dir, m, lost == nil)
	if err != nil {
		return err
	}
	defer w.discard()
	p, damaged, err := fill(w.add)
	if err != nil {
		return err
	}
	if w.manifest.Lines == 0 && damaged == 0 { // do not write an empty file
		st := a.st
		st.Letters, st.History, st.Pending = p.Letters, p.History, nil
		if lost != nil { // no other file may get the number of the pending file
			st.Files = lost.Manifest.Number
		}
		return a.storeState(ctx, st)
	}
	w.manifest.Damaged = damaged
	if err := w.seal(); err != nil {
		return err
	}
	p.Manifest, a.lastSum = w.manifest, w.manifest.SHA256
	if lost != nil {
		p.Others = append(slices.Clone(lost.Others), pendingFile{Manifest: lost.Manifest, Letters: lost.Letters, History: lost.History})
	}
	st := a.st
	st.Pending = p
	a.cfg.hit("archive-before-pending")
	w.kept = true // after this, the row may name the file, even if storeState fails
	if err := a.storeState(ctx, st); err != nil {
		return err
	}
	return a.publishPending(ctx)
}

// publishPending gives the pending file its final name and its manifest, puts it into the bucket,
// and stores the progress. The file may be missing from the folder: it may be in the folder of
// another process, or an operator may have moved it. Its lines are then archived again, unless the
// bucket has the file.
func (a *Archiver) publishPending(ctx context.Context) error {
	p := a.st.Pending
	a.cfg.hit("archive-before-name")
	err := publishFile(a.cfg.Dir, &p.Manifest)
	switch {
	case errors.Is(err, errFileGone) && a.cfg.Bucket != nil:
		return a.rewritePending(ctx)
	case errors.Is(err, errFileGone):
		a.cfg.Logger.Warn("a file of the archive was moved away before its progress was stored; its lines are written again to a new file", "file", p.Manifest.File)
		return a.renumber(ctx)
	case err != nil:
		return err
	}
	a.cfg.hit("archive-named")
	err = a.upload(ctx, &p.Manifest)
	if !errors.Is(err, fs.ErrExist) {
		if err != nil {
			return err
		}
		return a.storeProgress(ctx, p)
	}
	other, err := a.inBucket(ctx, p.Others)
	if err != nil {
		return err
	}
	if other == nil {
		a.cfg.Logger.Warn("the bucket has another file of this name; the lines are written again to a file with the next number", "file", p.Manifest.File)
	}
	if err := a.removeUploaded(&p.Manifest); err != nil {
		return err
	}
	if other == nil {
		return a.renumber(ctx)
	}
	return a.adoptUploaded(ctx, other)
}

// storeProgress stores that the lines of p are archived.
func (a *Archiver) storeProgress(ctx context.Context, p *pendingFile) error {
	a.cfg.hit("archive-shipped")
	st := a.st
	st.Files, st.Letters, st.History, st.Pending = p.Manifest.Number, p.Letters, p.History, nil
	if err := a.storeState(ctx, st); err != nil {
		return err
	}
	if a.cfg.Written != nil {
		a.cfg.Written(p.Manifest.Kind, p.Manifest.Lines)
	}
	return a.removeUploaded(&p.Manifest)
}

// renumber drops the pending file. The next run writes its lines again, with the next number. A
// line that is archived twice does less harm than a lost line.
func (a *Archiver) renumber(ctx context.Context) error {
	st := a.st
	st.Files, st.Pending = st.Pending.Manifest.Number, nil
	return a.storeState(ctx, st)
}

// rewritePending archives the lines of a pending file that is not in this folder. If the bucket has
// the file, or another process's version of the file, rewritePending stores the progress of that
// version. Otherwise rewritePending writes the file again with the same name. The bucket accepts
// only one file of a name. So the lines are never in the bucket twice, even if the process with the
// first version returns later.
func (a *Archiver) rewritePending(ctx context.Context) error {
	p := a.st.Pending
	there, err := a.inBucket(ctx, append(slices.Clone(p.Others), *p))
	switch {
	case err != nil:
		return err
	case there != nil:
		return a.adoptUploaded(ctx, there)
	}
	a.cfg.Logger.Warn("the pending file of the archive is neither in this folder nor in the bucket; it is written again", "file", p.Manifest.File)
	if p.Manifest.Kind == DeadLetters {
		return a.archiveLetters(ctx, time.Now())
	}
	return a.archiveOutcomes(ctx, time.Now())
}

// inBucket returns the first element of ps whose file is in the bucket, or nil.
func (a *Archiver) inBucket(ctx context.Context, ps []pendingFile) (*pendingFile, error) {
	for i := range ps {
		m := &ps[i].Manifest
		if there, err := a.cfg.Bucket.Has(ctx, m.File, m.SHA256); err != nil {
			return nil, archiveUnavailable(err)
		} else if there {
			return &ps[i], nil
		}
	}
	return nil, nil
}

// adoptUploaded stores the progress of a file that the bucket already has. The bucket may not have
// the file's manifest, so adoptUploaded uploads the manifest first.
func (a *Archiver) adoptUploaded(ctx context.Context, p *pendingFile) error {
	if err := writeManifest(a.cfg.Dir, &p.Manifest); err != nil {
		return err
	}
	if err := a.upload(ctx, &p.Manifest); err != nil {
		return err
	}
	return a.storeProgress(ctx, p)
}
