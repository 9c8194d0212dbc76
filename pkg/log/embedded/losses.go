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

// Loss is a range of records that were in the log, and that a start of the broker found damaged or
// missing. The start replaces them by a marker (log.LostHeader). So readers continue after the
// marker, and no new record gets the offset of a lost record. The loss stays in losses.json until
// an operator removes that file.
type Loss struct {
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	From      int64     `json:"from"` // offset of the first lost record
	To        int64     `json:"to"`   // offset after the last lost record
	Found     time.Time `json:"found"`
	// Committed holds, for each group that reads the topic, the committed offset when the loss was
	// found. The group had done all records below that offset.
	Committed map[string]int64 `json:"committed,omitempty"`
	// Kept is the value of Config.Kept when the loss was found. Records below this offset were
	// stored elsewhere.
	Kept int64 `json:"kept"`
	// The times of the lost records are between After and Before. After is the time of the record
	// before the range. Before is the time of the record after the range; if there is no such record,
	// Before may be the time of the check. Both are in ms since 1970. 0: not known.
	After  int64 `json:"after,omitempty"`
	Before int64 `json:"before,omitempty"`
	// File is a path below Dir. The file holds the bytes that were found instead of the records. Empty:
	// no bytes were found.
	File string `json:"file,omitempty"`
}

// Records returns the number of lost records.
func (l *Loss) Records() int64 { return l.To - l.From }

// Below returns the number of lost records whose offsets are below offset.
func (l *Loss) Below(offset int64) int64 { return min(max(offset-l.From, 0), l.Records()) }

// Torn is an incomplete write at the end of a partition, which a start of the broker has removed.
// It was never acknowledged, because a crash cut it.
type Torn struct {
	Topic     string
	Partition int32
	Offset    int64 // first offset of the write
	Bytes     int
}

// LossesFile is the name of the file in Dir that lists all losses until now.
const LossesFile = "losses.json"

func readLosses(dir string) (all []Loss, err error) {
	name := filepath.Join(dir, LossesFile)
	raw, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("embedded log: %w", err)
	}
	if json.Unmarshal(raw, &all) != nil {
		// A damaged report must not prevent the start of the log. Rename the report and begin a new
		// one.
		if err := os.Rename(name, name+".damaged"); err != nil {
			return nil, fmt.Errorf("embedded log: %w", err)
		}
		return nil, nil
	}
	return all, nil
}

// addLosses adds the losses that were found to the losses file durably, and returns all losses in
// the file. The caller must repair the segments only afterwards. If the process ends between the
// two steps, the next start then finds the same losses again.
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
		return nil, fmt.Errorf("embedded log: writing %s: %w", LossesFile, err)
	}
	return all, nil
}
