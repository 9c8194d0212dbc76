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

// Holder describes the process that uses a data folder. The process itself writes it.
type Holder struct {
	PID     int       `json:"pid"`
	Command string    `json:"command"` // such as "notifyd dev"
	Since   time.Time `json:"since"`
	API     string    `json:"api,omitempty"`   // URL of the API; empty: not known yet
	Inbox   string    `json:"inbox,omitempty"` // URL of the inbox of the simulated providers
}

func (h Holder) String() string {
	s := fmt.Sprintf("%s, pid %d, since %s", h.Command, h.PID, h.Since.Local().Format("2006-01-02 15:04:05 MST"))
	if h.API != "" {
		s += ", " + h.API
	}
	return s
}

// Lock reserves a folder for one process. The operating system removes the lock when the process
// ends, even if it is killed.
type Lock struct {
	file       io.Closer
	holderPath string // path of the file that contains the Holder
}

const (
	lockFile   = "lock"
	holderFile = "holder.json"
)

// LockFolder locks an existing folder for this process, and writes h into the folder. If another
// process has the lock, it returns notify.KindUnavailable with the error code "data_dir_locked". The
// error names the holder.
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
	_ = os.Remove(l.holderPath) // a killed process may have left this file
	l.Tell(h)
	return l, nil
}

// Tell replaces the Holder in the folder. It ignores errors, because the lock does not depend on the
// Holder.
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

// Close removes the Holder and releases the lock.
func (l *Lock) Close() error {
	_ = os.Remove(l.holderPath)
	return l.file.Close()
}

// HolderOf returns the Holder that is written in a folder. A killed process may have left it, so the
// folder may be free. Only LockFolder can find out whether the folder is in use.
func HolderOf(dir string) (h Holder, ok bool) {
	b, err := os.ReadFile(filepath.Join(dir, holderFile))
	return h, err == nil && json.Unmarshal(b, &h) == nil && h.PID > 0
}

// Locked reports whether err means that a folder is in use.
func Locked(err error) bool {
	e, ok := errors.AsType[*notify.Error](err)
	return ok && (e.Code == "data_dir_locked" || e.Code == "store_locked")
}

// MakeDataDir makes a folder that only its owner can access. It changes the mode of an existing
// folder too, because the folder contains addresses, contents and signing secrets. If the folder
// cannot be written to, it returns notify.KindUnavailable with the error code "data_dir".
func MakeDataDir(dir string) error {
	err := atomicfile.MkdirAll(dir) // durable, because without the folder's name everything in the folder would be lost
	if err == nil {
		// Continue if the mode cannot be changed: a volume may belong to another user, for example with
		// fsGroup of Kubernetes. The folders that are made inside have mode 0700 anyway.
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
		return nil // a full disk is no reason to stop: stored notifications can still be delivered
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

// DataFolder returns the default data folder of a process. The parameter name is the last element
// of its path.
func DataFolder(getenv func(string) string, name string) string {
	base := getenv("XDG_DATA_HOME")
	if base == "" {
		base = filepath.Join(getenv("HOME"), ".local", "share")
	}
	return filepath.Join(base, "notifyd", name)
}

// command returns the program and its subcommand, as the user typed them.
func command() string {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		return filepath.Base(os.Args[0]) + " " + os.Args[1]
	}
	return filepath.Base(os.Args[0])
}

// Self returns the Holder that describes this process.
func Self() Holder { return Holder{PID: os.Getpid(), Command: command(), Since: time.Now()} }
