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

// Holder describes the process that uses a data folder. That process writes it.
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

// Lock keeps a folder for one process. The operating system frees it when the process ends in
// whatever way, so a process that was killed leaves no lock.
type Lock struct {
	file       io.Closer
	holderPath string // the file in which the Holder is written
}

const (
	lockFile   = "lock"
	holderFile = "holder.json"
)

// LockFolder locks an existing folder for this process, and writes h into it. If another
// process has the lock, it returns notify.KindUnavailable with code "data_dir_locked", which
// names the holder.
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
	_ = os.Remove(l.holderPath) // a process that was killed may have left it
	l.Tell(h)
	return l, nil
}

// Tell replaces the Holder that others read. It is best effort: errors are ignored, for the
// lock does not depend on it.
func (l *Lock) Tell(h Holder) {
	b, err := json.Marshal(h)
	if err != nil {
		return
	}
	tmp := l.holderPath + ".tmp"
	if os.WriteFile(tmp, append(b, '\n'), 0o600) == nil {
		_ = os.Rename(tmp, l.holderPath)
	}
}

// Close frees the folder.
func (l *Lock) Close() error {
	_ = os.Remove(l.holderPath)
	return l.file.Close()
}

// HolderOf returns the Holder that is written in a folder. A process that was killed may have
// left it; only LockFolder knows whether the folder is in use.
func HolderOf(dir string) (h Holder, ok bool) {
	b, err := os.ReadFile(filepath.Join(dir, holderFile))
	return h, err == nil && json.Unmarshal(b, &h) == nil && h.PID > 0
}

// Locked reports whether an error says that a folder is in use.
func Locked(err error) bool {
	e, ok := errors.AsType[*notify.Error](err)
	return ok && (e.Code == "data_dir_locked" || e.Code == "store_locked")
}

// MakeDataDir makes a folder, and returns notify.KindUnavailable with code "data_dir" if it
// cannot be written to. It restricts the folder to its owner, also if it existed before: the
// folder holds addresses, contents and signing secrets.
func MakeDataDir(dir string) error {
	err := atomicfile.MkdirAll(dir) // durable: without its name, everything in the folder would be lost
	if err == nil {
		// A volume may belong to another user, as with fsGroup of Kubernetes. The folders that
		// are made in it have mode 0700 even so.
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
		return nil // a full disk is not read-only: stored notifications can still be delivered
	}
	if err != nil {
		return BadDataDir(dir, err)
	}
	return nil
}

// BadDataDir returns the error for a folder that cannot be written to.
func BadDataDir(dir string, err error) error {
	return &notify.Error{Kind: notify.KindUnavailable, Code: "data_dir", Msg: "cannot write to the data folder " + dir, Err: err}
}

// DataFolder returns the folder in which a process without data_dir keeps its data.
func DataFolder(getenv func(string) string, name string) string {
	base := getenv("XDG_DATA_HOME")
	if base == "" {
		base = filepath.Join(getenv("HOME"), ".local", "share")
	}
	return filepath.Join(base, "notifyd", name)
}

// command returns the program and its subcommand, as the user started this process.
func command() string {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		return filepath.Base(os.Args[0]) + " " + os.Args[1]
	}
	return filepath.Base(os.Args[0])
}

// Self returns the Holder that describes this process.
func Self() Holder { return Holder{PID: os.Getpid(), Command: command(), Since: time.Now()} }
