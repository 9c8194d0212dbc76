package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path/filepath"
	"sort"
	"sync"
	"time"
)

const offsetsName = "OFFSETS"

// offsetsFile stores the sealed offsets of all partitions. The file is needed for offsets that are
// in no segment's meta: those of partitions without chunks, and those of segments that were removed
// after their retention. Each write replaces the whole file.
type offsetsFile struct {
	fs  FS
	dir string

	// mu guards the field last, and serializes writes.
	mu   sync.Mutex
	last time.Time // time of the last write
}

type offsetsContent struct {
	CRC   uint32          `json:"crc"`
	Parts json.RawMessage `json:"parts"` // a []partRange, whose field From is not used
}

// due returns true if the time since the last write is age or longer. If there was no write yet,
// the first call of due counts as the last write.
func (o *offsetsFile) due(age time.Duration) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.last.IsZero() {
		o.last = time.Now()
		return age == 0
	}
	return time.Since(o.last) >= age
}

func (o *offsetsFile) write(sealed map[Part]int64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	spans := make([]partRange, 0, len(sealed))
	for tp, off := range sealed {
		spans = append(spans, partRange{Topic: tp.Topic, Partition: tp.Partition, To: off})
	}
	sort.Slice(spans, func(i, j int) bool {
		a, b := spans[i], spans[j]
		return a.Topic < b.Topic || a.Topic == b.Topic && a.Partition < b.Partition
	})
	parts, err := json.Marshal(spans)
	if err != nil {
		return err
	}
	js, err := json.Marshal(offsetsContent{crc32.Checksum(parts, castagnoli), parts})
	if err != nil {
		return err
	}
	tmp := filepath.Join(o.dir, offsetsName+tmpSuffix)
	f, err := o.fs.Create(tmp)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt(js, 0); err != nil {
		return err
	}
	if err := f.SyncData(); err != nil {
		return err
	}
	if err := o.fs.Rename(tmp, filepath.Join(o.dir, offsetsName)); err != nil {
		return err
	}
	if err := o.fs.SyncDir(o.dir); err != nil {
		return err
	}
	o.last = time.Now()
	return nil
}

// read returns the offsets that the method write stored, or nil if there is no file. It returns
// errDamaged if the content is damaged.
func (o *offsetsFile) read() (map[Part]int64, error) {
	f, err := o.fs.Open(filepath.Join(o.dir, offsetsName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > maxMeta {
		return nil, fmt.Errorf("%w: the offsets file has %d bytes; the maximum is %d bytes", errDamaged, size, maxMeta)
	}
	js := make([]byte, size)
	if err := readFull(f, js, 0); err != nil {
		return nil, err
	}
	var c offsetsContent
	var spans []partRange
	if err := json.Unmarshal(js, &c); err != nil {
		return nil, fmt.Errorf("%w: the offsets file is not valid JSON: %w", errDamaged, err)
	}
	if crc32.Checksum(c.Parts, castagnoli) != c.CRC {
		return nil, fmt.Errorf("%w: the checksum of the offsets file does not match its content", errDamaged)
	}
	if err := json.Unmarshal(c.Parts, &spans); err != nil {
		return nil, fmt.Errorf("%w: the offsets file has a wrong list of partitions: %w", errDamaged, err)
	}
	m := map[Part]int64{}
	for _, sp := range spans {
		m[Part{sp.Topic, sp.Partition}] = sp.To
	}
	return m, nil
}
