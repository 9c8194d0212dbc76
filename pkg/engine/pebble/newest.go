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

// If the newest write-ahead log of a folder is missing, Pebble opens the folder without an
// error. Writes that were acknowledged but not flushed are then lost silently. So the file
// NewestLog contains the name of the newest log. The file becomes durable before the first
// write to that log. Older logs need no such file, because Pebble removes a log only when a
// newer log exists.

// NewestLog is the name of the file in Config.Dir that contains the name of the newest
// write-ahead log.
const NewestLog = "NEWEST-WAL"

const logSuffix = ".log"

// checkNewest returns KindInternal "store_wal_missing" if the log that NewestLog names is
// missing.
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
		Msg: fmt.Sprintf("the store in %s has lost its newest write-ahead log %s, and with it the writes that were acknowledged last: "+
			"put the file back, or restore this folder and the folder of the log from one copy; to go on without these writes, remove %s",
			dir, name, filepath.Join(dir, NewestLog)),
	}
}

// readNewest returns the name of the newest log from the file NewestLog. It returns an
// empty name if the file is missing, is cut short, or does not contain the name of a log.
// In these cases checkNewest does not refuse the folder.
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
	name, complete := strings.CutSuffix(string(b[:n]), "\n")
	if !complete || !strings.HasSuffix(name, logSuffix) || strings.ContainsAny(name, `/\`) {
		return "", nil
	}
	return name, nil
}

// writeNewest stores the name of the newest log durably. Before that, it makes the log's
// entry in the folder durable. Otherwise a crash could leave the name on the disk without
// the log, and the next start would refuse the folder.
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
