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

// The broker reads its folder only if the folder holds meta.json, and it reads only the partitions that
// topics.json lists. Without these files it starts again at offset 0 and ignores the existing segments.
// New records would then have offsets below the committed offsets of the groups, so no group would read
// them.
const (
	metaFile   = "meta.json"
	topicsFile = "topics.json"
	clusterID  = "notifyd"
)

// The content of these files, as kfake reads it.
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

// stateVersion is the version of metaJSON and topicsJSON that kfake reads.
const stateVersion = 1

// repairState writes meta.json and topics.json again if they are missing or cannot be read, or if
// topics.json omits partitions that have segments. The folders show what the files must contain, so
// nothing is lost. Call repairState after the segments were repaired. The parameter ends holds the
// stored ends of the partitions.
func repairState(cfg Config, ends *ends) error {
	most := map[string]int{} // number of partitions of each topic, according to the segments
	err := eachSegment(cfg.Dir, func(folder string, _, _ int64) {
		if p, ok := placeOf(folder); ok {
			most[p.topic] = max(most[p.topic], int(p.partition)+1)
		}
	})
	if err != nil || len(most) == 0 { // a new log needs no repair
		return err
	}
	if err := moveDamagedAside(cfg); err != nil {
		return err
	}
	var meta metaJSON
	if ok, err := readState(cfg.Dir, metaFile, &meta); err != nil {
		return err
	} else if !ok || meta.Version < 1 {
		cfg.Logger.Warn("the file that marks the folder as a log was missing or damaged, and was written again", "file", metaFile)
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
			// The number of partitions must not change, because it determines each user's partition.
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
	cfg.Logger.Warn("the file that lists the log's topics was missing or damaged, and was written again", "file", topicsFile, "topics", strings.Join(missed, " "))
	return writeState(cfg.Dir, topicsFile, topics)
}

// moveDamagedAside renames damaged files, because the broker would not start with them. The broker
// needs nothing from these files: access rules and quotas are not used, the settings are given at
// each start, and the sequence windows belong to producers of the previous process.
func moveDamagedAside(cfg Config) error {
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
		cfg.Logger.Warn("a file of the log was damaged and was renamed; nothing in it is needed", "file", name)
	}
	return nil
}

// readState decodes a file into v. The result ok is false if the file is missing or cannot be
// decoded.
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
