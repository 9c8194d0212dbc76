package embedded

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
)

// cutTornEntries removes incomplete entries at the end of the broker's lists of groups and of
// producers. A power loss may leave a part of an entry there, or zeros. The broker skips these
// bytes when it reads a list, but it appends new entries after them. The next start would not read
// the new entries, and groups would continue at old offsets.
func cutTornEntries(dir string, log *slog.Logger) error {
	for _, name := range []string{"groups.log", "pids.log"} {
		cut, err := cutTornEntry(filepath.Join(dir, name))
		if err != nil {
			return fmt.Errorf("embedded log: removing an unfinished entry at the end of %s: %w", name, err)
		}
		if cut > 0 {
			log.Warn("removed an unfinished entry at the end of a file of the log", "file", name, "bytes", cut)
		}
	}
	return nil
}

func cutTornEntry(name string) (cut int64, err error) {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	raw, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	whole := wholeEntries(raw)
	if whole == len(raw) {
		return 0, nil
	}
	if err := f.Truncate(int64(whole)); err != nil {
		return 0, err
	}
	return int64(len(raw) - whole), f.Sync()
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// wholeEntries returns the length of the undamaged entries at the beginning of a list. An entry has
// three parts: the length of its body, the checksum of its body (both little-endian), and the body.
// The body begins with a version of two bytes.
func wholeEntries(raw []byte) int {
	const frame, version = 8, 2
	pos := 0
	for len(raw)-pos >= frame+version {
		n := int64(binary.LittleEndian.Uint32(raw[pos:]))
		if n < version || n > int64(len(raw)-pos-frame) {
			break
		}
		rest := raw[pos+frame : pos+frame+int(n)]
		if crc32.Checksum(rest, castagnoli) != binary.LittleEndian.Uint32(raw[pos+4:]) {
			break
		}
		pos += frame + int(n)
	}
	return pos
}
