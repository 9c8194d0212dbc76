package embedded

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/notifyd/notifyd/internal/atomicfile"
)

// Loss is a range of records that the log held, and that a start found damaged
// or missing. In their place the log has a marker (log.LostHeader): what is
// behind them is read as if they were done, and their offsets are not given out
// again. It is kept in losses.json until somebody removes that file.
type Loss struct {
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	From      int64     `json:"from"` // offsets
	To        int64     `json:"to"`   // behind the last one
	Found     time.Time `json:"found"`
	// Committed is what each group that reads the topic had committed then:
	// records below are done.
	Committed map[string]int64 `json:"committed,omitempty"`
	// Kept is the offset below which records were kept elsewhere then, as
	// Config.Kept said.
	Kept int64 `json:"kept"`
	// After and Before are the times of the records around them, ms since
	// 1970; 0: not known.
	After  int64 `json:"after,omitempty"`
	Before int64 `json:"before,omitempty"`
	// File has what was found in their place, below Dir; empty: nothing was.
	File string `json:"file,omitempty"`
}

// Records is how many records are gone.
func (l *Loss) Records() int64 { return l.To - l.From }

// Below is how many of them lie below an offset.
func (l *Loss) Below(offset int64) int64 { return min(max(offset-l.From, 0), l.Records()) }

// Torn is the rest of a write that a crash cut short: the last one of its
// partition, which was never acknowledged. A start removes it.
type Torn struct {
	Topic     string
	Partition int32
	Offset    int64 // that it would have had
	Bytes     int
}

// LossesFile is the name, below Dir, of what was found lost so far.
const LossesFile = "losses.json"

func readLosses(dir string) (all []Loss, err error) {
	name := filepath.Join(dir, LossesFile)
	raw, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("kfake: %w", err)
	}
	if json.Unmarshal(raw, &all) != nil {
		// Damaged too. A report must not keep the log from opening.
		if err := os.Rename(name, name+".damaged"); err != nil {
			return nil, fmt.Errorf("kfake: %w", err)
		}
		return nil, nil
	}
	return all, nil
}

// addLosses writes down what was found, durably, and returns all there are. It
// is done before the segments are mended: a start that is cut between the two
// finds the same again.
func addLosses(dir string, found []Loss) ([]Loss, error) {
	all, err := readLosses(dir)
	if err != nil || len(found) == 0 {
		return all, err
	}
	for _, l := range found {
		if !slices.ContainsFunc(all, func(o Loss) bool {
			return o.Topic == l.Topic && o.Partition == l.Partition && o.From == l.From && o.To == l.To
		}) {
			all = append(all, l)
		}
	}
	raw, err := json.MarshalIndent(all, "", "  ")
	if err == nil {
		err = atomicfile.WriteFile(filepath.Join(dir, LossesFile), append(raw, '\n'))
	}
	if err != nil {
		return nil, fmt.Errorf("kfake: writing %s: %w", LossesFile, err)
	}
	return all, nil
}
