package main

import (
	"strconv"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/archive"
	"github.com/notifyd/notifyd/pkg/term"
)

// archivePage is what archive ls prints.
type archivePage struct {
	Items []archive.Manifest `json:"items"`
}

func newArchive(p *program) *cobra.Command {
	c := &cobra.Command{
		Use: "archive", Short: "Look into an archive of dead letters and outcomes",
		Long: `archive reads a folder that a server writes to as archive.dir, or a copy of it. How far
the server's archive is, its doctor says: notifyctl doctor.`,
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
manifest. Exit 9 when one differs or is not there.`,
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
	return printPage(p, archivePage{ms}, ms, func() term.Table {
		t := term.Table{{"FILE", "LINES", "BYTES", "WRITTEN"}}
		for i := range ms {
			t = append(t, []string{ms[i].File, count(ms[i].Lines), strconv.FormatInt(ms[i].Bytes, 10), p.when(ms[i].Written)})
		}
		return t
	})
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
	page := struct {
		Items []verdict `json:"items"`
	}{vs}
	if err := printPage(p, page, vs, func() term.Table {
		t := term.Table{{"FILE", "LINES", "VERDICT"}}
		for _, v := range vs {
			if v.Error == "" {
				v.Error = "ok"
			}
			t = append(t, []string{v.File, count(v.Lines), v.Error})
		}
		return t
	}); err != nil {
		return err
	}
	if bad > 0 {
		return term.Exitf(term.ExitFindings, "%d of %d files differ from their manifests", bad, len(vs))
	}
	return nil
}
