package embedded

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/notifyd/notifyd/pkg/backup"
)

// HoldTrim keeps Trim and TrimOnce from removing anything until release is
// called, once.
func (b *Broker) HoldTrim() (release func()) {
	b.trimming.Lock()
	return b.trimming.Unlock
}

// CopyState copies what the broker keeps beside its records into the folder to:
// what the groups have committed, above all. A copy of the records that is to
// go with it must be made later: a commit must not point behind them.
func (b *Broker) CopyState(to string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return fmt.Errorf("kfake: %w", err)
	}
	list, err := os.ReadDir(b.cfg.Dir)
	if err != nil {
		return fmt.Errorf("kfake: %w", err)
	}
	for _, d := range list {
		// The probe and the port are this process's own.
		if d.IsDir() || d.Name() == "fsync.probe" || d.Name() == "port" || strings.HasSuffix(d.Name(), ".tmp") {
			continue
		}
		if err := backup.Copy(filepath.Join(b.cfg.Dir, d.Name()), filepath.Join(to, d.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("kfake: %w", err)
		}
	}
	return nil
}

// CopyRecords copies the records, all that are acknowledged when it begins, into
// the folder to: full segments as links where the file system can, the one that
// grows as it is. What is cut off at its end was not acknowledged; Open removes
// it, as after a crash. Trimming must be held.
func (b *Broker) CopyRecords(to string) error {
	parts, err := os.ReadDir(filepath.Join(b.cfg.Dir, "partitions"))
	if err != nil {
		return fmt.Errorf("kfake: %w", err)
	}
	for _, p := range parts {
		if !p.IsDir() {
			continue
		}
		if err := copyPartition(filepath.Join(b.cfg.Dir, "partitions", p.Name()), filepath.Join(to, "partitions", p.Name())); err != nil {
			return fmt.Errorf("kfake: %w", err)
		}
	}
	return nil
}

func copyPartition(from, to string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	list, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	base := func(name string) int64 {
		stem, _, _ := strings.Cut(name, ".")
		n, err := strconv.ParseInt(stem, 10, 64)
		if err != nil {
			return -1
		}
		return n
	}
	last := int64(-1)
	for _, d := range list {
		last = max(last, base(d.Name()))
	}
	// The index before the records it is about: a shorter one is made whole from
	// them, of a longer one the rest is cut off.
	slices.SortFunc(list, func(a, b fs.DirEntry) int {
		return cmp.Compare(filepath.Ext(b.Name()), filepath.Ext(a.Name()))
	})
	for _, d := range list {
		src, dst := filepath.Join(from, d.Name()), filepath.Join(to, d.Name())
		take := backup.LinkOrCopy
		if base(d.Name()) == last { // it grows
			take = backup.Copy
		}
		if err := take(src, dst); err != nil {
			return err
		}
	}
	return nil
}
