package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/atomicfile"
	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/archive"
	"github.com/notifyd/notifyd/pkg/backup"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

func newBackup(p *program) *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "backup [FILE|-]", Short: "Save everything the server keeps, without stopping it (scope operate)", Args: cobra.MaximumNArgs(1),
		Long: `backup saves the store, the log and the history of a server with embedded engines
in one file, without stopping it. The file holds everything that was accepted before
the command began. "notifyd restore" makes a data folder from the file.

The file holds addresses of users and secrets of callers: protect it as you protect
them. Without FILE the name is notifyd-TIME.backup; - is standard output.`,
		Example: `  notifyctl backup
  notifyctl backup nightly.backup --force
  notifyd restore nightly.backup --data-dir /srv/notifyd-restored`,
		RunE: func(c *cobra.Command, args []string) error {
			name := "notifyd-" + time.Now().UTC().Format("20060102T150405Z") + ".backup"
			if len(args) > 0 {
				name = args[0]
			}
			if name == "-" {
				return backupTo(c.Context(), p, p.out)
			}
			return runBackup(c.Context(), p, name, force)
		},
	}
	c.Flags().BoolVar(&force, "force", false, "replace an existing FILE; the old one stays until the new one is complete")
	return c
}

// backupTo writes a backup to w and shows a progress bar.
func backupTo(ctx context.Context, p *program, w io.Writer) error {
	cl, err := p.client()
	if err != nil {
		return err
	}
	cl.HTTPClient.Timeout = 0 // the time depends on the amount of data
	bar := p.startProgress("bytes", 0)
	defer bar.end()
	_, err = cl.Backup(ctx, &progressWriter{w, bar})
	return err
}

// progressWriter is a writer that adds the written bytes to a progress bar.
type progressWriter struct {
	w   io.Writer
	bar *progress
}

func (c *progressWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.bar.add(n)
	return n, err
}

// runBackup writes a temporary file, verifies it, and then gives it the requested name. If the
// backup fails, an existing file with this name is not changed.
func runBackup(ctx context.Context, p *program, name string, force bool) error {
	if _, err := os.Stat(name); err == nil && !force {
		return term.Usage("%s already exists; --force replaces it", name)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cannotWrite(name, err)
	}
	began := time.Now()
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".part-*")
	if err != nil {
		return cannotWrite(name, err)
	}
	defer os.Remove(f.Name()) // after the rename this fails, because there is no such file any more
	defer f.Close()
	if err := backupTo(ctx, p, f); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return cannotWrite(name, err)
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return cannotWrite(name, err)
	}
	m, err := backup.Verify(ctx, f)
	if err != nil {
		return err
	}
	if err := atomicfile.Rename(f.Name(), name); err != nil {
		return cannotWrite(name, err)
	}
	return p.printer().Record(map[string]any{
		"file": name, "bytes": size, "unpacked_bytes": m.Bytes, "files": len(m.Files), "created_at": m.Created,
		"store_id": m.StoreID, "version": m.Version, "verified": true, "took_seconds": time.Since(began).Seconds(),
	}, term.Table{
		{"file", name},
		{"size", fmt.Sprintf("%s bytes, %s unpacked in %s files", count(size), count(m.Bytes), count(len(m.Files)))},
		{"holds", "what was accepted before " + m.Created.Format(time.RFC3339)},
		{"store", m.StoreID + ", notifyd " + m.Version},
		{"verified", "the checksum of every file is right"},
		{"took", time.Since(began).Round(10 * time.Millisecond).String()},
		{"restore", restoreLine(name, m)},
	})
}

// restoreLine returns the command that restores the backup. A backup of "notifyd dev" is restored
// into the subfolder data of DIR, because "notifyd dev" uses this subfolder.
func restoreLine(name string, m backup.Manifest) string {
	if strings.HasPrefix(name, "-") {
		name = "./" + name
	}
	line := "notifyd restore " + term.Quote(name) + " --data-dir DIR"
	if m.Dev {
		return line + "/data && notifyd dev --data-dir DIR"
	}
	return line
}

func cannotWrite(name string, err error) error {
	return &notify.Error{Kind: notify.KindUnavailable, Code: "file", Msg: "cannot write " + name, Err: err}
}

func newArchive(p *program) *cobra.Command {
	c := &cobra.Command{
		Use: "archive", Short: "Read and verify an archive of dead letters and outcomes",
		Long: `archive reads the folder that a server writes as archive.dir, or a copy of that folder.
notifyctl doctor says how far the server's archive is.`,
		Example: `  notifyctl archive ls /srv/archive
  notifyctl archive verify /srv/archive
  zstd -dc /srv/archive/dead-letters/2026-11-22/04-00000017.ndjson.zst | jq .code`,
	}
	c.AddCommand(
		&cobra.Command{
			Use: "ls DIR", Short: "List the files of an archive, oldest first", Args: term.Exact("a folder"), Aliases: []string{"list"},
			RunE: func(_ *cobra.Command, args []string) error { return runArchiveList(p, args[0]) },
		},
		&cobra.Command{
			Use: "verify DIR", Short: "Read every file of an archive and compare it with its manifest", Args: term.Exact("a folder"),
			Long: `verify compares the size, the checksum and the number of lines of each file with its
manifest. It exits 9 if a file differs or is missing.`,
			RunE: func(_ *cobra.Command, args []string) error { return runArchiveVerify(p, args[0]) },
		},
	)
	return c
}

func runArchiveList(p *program, dir string) error {
	ms, err := archive.List(dir)
	if err != nil {
		return err
	}
	return printList(p, api.List[archive.Manifest]{Items: ms}, ms, &columns[archive.Manifest]{head: "FILE  LINES  BYTES  WRITTEN", row: func(m *archive.Manifest) []string {
		return []string{m.File, count(m.Lines), strconv.FormatInt(m.Bytes, 10), p.timeText(m.Written)}
	}})
}

func runArchiveVerify(p *program, dir string) error {
	ms, err := archive.List(dir)
	if err != nil {
		return err
	}
	type verdict struct {
		File  string `json:"file"`
		Lines int    `json:"lines"`
		Error string `json:"error,omitempty"`
	}
	if len(ms) == 0 {
		p.note("none: there is no manifest in %s", dir)
	}
	vs, bad := make([]verdict, 0, len(ms)), 0
	for i := range ms {
		v := verdict{File: ms[i].File, Lines: ms[i].Lines}
		if err := archive.Verify(dir, &ms[i]); err != nil {
			v.Error = err.Error()
			bad++
		}
		vs = append(vs, v)
	}
	if err := printList(p, api.List[verdict]{Items: vs}, vs, &columns[verdict]{head: "FILE  LINES  VERDICT", row: func(v *verdict) []string {
		return []string{v.File, count(v.Lines), cmp.Or(v.Error, "ok")}
	}}); err != nil {
		return err
	}
	if bad > 0 {
		return term.Exitf(term.ExitFindings, "%d of %d files differ from their manifests", bad, len(vs))
	}
	return nil
}
