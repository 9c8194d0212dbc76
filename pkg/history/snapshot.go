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

// Snapshot copies what is sealed into dir, a new folder on the same system: as
// links where the file system can, for a sealed segment never changes. What is
// not sealed is in the log, behind the offsets that the copy says.
func (s *Store) Snapshot(dir string) error {
	s.changeMu.Lock() // no segment is merged or removed meanwhile
	defer s.changeMu.Unlock()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return unavailable(err)
	}
	// The offsets first: they may tell of a segment, which must be in the copy
	// then. One that is sealed later only moves them on.
	err := backup.Copy(filepath.Join(s.cfg.Dir, offsetsName), filepath.Join(dir, offsetsName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return unavailable(err)
	}
	names, err := s.cfg.FS.List(s.cfg.Dir)
	if err != nil {
		return unavailable(err)
	}
	for _, name := range names {
		if _, ok := numOf(name); !ok || !strings.HasSuffix(name, fileSuffix) {
			continue
		}
		if err := backup.LinkOrCopy(s.path(name), filepath.Join(dir, name)); err != nil {
			return unavailable(fmt.Errorf("%s: %w", name, err))
		}
	}
	return nil
}
