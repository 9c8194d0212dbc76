package history

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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
	err := copyFile(filepath.Join(s.cfg.Dir, offsetsName), filepath.Join(dir, offsetsName))
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
		from, to := s.path(name), filepath.Join(dir, name)
		if os.Link(from, to) == nil {
			continue
		}
		if err := copyFile(from, to); err != nil {
			return unavailable(fmt.Errorf("%s: %w", name, err))
		}
	}
	return nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
