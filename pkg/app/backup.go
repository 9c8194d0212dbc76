package app

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/notifyd/notifyd/pkg/backup"
	"github.com/notifyd/notifyd/pkg/notify"
)

// stagingName is the folder, inside the data folder, in which Backup collects the files of a backup.
const stagingName = "backup.staging"

// Backup copies all data of the process while the process works, and returns a Snapshot that writes
// the copy. The caller must close the Snapshot. If another backup is being made, Backup returns
// notify.KindConflict ("backup_running").
//
// Backup copies one part after the other, in an order that makes the copy consistent: first the
// committed offsets of the groups and the sealed history, then the store, then the records of the
// log. So every record below a committed offset has its outcome in the copied store. Every timer
// that has left the store is a record of the copied log. A record that was already trimmed is in
// the copied history. Work that moved from the store to the log during the backup may be in the
// copy twice: as a timer, and as the record that the timer became. After a restore it is still sent
// only once, because whichever of the two is processed first writes a claim.
func (n *Node) Backup(context.Context) (_ *Snapshot, err error) {
	if n.embedded == nil {
		return nil, &notify.Error{Kind: notify.KindUnavailable, Code: "backup_of_servers", Msg: "the engines are servers: take snapshots of Cassandra and PostgreSQL with their own tools; after a restore, notifyd restore-servers prepares them for the first start"}
	}
	if !n.backingUp.TryLock() {
		return nil, &notify.Error{Kind: notify.KindConflict, Code: "backup_running", Msg: "another backup is being made; try again when it has ended"}
	}
	dir := filepath.Join(n.cfg.DataDir, stagingName)
	s := &Snapshot{n: n, dir: dir, manifest: backup.Manifest{
		Created: time.Now().UTC().Truncate(time.Millisecond), Version: n.cfg.Version, StoreID: n.st.id, Key: n.sealed.Keys().ID(), Dev: n.cfg.Dev,
	}}
	defer func() {
		if err != nil {
			s.Close()
			err = notify.Unavailable("backup", 0, err)
		}
	}()
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	defer n.embedded.broker.HoldTrim()()
	for k, gather := range []func() error{
		func() error { return n.embedded.broker.CopyState(filepath.Join(dir, "log")) },
		func() error { return n.embedded.history.Snapshot(filepath.Join(dir, "history")) },
		func() error { return n.embedded.store.Checkpoint(filepath.Join(dir, "store")) },
		func() error { return n.embedded.broker.CopyRecords(filepath.Join(dir, "log")) },
	} {
		if k > 0 && n.seams.gathered != nil {
			n.seams.gathered()
		}
		if err := gather(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Snapshot is a backup that is ready to be written. Until the Snapshot is closed, no other backup can
// be made.
type Snapshot struct {
	n        *Node
	dir      string
	manifest backup.Manifest
}

// Write writes the backup to w.
func (s *Snapshot) Write(ctx context.Context, w io.Writer) error {
	m, err := backup.Write(ctx, w, s.dir, s.manifest)
	if err != nil {
		return err
	}
	s.n.log.Info("backup written", "files", len(m.Files), "bytes", m.Bytes)
	return nil
}

// Close removes the copied files.
func (s *Snapshot) Close() error {
	defer s.n.backingUp.Unlock()
	if err := os.RemoveAll(s.dir); err != nil {
		return fmt.Errorf("the folder of the backup cannot be removed: %w", err)
	}
	return nil
}
