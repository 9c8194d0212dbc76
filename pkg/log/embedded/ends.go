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

// The broker stores the end of a partition only in the partition's last batch. If this batch is
// damaged, it looks like a write that a crash cut and that was never acknowledged. So the code below
// stores the ends separately, twice a second while they move. It writes the files ends.0 and ends.1 in
// turn, because a crash may damage the file that is being written.

// bounds are the first offset of a partition and the offset after its last record.
type bounds struct {
	Start int64 `json:"start"`
	End   int64 `json:"end"`
}

// place identifies a partition.
type place struct {
	topic     string
	partition int32
}

// ends is the content of an ends file.
type ends struct {
	Seq   uint64              `json:"seq"`
	Boot  string              `json:"boot,omitempty"` // boot id of the machine, if the system has one
	Parts map[string][]bounds `json:"parts"`          // by topic, then partition
}

func (e *ends) of(p place) (b bounds, ok bool) {
	if bs := e.Parts[p.topic]; int(p.partition) < len(bs) {
		return bs[p.partition], true
	}
	return b, false
}

// sameBoot reports whether the machine has run without a restart since the ends were written. If
// so, all bytes that a process wrote before it was killed are in the files, synced or not.
func (e *ends) sameBoot() bool { return e.Boot != "" && e.Boot == bootID() }

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id") // exists only on Linux
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func endsFile(dir string, seq uint64) string {
	return filepath.Join(dir, fmt.Sprintf("ends.%d", seq%2))
}

// readEnds returns the content of the latest ends file that was written completely. If there is
// none, the result is empty.
func readEnds(dir string) (latest ends, err error) {
	for i := range uint64(2) {
		raw, err := os.ReadFile(endsFile(dir, i))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return latest, fmt.Errorf("embedded log: %w", err)
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
	_, err = f.WriteAt(raw, 0) // the old content may be longer; the length in the frame hides its rest
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil && fresh {
		err = atomicfile.SyncDir(dir)
	}
	return err
}

// writeEndsEvery writes the ends at the interval Config.Measure until ctx ends, and then one last
// time. It writes nothing if the ends have not moved. The broker does not report the ends while it
// writes or fsyncs a batch. So all records below the reported ends are written, and in Fsync mode
// synced.
func writeEndsEvery(ctx context.Context, b *Broker) {
	tick := time.NewTicker(b.cfg.Measure)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		if err := writeEndsIfMoved(b); err != nil {
			b.guard.writeFailed(err)
		}
		if ctx.Err() != nil {
			return
		}
	}
}

func writeEndsIfMoved(b *Broker) error {
	b.endsMu.Lock()
	defer b.endsMu.Unlock()
	return writeEndsLocked(b, nil)
}

// writeEndsLocked writes an ends file if the start or the end of a partition has moved, or if the
// machine was restarted, since the last ends file was written. The parameter starts holds the first
// offsets that a trim will set after this call. The caller holds b.endsMu.
func writeEndsLocked(b *Broker, starts map[place]int64) error {
	now := ends{Seq: b.ends.Seq + 1, Boot: bootID(), Parts: make(map[string][]bounds, len(b.cfg.Topics))}
	moved := b.ends.Boot != now.Boot
	for topic := range b.cfg.Topics {
		infos := b.cluster.PartitionInfos(topic)
		b.raiseAckedEnds(topic, infos)
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
		return fmt.Errorf("writing the ends of the partitions: %w", err)
	}
	b.ends = now
	return nil
}
