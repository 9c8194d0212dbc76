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

// HoldTrim stops Trim and TrimOnce from removing records until the caller calls the returned
// function, release. The caller must call it exactly once.
func (b *Broker) HoldTrim() (release func()) {
	b.trimming.Lock()
	return b.trimming.Unlock
}

// CopyState copies the broker's files into the folder target. It does not copy the records, nor
// files that are useful only to this process. The most important file holds the committed offsets
// of the groups. Call CopyRecords after CopyState, because otherwise a copied committed offset
// could be after the last copied record.
func (b *Broker) CopyState(target string) error {
	if err := os.MkdirAll(target, 0o700); err != nil {
		return fmt.Errorf("embedded log: %w", err)
	}
	list, err := os.ReadDir(b.cfg.Dir)
	if err != nil {
		return fmt.Errorf("embedded log: %w", err)
	}
	for _, d := range list {
		// The probe file and the port file are useful only to this process.
		if d.IsDir() || d.Name() == "fsync.probe" || d.Name() == "port" || strings.HasSuffix(d.Name(), ".tmp") {
			continue
		}
		if err := backup.Copy(filepath.Join(b.cfg.Dir, d.Name()), filepath.Join(target, d.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("embedded log: %w", err)
		}
	}
	return nil
}

// CopyRecords copies all records that were acknowledged before the copy began into the folder
// target. Full segments become hard links, if the file system supports this. The growing segment is
// copied byte by byte. The copy may end in the middle of a batch that was not acknowledged; Open
// removes this part, as it does after a crash. The caller must call HoldTrim before CopyRecords,
// and may allow trims again only after CopyRecords has returned.
func (b *Broker) CopyRecords(target string) error {
	parts, err := os.ReadDir(filepath.Join(b.cfg.Dir, "partitions"))
	if err != nil {
		return fmt.Errorf("embedded log: %w", err)
	}
	for _, p := range parts {
		if !p.IsDir() {
			continue
		}
		if err := copyPartition(filepath.Join(b.cfg.Dir, "partitions", p.Name()), filepath.Join(target, "partitions", p.Name())); err != nil {
			return fmt.Errorf("embedded log: %w", err)
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
	// Copy the index before its records. If the copied index is too short, Open completes it from the
	// records. If the index is too long, Open cuts it.
	slices.SortFunc(list, func(a, b fs.DirEntry) int {
		return cmp.Compare(filepath.Ext(b.Name()), filepath.Ext(a.Name()))
	})
	for _, d := range list {
		src, dst := filepath.Join(from, d.Name()), filepath.Join(to, d.Name())
		take := backup.LinkOrCopy
		if base(d.Name()) == last { // this segment grows
			take = backup.Copy
		}
		if err := take(src, dst); err != nil {
			return err
		}
	}
	return nil
}
