package archive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/internal/killpoint"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// Kinds of files, and the folders they are in.
const (
	DeadLetters = "dead-letters"
	Outcomes    = "outcomes"
)

// Config of an Archiver. Dir, Letters, Callers, History, Status and Meta are
// required; the zero value of the others means their default.
type Config struct {
	// Dir is the folder. Files in it may be moved away at any time, but for those
	// that end in .tmp.
	Dir string
	// Letters are read by caller; Callers are those that have any.
	Letters engine.DeadLetters
	Callers func() []string
	History History
	Status  engine.Status
	Meta    engine.Meta
	// Every is how often files are written.
	Every time.Duration `default:"1h"`
	// After is how old an outcome's record must be; below the retention of history.
	After time.Duration `default:"24h"`
	// Wait is how long what has aged out is kept for an archive that is behind.
	Wait time.Duration `default:"168h"`
	// Bucket takes the files over: they leave Dir once they are there. nil: they
	// stay in Dir.
	Bucket Bucket
	// Shared: other processes have the archive too, and one of them at a time runs it. Then
	// Status, Positions and PurgeBefore read the row.
	Shared bool
	// Written is told of each file. May be nil.
	Written func(kind string, lines int)
	// Failed is told of each run that ended with an error. May be nil.
	Failed func(error)
	Logger *slog.Logger `default:"discard"`

	hit func(string) // killpoint.Hit, or a test's
}

// Bucket is an *s3.Bucket.
type Bucket interface {
	// Put stores a file under a name with slashes; sum is the SHA-256 of its
	// content in hex. Done before with the same sum, it changes nothing; the error
	// of a name that is taken by something else is an fs.ErrExist. Of two calls at a
	// time with one name, one stores its file and the other returns that error.
	Put(ctx context.Context, name, file, sum string) error
	// Has reports whether a file of this name and sum is there.
	Has(ctx context.Context, name, sum string) (bool, error)
}

// History is where outcomes are found: a history.Store, or an OverLog.
type History interface {
	// Settled returns, of each partition, the offset below which every record is older
	// than before (ms since 1970).
	Settled(ctx context.Context, before int64) (map[history.Part]int64, error)
	// Range calls fn with the envelope of every record of a partition in [from, to); a
	// partition that from does not name begins at its start. Envelopes are fn's until Range
	// returns.
	Range(ctx context.Context, from, to map[history.Part]int64, fn func(env *notify.Envelope) error) (damaged int, err error)
}

// Archiver writes the archive. Only one may run on a store and folder; what
// reads it (Status, Positions, PurgeBefore) may be called from any goroutine.
type Archiver struct {
	cfg Config

	row    []byte // of Once alone: as it is stored
	unsure bool   // of Once alone: another process may have written the row, or a write of it failed
	ours   string // of Once alone: SHA-256 of the last file that this process completed, or compared with the row

	mu   sync.Mutex
	st   state
	fail error // of the last run; nil: it was well
}

// state is the row that says how far the archive is.
type state struct {
	Files   uint64            `json:"files"`   // number of the last one
	Letters map[string]uint64 `json:"letters"` // last seq, by caller
	History map[string]int64  `json:"history"` // offset, by topic/partition
	Done    int64             `json:"done_ms"` // when the last run that reached the end began
	Pending *pending          `json:"pending,omitempty"`
}

// pending is a file that is complete, and the state once it has its name.
type pending struct {
	Manifest Manifest          `json:"manifest"`
	Letters  map[string]uint64 `json:"letters,omitempty"`
	History  map[string]int64  `json:"history,omitempty"`
	// Others are files of the same name that other processes completed before. They are in
	// the folders of those processes, which may still put one of them into the bucket.
	Others []pending `json:"others,omitempty"`
}

const metaKey = "archive"

// Open reads how far the archive is. Nothing is written to Dir before Run, which
// first finishes a file that a crash left without its name.
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
	if a.st.Done == 0 { // there is no row: its age counts from now
		st := a.st
		st.Done = time.Now().UnixMilli()
		if err := a.save(ctx, st); err != nil && !errors.Is(err, errMoved) {
			return nil, err
		}
	}
	return a, nil
}

// read returns the state of the row, and the row.
func (a *Archiver) read(ctx context.Context) (st state, row []byte, err error) {
	if row, err = a.cfg.Meta.GetMeta(ctx, metaKey); err != nil {
		return state{}, nil, err
	}
	if len(row) > 0 {
		if err := json.Unmarshal(row, &st); err != nil {
			return state{}, nil, fmt.Errorf("archive: the row of how far it is: %w", err)
		}
	}
	// The row leaves out what is empty, and these are written to.
	if st.Letters == nil {
		st.Letters = map[string]uint64{}
	}
	if p := st.Pending; p != nil {
		p.fill()
		for i := range p.Others {
			p.Others[i].fill()
		}
	}
	return st, row, nil
}

func (p *pending) fill() {
	if p.Letters == nil {
		p.Letters = map[string]uint64{}
	}
}

// load takes the state of the row on.
func (a *Archiver) load(ctx context.Context) error {
	st, row, err := a.read(ctx)
	if err != nil {
		return err
	}
	a.take(st, row)
	return nil
}

func (a *Archiver) take(st state, row []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.st, a.row = st, row
}

// errMoved says that the row is not as this process left it: another one runs the
// archive now.
var errMoved = errors.New("another process has moved the archive on")

// save writes the row and takes the state on.
func (a *Archiver) save(ctx context.Context, st state) error {
	b, err := json.Marshal(st)
	if err != nil {
		return err
	}
	won, err := a.cfg.Meta.SwapMeta(ctx, metaKey, a.row, b)
	if err == nil && !won {
		err = errMoved
	}
	if err != nil {
		a.unsure = true
		return err
	}
	a.take(st, b)
	return nil
}

// retryAfter is how long a run that failed is not tried again, at most.
const retryAfter = time.Minute

// Run writes the archive every Config.Every until ctx ends, and returns nil
// then. A run that fails is tried again.
func (a *Archiver) Run(ctx context.Context) error {
	a.unsure = true
	for {
		err := a.Once(ctx)
		if ctx.Err() != nil {
			return nil
		}
		wait := a.cfg.Every
		if err != nil {
			wait = min(wait, retryAfter)
			a.cfg.Logger.Warn("archive is not written, will try again", "dir", a.cfg.Dir, "err", err)
			if a.cfg.Failed != nil {
				a.cfg.Failed(err)
			}
		}
		if !notify.Sleep(ctx, wait) {
			return nil
		}
	}
}

// Once writes what there is to archive now: at most one file of each kind. Not
// beside Run.
func (a *Archiver) Once(ctx context.Context) (err error) {
	defer func() {
		a.mu.Lock()
		a.fail = err
		a.mu.Unlock()
	}()
	began := time.Now()
	if a.unsure {
		if err := a.load(ctx); err != nil {
			return err
		}
		a.unsure = false
	}
	if p := a.st.Pending; p != nil {
		if p.Manifest.SHA256 != a.ours { // read once, not with each try while the bucket is away
			if err := dropUnlike(a.cfg.Dir, &p.Manifest); err != nil {
				return err
			}
			a.ours = p.Manifest.SHA256
		}
		if err := a.name(ctx); err != nil {
			return err
		}
	}
	if err := clean(a.cfg.Dir); err != nil {
		return err
	}
	if err := a.shipAll(ctx); err != nil {
		return err
	}
	if err := a.letters(ctx, began); err != nil {
		return err
	}
	if err := a.outcomes(ctx, began); err != nil {
		return err
	}
	st := a.st
	st.Done = began.UnixMilli()
	return a.save(ctx, st)
}

// letters archives the dead letters indexed since the last run.
func (a *Archiver) letters(ctx context.Context, now time.Time) error {
	to := maps.Clone(a.st.Letters)
	return a.file(ctx, DeadLetters, now, func(add func(any) error) (*pending, int, error) {
		err := a.eachLetter(ctx, to, func(d *engine.DeadLetter) error { return add(letter{deadletter.LetterID(d), d}) })
		return &pending{Letters: to, History: a.st.History}, 0, err
	})
}

// eachLetter calls fn with every dead letter behind the places of at, by caller, and
// moves them on.
func (a *Archiver) eachLetter(ctx context.Context, at map[string]uint64, fn func(*engine.DeadLetter) error) error {
	for _, caller := range a.cfg.Callers() {
		for {
			ds, err := a.cfg.Letters.Feed(ctx, caller, at[caller], 1000)
			if err != nil {
				return err
			}
			if len(ds) == 0 {
				break
			}
			for i := range ds {
				if err := fn(&ds[i]); err != nil {
					return err
				}
				at[caller] = ds[i].Seq
			}
		}
	}
	return nil
}

// letter is a line of a dead letters file; the id of a trigger is its own.
type letter struct {
	ID string `json:"id"`
	*engine.DeadLetter
}

// Outcome is a line of an outcomes file.
type Outcome struct {
	ID       string    `json:"notification_id"`
	Caller   string    `json:"caller"`
	Campaign string    `json:"campaign,omitempty"`
	Channel  string    `json:"channel"`
	Category string    `json:"category"`
	User     string    `json:"user_id"`
	Template string    `json:"template,omitempty"`
	Status   string    `json:"status"`
	Code     string    `json:"code,omitempty"`
	Epoch    uint16    `json:"epoch,omitempty"`
	Attempts int       `json:"attempts"`
	Accepted time.Time `json:"accepted_at"`
	Updated  time.Time `json:"updated_at,omitzero"`
}

// outcomes archives what has settled since the last run.
func (a *Archiver) outcomes(ctx context.Context, now time.Time) error {
	from := positions(a.st.History)
	to, err := a.cfg.History.Settled(ctx, now.Add(-a.cfg.After).UnixMilli())
	if err != nil {
		return err
	}
	for p, at := range from { // a merge may have made what is archived younger
		to[p] = max(to[p], at)
	}
	return a.file(ctx, Outcomes, now, func(add func(any) error) (*pending, int, error) {
		o := outcomeReader{status: a.cfg.Status, add: add}
		damaged, err := a.cfg.History.Range(ctx, from, to, func(env *notify.Envelope) error { return o.take(ctx, env) })
		if err == nil {
			err = o.flush(ctx)
		}
		if err != nil {
			return nil, 0, err
		}
		names := make(map[string]int64, len(to))
		for p, at := range to {
			names[p.String()] = at
		}
		return &pending{Letters: a.st.Letters, History: names}, damaged, nil
	})
}

// Bounds of what an outcomeReader holds. A server takes a millisecond for a chunk's rows.
const (
	chunksAtOnce = 64
	bytesAtOnce  = 8 << 20 // of receivers
)

// outcomeReader reads the outcomes of some chunks at a time and adds their lines in the
// order of the chunks.
type outcomeReader struct {
	status engine.Status
	add    func(any) error
	envs   []*notify.Envelope
	bytes  int
}

func (o *outcomeReader) take(ctx context.Context, env *notify.Envelope) error {
	o.envs, o.bytes = append(o.envs, env), o.bytes+len(env.Receivers)
	if len(o.envs) < chunksAtOnce && o.bytes < bytesAtOnce {
		return nil
	}
	return o.flush(ctx)
}

// flush adds the lines of what was taken.
func (o *outcomeReader) flush(ctx context.Context) error {
	rows := make([][]notify.Row, len(o.envs))
	reads, ctx := errgroup.WithContext(ctx)
	for i, env := range o.envs {
		reads.Go(func() (err error) {
			rows[i], err = o.status.Chunk(ctx, env.Chunk)
			return err
		})
	}
	if err := reads.Wait(); err != nil {
		return err
	}
	for i, env := range o.envs {
		if err := addOutcomes(env, rows[i], o.add); err != nil {
			return err
		}
	}
	clear(o.envs)
	o.envs, o.bytes = o.envs[:0], 0
	return nil
}

// addOutcomes adds a line for each receiver of a chunk.
func addOutcomes(env *notify.Envelope, rows []notify.Row, add func(any) error) error {
	rd, r := notify.ReadReceivers(env.Receivers), notify.Receiver{}
	for pos := uint32(0); rd.Next(&r); pos++ {
		out := notify.Fold(rows, r.Index, pos)
		line := Outcome{
			ID: notify.ID{Base: env.Chunk.Base, Index: r.Index, Fan: env.Fan}.String(), Caller: env.Caller, Campaign: env.Campaign,
			Channel: env.Channel.String(), Category: env.Category.String(), User: string(r.User), Template: env.Content.Template,
			Status: out.State.String(), Code: out.Code, Epoch: out.Epoch, Attempts: int(out.Attempt) + 1,
			Accepted: time.UnixMilli(env.Accepted).UTC(),
		}
		if out.Updated != 0 {
			line.Updated = time.UnixMilli(out.Updated).UTC()
		}
		if err := add(&line); err != nil {
			return err
		}
	}
	return rd.Err()
}

// positions are the offsets of a state.
func positions(names map[string]int64) map[history.Part]int64 {
	out := make(map[history.Part]int64, len(names))
	for name, at := range names {
		i := strings.LastIndexByte(name, '/')
		n, err := strconv.ParseInt(name[i+1:], 10, 32)
		if i > 0 && err == nil { // else not ours
			out[history.Part{Topic: name[:i], Partition: int32(n)}] = at
		}
	}
	return out
}

// file writes one file of what fill adds, and moves the state to what fill
// returns; fill's count is of what was damaged. Where a file is pending it writes that one
// again, under its name.
func (a *Archiver) file(ctx context.Context, kind string, now time.Time, fill func(add func(any) error) (*pending, int, error)) error {
	m, lost := nameOf(kind, now, a.st.Files+1), a.st.Pending
	if lost != nil {
		m = nameOf(kind, lost.Manifest.Written, lost.Manifest.Number)
	}
	w, err := create(a.cfg.Dir, m, lost == nil)
	if err != nil {
		return err
	}
	defer w.discard()
	p, damaged, err := fill(w.add)
	if err != nil {
		return err
	}
	if w.manifest.Lines == 0 && damaged == 0 { // no file for nothing
		st := a.st
		st.Letters, st.History, st.Pending = p.Letters, p.History, nil
		if lost != nil { // its name stays its own
			st.Files = lost.Manifest.Number
		}
		return a.save(ctx, st)
	}
	w.manifest.Damaged = damaged
	if err := w.seal(); err != nil {
		return err
	}
	p.Manifest, a.ours = w.manifest, w.manifest.SHA256
	if lost != nil {
		p.Others = append(slices.Clone(lost.Others), pending{Manifest: lost.Manifest, Letters: lost.Letters, History: lost.History})
	}
	st := a.st
	st.Pending = p
	a.cfg.hit("archive-before-pending")
	w.kept = true // from here on the row may name it, also where writing that failed
	if err := a.save(ctx, st); err != nil {
		return err
	}
	return a.name(ctx)
}

// name gives the pending file its name and its manifest, brings it into the bucket, and
// moves on. A file that is not in the folder may be in another process's folder, or it
// was moved away since it was named.
func (a *Archiver) name(ctx context.Context) error {
	p := a.st.Pending
	a.cfg.hit("archive-before-name")
	err := publish(a.cfg.Dir, &p.Manifest)
	switch {
	case errors.Is(err, errTaken) && a.cfg.Bucket != nil:
		return a.replace(ctx)
	case errors.Is(err, errTaken):
		a.cfg.Logger.Warn("a file of the archive was taken away before it was noted, what it held is written again", "file", p.Manifest.File)
		return a.renumber(ctx)
	case err != nil:
		return err
	}
	a.cfg.hit("archive-named")
	err = a.ship(ctx, &p.Manifest)
	if !errors.Is(err, fs.ErrExist) {
		if err != nil {
			return err
		}
		return a.moveOn(ctx, p)
	}
	other, err := a.inBucket(ctx, p.Others)
	if err != nil {
		return err
	}
	if other == nil {
		a.cfg.Logger.Warn("the bucket has another file of this name, what it holds is written again under the next", "file", p.Manifest.File)
	}
	if err := a.shipped(&p.Manifest); err != nil {
		return err
	}
	if other == nil {
		return a.renumber(ctx)
	}
	return a.adopt(ctx, other)
}

// moveOn notes that what p holds is archived.
func (a *Archiver) moveOn(ctx context.Context, p *pending) error {
	a.cfg.hit("archive-shipped")
	st := a.st
	st.Files, st.Letters, st.History, st.Pending = p.Manifest.Number, p.Letters, p.History, nil
	if err := a.save(ctx, st); err != nil {
		return err
	}
	if a.cfg.Written != nil {
		a.cfg.Written(p.Manifest.Kind, p.Manifest.Lines)
	}
	return a.shipped(&p.Manifest)
}

// renumber forgets the pending file: its lines are written again, under the next number.
// Twice is better than not at all.
func (a *Archiver) renumber(ctx context.Context) error {
	st := a.st
	st.Files, st.Pending = st.Pending.Manifest.Number, nil
	return a.save(ctx, st)
}

// replace goes on where the pending file is not in this folder. If the bucket has it, or one
// of its name that another process completed, that one counts. Else it is written again,
// under the same name: the bucket takes one file of a name, so the lines of the process
// that has the file are not there twice, however late it comes back.
func (a *Archiver) replace(ctx context.Context) error {
	p := a.st.Pending
	there, err := a.inBucket(ctx, append(slices.Clone(p.Others), *p))
	switch {
	case err != nil:
		return err
	case there != nil:
		return a.adopt(ctx, there)
	}
	a.cfg.Logger.Warn("a file of the archive is not in this folder and not in the bucket, it is written again", "file", p.Manifest.File)
	if p.Manifest.Kind == DeadLetters {
		return a.letters(ctx, time.Now())
	}
	return a.outcomes(ctx, time.Now())
}

// inBucket returns that of some files which the bucket has; nil: none.
func (a *Archiver) inBucket(ctx context.Context, ps []pending) (*pending, error) {
	for i := range ps {
		m := &ps[i].Manifest
		if there, err := a.cfg.Bucket.Has(ctx, m.File, m.SHA256); err != nil {
			return nil, broken(err)
		} else if there {
			return &ps[i], nil
		}
	}
	return nil, nil
}

// adopt moves on behind a file in the bucket whose manifest may be missing there.
func (a *Archiver) adopt(ctx context.Context, p *pending) error {
	if err := writeManifest(a.cfg.Dir, &p.Manifest); err != nil {
		return err
	}
	if err := a.ship(ctx, &p.Manifest); err != nil {
		return err
	}
	return a.moveOn(ctx, p)
}
