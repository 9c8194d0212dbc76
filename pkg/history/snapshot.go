package history

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/notifyd/notifyd/pkg/backup"
)

// Snapshot copies the sealed segments into dir, a new folder on the same file system. It makes hard
// links if the file system supports them, because a sealed segment never changes. Records that are
// not sealed have offsets above the offsets in the copy, and are in the log.
func (s *Store) Snapshot(dir string) error {
	s.changeMu.Lock() // no segment is merged or removed while this is held
	defer s.changeMu.Unlock()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return unavailable(err)
	}
	// Copy the offsets before the segments. Every segment below the copied offsets must be in
	// the copy, and now all of these segments exist. In the other order, a segment that is
	// sealed between the two steps would be counted in the offsets but missing in the copy.
	err := backup.Copy(filepath.Join(s.cfg.Dir, offsetsName), filepath.Join(dir, offsetsName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return unavailable(err)
	}
	names, err := s.cfg.FS.List(s.cfg.Dir)
	if err != nil {
		return unavailable(err)
	}
	for _, name := range names {
		if _, ok := segmentNumber(name); !ok || !strings.HasSuffix(name, fileSuffix) {
			continue
		}
		if err := backup.LinkOrCopy(s.path(name), filepath.Join(dir, name)); err != nil {
			return unavailable(fmt.Errorf("%s: %w", name, err))
		}
	}
	return nil
}
