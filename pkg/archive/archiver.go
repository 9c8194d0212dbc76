package archive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

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
	// of a name that is taken by something else is an fs.ErrExist.
	Put(ctx context.Context, name, file, sum string) error
}

// History is where outcomes are found: a history.Store, or an OverLog.
type History interface {
	// Settled returns, of each partition, the offset below which every record is older
	// than before (ms since 1970).
	Settled(ctx context.Context, before int64) (map[history.Part]int64, error)
	// Range calls fn with the envelope of every record of a partition in [from, to); a
	// partition that from does not name begins at its start.
	Range(ctx context.Context, from, to map[history.Part]int64, fn func(env *notify.Envelope) error) (damaged int, err error)
}

// Archiver writes the archive. Only one may run on a store and folder; what
// reads it (Status, Positions, PurgeBefore) may be called from any goroutine.
type Archiver struct {
	cfg Config

	row    []byte // of Once alone: as it is stored
	unsure bool   // of Once alone: another process may have written the row, or a write of it failed

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
	if st.Pending != nil && st.Pending.Letters == nil {
		st.Pending.Letters = map[string]uint64{}
	}
	return st, row, nil
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
	if a.st.Pending != nil {
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
		damaged, err := a.cfg.History.Range(ctx, from, to, func(env *notify.Envelope) error { return a.envelope(ctx, env, add) })
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

func (a *Archiver) envelope(ctx context.Context, env *notify.Envelope, add func(any) error) error {
	rows, err := a.cfg.Status.Chunk(ctx, env.Chunk)
	if err != nil {
		return err
	}
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
// returns; fill's count is of what was damaged.
func (a *Archiver) file(ctx context.Context, kind string, now time.Time, fill func(add func(any) error) (*pending, int, error)) error {
	w, err := create(a.cfg.Dir, kind, now, a.st.Files+1)
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
		st.Letters, st.History = p.Letters, p.History
		return a.save(ctx, st)
	}
	w.manifest.Damaged = damaged
	if err := w.seal(); err != nil {
		return err
	}
	p.Manifest = w.manifest
	st := a.st
	st.Pending = p
	a.cfg.hit("archive-before-pending")
	w.kept = true // from here on the row may name it, also where writing that failed
	if err := a.save(ctx, st); err != nil {
		return err
	}
	return a.name(ctx)
}

// name gives the pending file its name and its manifest, and moves on. One that
// is in the folder no more is forgotten, and its lines are written again: it may
// have been moved away since it was named, or lost before, and twice is better
// than not at all.
func (a *Archiver) name(ctx context.Context) error {
	p, st := a.st.Pending, a.st
	a.cfg.hit("archive-before-name")
	err := publish(a.cfg.Dir, &p.Manifest)
	if errors.Is(err, errTaken) {
		a.cfg.Logger.Warn("a file of the archive was taken away before it was noted, what it held is written again", "file", p.Manifest.File)
		st.Files, st.Pending = p.Manifest.Number, nil
		return a.save(ctx, st)
	}
	if err != nil {
		return err
	}
	a.cfg.hit("archive-named")
	if err := a.ship(ctx, &p.Manifest); errors.Is(err, fs.ErrExist) {
		a.cfg.Logger.Warn("the bucket has another file of this name, what it holds is written again under the next", "file", p.Manifest.File, "err", err)
		if err := a.shipped(&p.Manifest); err != nil {
			return err
		}
		st.Files, st.Pending = p.Manifest.Number, nil
		return a.save(ctx, st)
	} else if err != nil {
		return err
	}
	a.cfg.hit("archive-shipped")
	st.Files, st.Letters, st.History, st.Pending = p.Manifest.Number, p.Letters, p.History, nil
	if err := a.save(ctx, st); err != nil {
		return err
	}
	if a.cfg.Written != nil {
		a.cfg.Written(p.Manifest.Kind, p.Manifest.Lines)
	}
	return a.shipped(&p.Manifest)
}
