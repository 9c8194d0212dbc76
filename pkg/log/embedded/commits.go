package embedded

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// readCommits reads the committed offsets from the broker's list of groups. The result holds one
// offset for each partition and group.
func readCommits(dir string) (map[place]map[string]int64, error) {
	raw, err := os.ReadFile(filepath.Join(dir, "groups.log"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("embedded log: %w", err)
	}
	out := map[place]map[string]int64{}
	for raw = raw[:wholeEntries(raw)]; len(raw) > 0; {
		n := 8 + int(binary.LittleEndian.Uint32(raw))
		var e struct {
			Type      string `json:"type"`
			Group     string `json:"g"`
			Topic     string `json:"t"`
			Partition int32  `json:"p"`
			Offset    int64  `json:"o"`
		}
		if json.Unmarshal(raw[10:n], &e) == nil {
			p := place{e.Topic, e.Partition}
			switch e.Type {
			case "commit":
				if out[p] == nil {
					out[p] = map[string]int64{}
				}
				out[p][e.Group] = e.Offset
			case "delete":
				delete(out[p], e.Group)
			}
		}
		raw = raw[n:]
	}
	return out, nil
}

// byGroup rearranges committed offsets, so that they are found by group, topic and partition.
func byGroup(commits map[place]map[string]int64) map[string]map[string]map[int32]int64 {
	out := map[string]map[string]map[int32]int64{}
	for p, groups := range commits {
		for group, at := range groups {
			if out[group] == nil {
				out[group] = map[string]map[int32]int64{}
			}
			if out[group][p.topic] == nil {
				out[group][p.topic] = map[int32]int64{}
			}
			out[group][p.topic][p.partition] = at
		}
	}
	return out
}
