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

// stagingName is the folder in which a backup is gathered.
const stagingName = "backup.staging"

// Backup gathers a backup of everything the process keeps, while it works, and
// returns what writes it. That must be closed. One is made at a time
// (notify.KindConflict "backup_running").
//
// The order makes the copies fit, as they stand for moments that follow each
// other: first what the groups have committed and the history has sealed, then
// the store, then the records of the log. So every record below a commit has
// its outcome in the store, every timer that left the store is a record of the
// log, and no record is trimmed that the older history lacks. What happened
// between the moments is in the backup twice, a timer and the record it became:
// after a restore the claim of the first keeps the second from being sent, as
// after a crash between the two.
func (n *Node) Backup(context.Context) (_ *Snapshot, err error) {
	if n.own == nil {
		return nil, &notify.Error{Kind: notify.KindUnavailable, Code: "backup_of_servers", Msg: "the engines are servers: take snapshots of Cassandra and PostgreSQL with their own tools; notifyd restore-servers prepares restored ones"}
	}
	if !n.backingUp.TryLock() {
		return nil, &notify.Error{Kind: notify.KindConflict, Code: "backup_running", Msg: "a backup is being made; one at a time"}
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
	defer n.own.broker.HoldTrim()()
	for k, gather := range []func() error{
		func() error { return n.own.broker.CopyState(filepath.Join(dir, "log")) },
		func() error { return n.own.history.Snapshot(filepath.Join(dir, "history")) },
		func() error { return n.own.store.Checkpoint(filepath.Join(dir, "store")) },
		func() error { return n.own.broker.CopyRecords(filepath.Join(dir, "log")) },
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

// Snapshot is a backup that was gathered and is not written yet.
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

// Close removes what was gathered.
func (s *Snapshot) Close() error {
	defer s.n.backingUp.Unlock()
	if err := os.RemoveAll(s.dir); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	return nil
}
