package embedded

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/internal/atomicfile"
)

// The broker reads its folder only where it finds meta.json, and of the partitions
// only those of topics.json. Without them it begins anew, at offset 0, beside the
// segments that are there: what they hold is not read, and what is appended lies
// behind the positions of groups, so that nobody reads that either.
const (
	metaFile   = "meta.json"
	topicsFile = "topics.json"
	clusterID  = "notifyd"
)

// The forms that kfake gives them.
type (
	metaJSON struct {
		Version int    `json:"version"`
		Cluster string `json:"cluster_id"`
	}
	topicsJSON struct {
		Version int         `json:"version"`
		Topics  []topicJSON `json:"topics"`
	}
	topicJSON struct {
		Name       string            `json:"name"`
		ID         []byte            `json:"id"` // 16 bytes
		Partitions int               `json:"partitions"`
		Replicas   int               `json:"replicas"`
		Configs    map[string]string `json:"configs,omitempty"`
	}
)

// stateVersion is that of the forms above, and what kfake reads.
const stateVersion = 1

// keepState writes what of the two is missing, cannot be read, or leaves out
// partitions that have segments. Both follow from the folders: nothing is lost.
// Call it when the segments are mended. ends are those that were written down.
func keepState(cfg Config, ends *ends) error {
	most := map[string]int{} // partitions of each topic that have segments
	err := eachSegment(cfg.Dir, func(folder string, _, _ int64) {
		if p, ok := placeOf(folder); ok {
			most[p.topic] = max(most[p.topic], int(p.partition)+1)
		}
	})
	if err != nil || len(most) == 0 { // a log that is new
		return err
	}
	if err := dropDamaged(cfg); err != nil {
		return err
	}
	var meta metaJSON
	if ok, err := readState(cfg.Dir, metaFile, &meta); err != nil {
		return err
	} else if !ok || meta.Version < 1 {
		cfg.Logger.Warn("a file of the log that says that there is one was missing or damaged, and was written anew", "file", metaFile)
		if err := writeState(cfg.Dir, metaFile, metaJSON{stateVersion, clusterID}); err != nil {
			return err
		}
	}
	var topics topicsJSON
	ok, err := readState(cfg.Dir, topicsFile, &topics)
	if err != nil {
		return err
	}
	if !ok || topics.Version < 1 {
		topics = topicsJSON{Version: stateVersion}
	}
	var missed []string
	for name, n := range most {
		i := slices.IndexFunc(topics.Topics, func(t topicJSON) bool { return t.Name == name })
		if i < 0 {
			id := make([]byte, 16)
			rand.Read(id) // never fails
			// As many as there were; a user's partition follows from their number.
			if n = max(n, len(ends.Parts[name])); len(ends.Parts[name]) == 0 {
				n = max(n, cfg.Topics[name])
			}
			topics.Topics = append(topics.Topics, topicJSON{Name: name, ID: id, Partitions: n, Replicas: 1})
			missed = append(missed, name)
		} else if topics.Topics[i].Partitions < n {
			topics.Topics[i].Partitions = n
			missed = append(missed, name)
		}
	}
	if len(missed) == 0 {
		return nil
	}
	slices.Sort(missed)
	cfg.Logger.Warn("a file of the log that lists its topics was missing or damaged, and was written anew", "file", topicsFile, "topics", strings.Join(missed, " "))
	return writeState(cfg.Dir, topicsFile, topics)
}

// dropDamaged puts aside files without which the broker starts, and with which,
// damaged, it would not: nothing here has access rules or quotas, the settings are
// given with each start, and windows are those of producers that are gone.
func dropDamaged(cfg Config) error {
	for _, name := range []string{"acls.json", "sasl.json", "quotas.json", "broker_configs.json", "seq_windows.json"} {
		file := filepath.Join(cfg.Dir, name)
		raw, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) || err == nil && json.Valid(raw) {
			continue
		}
		if err == nil {
			err = os.Rename(file, file+".damaged")
		}
		if err != nil {
			return err
		}
		cfg.Logger.Warn("a file of the log was damaged, and put aside: nothing in it is needed", "file", name)
	}
	return nil
}

// readState reads a file into v; ok is false for one that is missing or is not
// what it should be.
func readState(dir, name string, v any) (ok bool, err error) {
	raw, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return json.Unmarshal(raw, v) == nil, nil
}

func writeState(dir, name string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return atomicfile.WriteFile(filepath.Join(dir, name), raw)
}
