package main

import (
	"strconv"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/archive"
	"github.com/notifyd/notifyd/pkg/term"
)

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
	return printList(p, api.List[archive.Manifest]{Items: ms}, ms, &columns[archive.Manifest]{head: "FILE  LINES  BYTES  WRITTEN", row: func(m *archive.Manifest) []string {
		return []string{m.File, count(m.Lines), strconv.FormatInt(m.Bytes, 10), p.when(m.Written)}
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
		return []string{v.File, count(v.Lines), first(v.Error, "ok")}
	}}); err != nil {
		return err
	}
	if bad > 0 {
		return term.Exitf(term.ExitFindings, "%d of %d files differ from their manifests", bad, len(vs))
	}
	return nil
}
