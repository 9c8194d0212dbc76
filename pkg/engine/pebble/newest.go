package pebble

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Pebble opens a folder whose newest write-ahead log is gone as if it had never
// been there: what was acknowledged and not flushed is lost without a word. So a
// file beside it names the newest log, and is written, durably, before the first
// write to that log. Older logs need none: the newest outlives them.

// NewestLog is the name, below Config.Dir, of the file that names the newest
// write-ahead log.
const NewestLog = "NEWEST-WAL"

const logSuffix = ".log"

// checkNewest refuses a folder that lacks the log that was the newest.
func checkNewest(fs vfs.FS, dir string) error {
	name, err := readNewest(fs, dir)
	if err != nil || name == "" {
		return err
	}
	_, err = fs.Stat(fs.PathJoin(dir, name))
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return &notify.Error{
		Kind: notify.KindInternal, Code: "store_wal_missing",
		Msg: fmt.Sprintf("the store in %s has lost its newest write-ahead log %s, and with it what was acknowledged last: "+
			"put the file back, or restore the folder and the log's from one copy; to go on without what it held, remove %s",
			dir, name, filepath.Join(dir, NewestLog)),
	}
}

// readNewest returns the name of the newest log; empty: none was written down,
// or half of a name by a version that is cut short, which is no reason to refuse.
func readNewest(fs vfs.FS, dir string) (string, error) {
	f, err := fs.Open(fs.PathJoin(dir, NewestLog))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	var b [64]byte
	n, err := f.ReadAt(b[:], 0)
	if n == 0 && err != nil && !strings.Contains(err.Error(), "EOF") {
		return "", err
	}
	name, whole := strings.CutSuffix(string(b[:n]), "\n")
	if !whole || !strings.HasSuffix(name, logSuffix) || strings.ContainsAny(name, `/\`) {
		return "", nil
	}
	return name, nil
}

// writeNewest writes the name down, durably. The log's entry in the folder is
// durable before its name is: a crash between the two must not leave a name
// without its log.
func writeNewest(fs vfs.FS, dir, name string) error {
	tmp := fs.PathJoin(dir, NewestLog+".tmp")
	f, err := fs.Create(tmp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write([]byte(name + "\n"))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := syncFolder(fs, dir); err != nil {
		return err
	}
	if err := fs.Rename(tmp, fs.PathJoin(dir, NewestLog)); err != nil {
		return err
	}
	return syncFolder(fs, dir)
}

func syncFolder(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
