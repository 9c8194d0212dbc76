package report

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/internal/atomicfile"
	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Store keeps each run in a separate folder. Save gives a folder its final name only when the
// folder is complete. So several processes may use one Store at the same time.
type Store struct{ Dir string }

// The files of a run.
const (
	FileResult  = "result.json"
	FileSummary = "summary.txt"
	FilePage    = "report.html"
	FileHLog    = "run.hlog"
	fileEntry   = "entry.json"
)

// DefaultStore returns the store of this user: $XDG_DATA_HOME/notifyctl/runs. If XDG_DATA_HOME is
// not set, it is $HOME/.local/share/notifyctl/runs.
func DefaultStore(getenv func(string) string) Store {
	base := getenv("XDG_DATA_HOME")
	if base == "" {
		base = filepath.Join(getenv("HOME"), ".local", "share")
	}
	return Store{Dir: filepath.Join(base, "notifyctl", "runs")}
}

// Entry describes one run in a list.
type Entry struct {
	ID         string        `json:"id"`
	Scenario   string        `json:"scenario"`
	Started    time.Time     `json:"started"`
	Sending    time.Duration `json:"sending_ns"`
	Verdict    string        `json:"verdict"`
	Exit       int           `json:"exit"`
	Partial    bool          `json:"partial,omitempty"`
	Segment    load.Segment  `json:"segment"`
	Accepted   int64         `json:"accepted"`
	AcceptedPS float64       `json:"accepted_per_s"`
	P99        int64         `json:"response_p99_ns"`
	Lost       int64         `json:"lost"`
	Duplicates int64         `json:"duplicates"`
	// Damaged says why the folder cannot be read. If it is not empty, all other fields except ID
	// are zero.
	Damaged string `json:"damaged,omitempty"`
}

// Save writes all reports of a run and returns the run's ID. It writes the files into a temporary
// folder, and renames the folder when all files are on the disk.
func (s Store) Save(r *load.Result) (id string, err error) {
	files := map[string]func(*bytes.Buffer) error{
		FileResult:  func(b *bytes.Buffer) error { raw, err := Encode(r); b.Write(raw); return err },
		FileSummary: func(b *bytes.Buffer) error { return WriteText(b, r) },
		FilePage:    func(b *bytes.Buffer) error { return WriteHTML(b, r) },
		FileHLog:    func(b *bytes.Buffer) error { return WriteHLog(b, r) },
	}
	if err := atomicfile.MkdirAll(s.Dir); err != nil {
		return "", fmt.Errorf("folder of runs: %w", err)
	}
	work, err := os.MkdirTemp(s.Dir, ".new-")
	if err != nil {
		return "", fmt.Errorf("folder of runs: %w", err)
	}
	defer os.RemoveAll(work) // after the rename there is nothing to remove
	for name, write := range files {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		if err := atomicfile.WriteFile(filepath.Join(work, name), b.Bytes()); err != nil {
			return "", err
		}
	}
	base := r.Started.UTC().Format("20060102-150405") + "-" + slug(r.Scenario.Name)
	if r.Segment.N > 1 {
		base += fmt.Sprintf("-%dof%d", r.Segment.I, r.Segment.N)
	}
	for n := 1; ; n++ {
		if id = base; n > 1 {
			id = fmt.Sprintf("%s-%d", base, n)
		}
		raw, err := json.Marshal(entryOf(id, r))
		if err != nil {
			return "", err
		}
		if err := atomicfile.WriteFile(filepath.Join(work, fileEntry), raw); err != nil {
			return "", err
		}
		if err = atomicfile.Rename(work, filepath.Join(s.Dir, id)); err == nil {
			return id, nil
		}
		// The rename fails if another run has this name, because the folder of that run is not
		// empty.
		if _, there := os.Lstat(filepath.Join(s.Dir, id)); there != nil || n == 1000 {
			return "", err
		}
	}
}

func entryOf(id string, r *load.Result) Entry {
	return Entry{
		ID: id, Scenario: r.Scenario.Name, Started: r.Started, Sending: r.Sending, Verdict: r.Verdict.Code, Exit: r.Exit,
		Partial: r.Partial, Segment: r.Segment, Accepted: r.Totals.Acked, AcceptedPS: r.Rates.Acked,
		P99: overallQuantiles(measuredSteps(r), response).P99, Lost: r.Totals.Lost, Duplicates: r.Totals.Duplicates,
	}
}

// slug turns the name of a scenario into text for the name of a folder.
func slug(name string) string {
	s := strings.Trim(strings.ToLower(asciiWord(name)), "-._")
	if s == "" {
		return "run"
	}
	return s[:min(len(s), 40)]
}

// List returns the runs, the latest run first. If the folder of the store does not exist, there are
// no runs.
func (s Store) List() ([]Entry, error) {
	dirs, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("folder of runs: %w", err)
	}
	var list []Entry
	for _, d := range dirs {
		if !d.IsDir() || strings.HasPrefix(d.Name(), ".") {
			continue
		}
		e := Entry{}
		raw, err := os.ReadFile(filepath.Join(s.Dir, d.Name(), fileEntry))
		if err == nil {
			err = json.Unmarshal(raw, &e)
		}
		if err != nil {
			e = Entry{Damaged: err.Error()}
		}
		e.ID = d.Name()
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b Entry) int {
		if c := b.Started.Compare(a.Started); c != 0 {
			return c
		}
		return cmp.Compare(b.ID, a.ID)
	})
	return list, nil
}

// Folder returns the folder of a run. The parameter id is one of these: the ID of the run, a part
// of the ID that no other ID contains, "last", or "last~N" for the Nth run before the last run.
// Folder returns an error of notify.KindNotFound if there is no such run, and of notify.KindInvalid
// if several runs match.
func (s Store) Folder(id string) (string, error) {
	list, err := s.List()
	if err != nil {
		return "", err
	}
	if back, ok := strings.CutPrefix(id, "last"); ok {
		n := 0
		if back != "" {
			if _, err := fmt.Sscanf(back, "~%d", &n); err != nil || fmt.Sprintf("~%d", n) != back || n < 0 {
				return "", notify.Invalid("bad_run", "run", fmt.Sprintf("%q must be the ID of a run, \"last\" or \"last~N\"", id))
			}
		}
		if n >= len(list) {
			return "", notFound(id, len(list))
		}
		return filepath.Join(s.Dir, list[n].ID), nil
	}
	var found []string
	for _, e := range list {
		if e.ID == id {
			return filepath.Join(s.Dir, id), nil
		}
		if id != "" && strings.Contains(e.ID, id) {
			found = append(found, e.ID)
		}
	}
	switch len(found) {
	case 0:
		return "", notFound(id, len(list))
	case 1:
		return filepath.Join(s.Dir, found[0]), nil
	}
	return "", notify.Invalid("bad_run", "run", fmt.Sprintf("%q matches several runs: %s", id, strings.Join(found[:min(4, len(found))], ", ")))
}

const codeNotFound = "run_not_found"

func notFound(id string, have int) error {
	return &notify.Error{Kind: notify.KindNotFound, Code: codeNotFound, Field: "run", Msg: fmt.Sprintf("none of the %[2]d stored runs matches %[1]q; notifyctl load ls lists the runs", id, have)}
}

// Open reads a result. A name with a slash or with the ending ".json" is the name of a result file,
// or of a folder with a result file. Any other name is the id of a run, as in Folder. Open returns
// an error of notify.KindNotFound if there is no such file or run.
func (s Store) Open(name string) (*load.Result, error) {
	file := name
	if !strings.ContainsRune(name, filepath.Separator) && !strings.HasSuffix(name, ".json") {
		dir, err := s.Folder(name)
		if err != nil {
			return nil, err
		}
		file = dir
	}
	if st, err := os.Stat(file); err == nil && st.IsDir() {
		file = filepath.Join(file, FileResult)
	}
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &notify.Error{Kind: notify.KindNotFound, Code: codeNotFound, Field: "run", Msg: fmt.Sprintf("there is no file %q", file)}
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := Decode(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return r, nil
}

// Encode returns a Result as JSON with a newline at its end.
func Encode(r *load.Result) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	if err := enc.Encode(r); err != nil {
		return nil, fmt.Errorf("write the result as JSON: %w", err)
	}
	return b.Bytes(), nil
}

// maxResult is the largest result that Decode reads, in bytes. The result of a run of one day is a
// quarter of maxResult.
const maxResult = 1 << 30

// maxSecond is a year in seconds. A result with a later second is damaged.
const maxSecond = 366 * 24 * 3600

// Decode reads a Result that Encode wrote. It ignores unknown fields. It returns an error of
// notify.KindInvalid if the result has another schema, or if the data is not a Result.
func Decode(in io.Reader) (*load.Result, error) {
	raw, err := io.ReadAll(io.LimitReader(in, maxResult+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > maxResult {
		return nil, notify.Invalid("bad_result", "", fmt.Sprintf("the result has more than %d bytes, which is the maximum", maxResult))
	}
	r := &load.Result{}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if err := dec.Decode(r); err != nil {
		return nil, notify.Invalid("bad_result", "", fmt.Sprintf("the data is not the JSON result of a load run: %v", err))
	}
	if dec.More() {
		return nil, notify.Invalid("bad_result", "", "more data follows the result")
	}
	switch {
	case r.Schema == 0:
		return nil, notify.Invalid("bad_result", "schema", "is missing, so this is not the result of a load run")
	case r.Schema != load.SchemaVersion:
		return nil, notify.Invalid("bad_result", "schema", fmt.Sprintf("is %d, but this notifyctl reads only schema %d", r.Schema, load.SchemaVersion))
	}
	// Charts and replays loop from the first second to the last second. A wrong second would make
	// these loops extremely long.
	for i := range r.Seconds {
		if s := r.Seconds[i].Second; s < 0 || s > maxSecond || i > 0 && s < r.Seconds[i-1].Second {
			return nil, notify.Invalid("bad_result", "seconds", fmt.Sprintf("row %d has the second %d, but the seconds must be from 0 to %d and must not decrease", i, s, maxSecond))
		}
	}
	return r, nil
}

// WriteFile writes a Result to the file with the given name. If it returns an error, the file has
// either the complete old content or the complete new content.
func WriteFile(name string, r *load.Result) error {
	raw, err := Encode(r)
	if err != nil {
		return err
	}
	return atomicfile.WriteFile(name, raw)
}
