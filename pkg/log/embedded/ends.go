package embedded

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/notifyd/notifyd/internal/atomicfile"
)

// The end of a partition is nowhere on disk but in its last batch. If that one
// is damaged, nothing tells it from a write that a crash cut short, which nobody
// was promised. So the ends are written down apart, twice a second while they
// move, in two files in turn: a crash may spoil the one being written.

// bounds are the first offset of a partition and the one behind its last.
type bounds struct {
	Start int64 `json:"start"`
	End   int64 `json:"end"`
}

// place names a partition.
type place struct {
	topic     string
	partition int32
}

// ends is what was written down.
type ends struct {
	Seq   uint64              `json:"seq"`
	Boot  string              `json:"boot,omitempty"` // of the machine, when its system tells
	Parts map[string][]bounds `json:"parts"`          // by topic, then partition
}

func (e *ends) of(p place) (b bounds, ok bool) {
	if bs := e.Parts[p.topic]; int(p.partition) < len(bs) {
		return bs[p.partition], true
	}
	return b, false
}

// sameBoot reports whether the machine runs since e was written, so that what
// was written before a kill is there, synced or not.
func (e *ends) sameBoot() bool { return e.Boot != "" && e.Boot == bootID() }

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id") // Linux; elsewhere not known
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func endsFile(dir string, seq uint64) string {
	return filepath.Join(dir, fmt.Sprintf("ends.%d", seq%2))
}

// readEnds returns the latest ends that were written whole; none is no error.
func readEnds(dir string) (latest ends, err error) {
	for i := range uint64(2) {
		raw, err := os.ReadFile(endsFile(dir, i))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return latest, fmt.Errorf("kfake: %w", err)
		}
		var e ends
		const frame = 8
		if len(raw) < frame || int(binary.LittleEndian.Uint32(raw)) > len(raw)-frame {
			continue
		}
		body := raw[frame : frame+int(binary.LittleEndian.Uint32(raw))]
		if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(raw[4:]) || json.Unmarshal(body, &e) != nil {
			continue
		}
		if e.Seq >= latest.Seq {
			latest = e
		}
	}
	return latest, nil
}

func writeEnds(dir string, e *ends) error {
	body, err := json.Marshal(e)
	if err != nil {
		return err
	}
	raw := binary.LittleEndian.AppendUint32(nil, uint32(len(body)))
	raw = binary.LittleEndian.AppendUint32(raw, crc32.Checksum(body, castagnoli))
	raw = append(raw, body...)
	name := endsFile(dir, e.Seq)
	_, err = os.Stat(name)
	fresh := errors.Is(err, fs.ErrNotExist)
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(raw, 0) // what a longer one left behind it is not read
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil && fresh {
		err = atomicfile.SyncDir(dir)
	}
	return err
}

// keepEnds writes the ends down until ctx ends, and once then. It asks the
// broker, which answers between two batches: what it says is written, and in
// Fsync mode synced.
func keepEnds(ctx context.Context, b *Broker) {
	tick := time.NewTicker(b.cfg.Measure)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		if err := noteEnds(b); err != nil {
			b.guard.writeFailed(err)
		}
		if ctx.Err() != nil {
			return
		}
	}
}

func noteEnds(b *Broker) error {
	b.noting.Lock()
	defer b.noting.Unlock()
	return noteEnd(b, nil)
}

// note writes the ends down if they have moved, with the starts that a trim is
// about to make. b.noting must be held.
func noteEnd(b *Broker, starts map[place]int64) error {
	now := ends{Seq: b.ends.Seq + 1, Boot: bootID(), Parts: make(map[string][]bounds, len(b.cfg.Topics))}
	moved := b.ends.Boot != now.Boot
	for topic := range b.cfg.Topics {
		infos := b.cluster.PartitionInfos(topic)
		b.noteHeights(topic, infos)
		for i, p := range infos {
			place := place{topic, int32(i)}
			at := bounds{max(p.LogStartOffset, starts[place]), p.HighWatermark}
			now.Parts[topic] = append(now.Parts[topic], at)
			was, ok := b.ends.of(place)
			moved = moved || !ok || was != at
		}
	}
	if !moved {
		return nil
	}
	if err := writeEnds(b.cfg.Dir, &now); err != nil {
		return fmt.Errorf("writing the ends down: %w", err)
	}
	b.ends = now
	return nil
}
