package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/notifyd/notifyd/internal/atomicfile"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Holder is who uses a data folder, as it says itself.
type Holder struct {
	PID     int       `json:"pid"`
	Command string    `json:"command"` // "notifyd dev"
	Since   time.Time `json:"since"`
	API     string    `json:"api,omitempty"`   // URL; empty: not known yet
	Inbox   string    `json:"inbox,omitempty"` // URL of the simulated providers' inbox
}

func (h Holder) String() string {
	s := fmt.Sprintf("%s, pid %d, since %s", h.Command, h.PID, h.Since.Local().Format("2006-01-02 15:04:05 MST"))
	if h.API != "" {
		s += ", " + h.API
	}
	return s
}

// Lock keeps a folder for one process. The operating system frees it with the
// process, however that ends: what a dead one left is no obstacle.
type Lock struct {
	file io.Closer
	told string // the file with the holder
}

const (
	lockFile   = "lock"
	holderFile = "holder.json"
)

// LockFolder takes a folder that exists for this process, and writes down by
// whom. When another one has it, the error is notify.KindUnavailable with code
// "data_dir_locked", and names its holder.
func LockFolder(dir string, h Holder) (*Lock, error) {
	file, err := vfs.Default.Lock(filepath.Join(dir, lockFile))
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, os.ErrPermission) && !errors.Is(err, syscall.EACCES) {
		return nil, BadDataDir(dir, err)
	}
	if err != nil {
		who := "another process"
		if h, ok := HolderOf(dir); ok {
			who = h.String()
		}
		return nil, &notify.Error{
			Kind: notify.KindUnavailable, Code: "data_dir_locked",
			Msg: fmt.Sprintf("the data folder %s is in use by %s", dir, who),
		}
	}
	l := &Lock{file, filepath.Join(dir, holderFile)}
	_ = os.Remove(l.told) // of one that was killed
	l.Tell(h)
	return l, nil
}

// Tell changes what others read about the holder. It is a courtesy: a disk that
// does not take it changes nothing.
func (l *Lock) Tell(h Holder) {
	b, err := json.Marshal(h)
	if err != nil {
		return
	}
	tmp := l.told + ".tmp"
	if os.WriteFile(tmp, append(b, '\n'), 0o600) == nil {
		_ = os.Rename(tmp, l.told)
	}
}

// Close gives the folder back.
func (l *Lock) Close() error {
	_ = os.Remove(l.told)
	return l.file.Close()
}

// HolderOf is what the holder of a folder wrote down. It may be left from a
// process that was killed; only LockFolder knows.
func HolderOf(dir string) (h Holder, ok bool) {
	b, err := os.ReadFile(filepath.Join(dir, holderFile))
	return h, err == nil && json.Unmarshal(b, &h) == nil && h.PID > 0
}

// Locked reports whether an error says that a folder is in use.
func Locked(err error) bool {
	e, ok := errors.AsType[*notify.Error](err)
	return ok && (e.Code == "data_dir_locked" || e.Code == "store_locked")
}

// MakeDataDir makes a folder that can be written to, or says
// notify.KindUnavailable with code "data_dir". Only its owner may enter it, also if it
// was there before: it holds addresses, contents and signing secrets.
func MakeDataDir(dir string) error {
	err := atomicfile.MkdirAll(dir) // what is durable in it would be gone with its own name
	if err == nil {
		// A volume may belong to somebody else, as with fsGroup: the folders that are
		// made in it are 0700 all the same.
		if err = os.Chmod(dir, 0o700); errors.Is(err, os.ErrPermission) {
			err = nil
		}
	}
	if err == nil {
		var probe *os.File
		if probe, err = os.CreateTemp(dir, ".probe-*"); err == nil {
			err = errors.Join(probe.Close(), os.Remove(probe.Name()))
		}
	}
	if errors.Is(err, syscall.ENOSPC) {
		return nil // full is not read-only: what is there can be delivered
	}
	if err != nil {
		return BadDataDir(dir, err)
	}
	return nil
}

// BadDataDir is the error of a folder that cannot be written to.
func BadDataDir(dir string, err error) error {
	return &notify.Error{Kind: notify.KindUnavailable, Code: "data_dir", Msg: "cannot write to the data folder " + dir, Err: err}
}

// DataFolder is where a process without data_dir keeps its data.
func DataFolder(getenv func(string) string, name string) string {
	base := getenv("XDG_DATA_HOME")
	if base == "" {
		base = filepath.Join(getenv("HOME"), ".local", "share")
	}
	return filepath.Join(base, "notifyd", name)
}

// command is this process as its user started it.
func command() string {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		return filepath.Base(os.Args[0]) + " " + os.Args[1]
	}
	return filepath.Base(os.Args[0])
}

// Self is this process as a holder.
func Self() Holder { return Holder{PID: os.Getpid(), Command: command(), Since: time.Now()} }
