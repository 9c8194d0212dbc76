package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
)

// bundle is what debug bundle made.
type bundle struct {
	File     string         `json:"file"`
	Parts    []bundlePart   `json:"parts"`
	Redacted map[string]int `json:"redacted"` // how often, by kind
}

// bundlePart is a file of a bundle, or one that is missing from it.
type bundlePart struct {
	Name    string `json:"name"`
	Bytes   int    `json:"bytes"`
	Missing string `json:"missing,omitempty"` // why

	data []byte
}

func newDebug(p *program) *cobra.Command {
	c := &cobra.Command{Use: "debug", Short: "Gather what a report of a bug needs"}
	var file string
	b := &cobra.Command{
		Use: "bundle", Short: "Write a redacted archive of the server's state (scope operate)", Args: cobra.NoArgs,
		Long: `bundle asks the server for its build, its configuration with origins, the last lines
of its log, metrics, offsets, profiles of goroutines and heap, and for what doctor, lag
and circuit ls say, and writes it all to one archive. Tokens, keys, secrets, phone
numbers, mail addresses and device tokens are masked; what was masked is counted. Look
into the archive before you hand it on: user ids and callers' names stay.

What the server does not answer is left out and named: exit 3.`,
		Example: "  notifyctl debug bundle\n  notifyctl debug bundle --file /tmp/bug.tar.gz",
		RunE:    func(c *cobra.Command, _ []string) error { return runBundle(c.Context(), p, file) },
	}
	b.Flags().StringVarP(&file, "file", "f", "", "where to write it; default: notifyd-debug-<time>.tar.gz here")
	c.AddCommand(b)
	return c
}

func runBundle(ctx context.Context, p *program, file string) error {
	t, err := p.target()
	if err != nil {
		return err
	}
	if file == "" {
		file = "notifyd-debug-" + p.now().UTC().Format("20060102T150405Z") + ".tar.gz"
	}
	out := bundle{File: file, Redacted: map[string]int{}}
	out.gather(ctx, p, &t)
	if ctx.Err() != nil {
		return context.Canceled
	}
	out.describe(p.now())
	if err := out.write(p.now()); err != nil {
		return err
	}
	if err := p.printer().Print(out, out.table()); err != nil {
		return err
	}
	for _, kind := range slices.Sorted(maps.Keys(out.Redacted)) {
		p.note("masked: %s %s", count(out.Redacted[kind]), kind)
	}
	missing := 0
	for _, part := range out.Parts {
		if part.Missing != "" {
			missing++
		}
	}
	if missing > 0 {
		return term.Exitf(term.ExitPartial, "%s is written, but %d parts are missing from it", file, missing)
	}
	return nil
}

// gather asks for every part; one that fails is named and left out.
func (b *bundle) gather(ctx context.Context, p *program, t *target) {
	cl := p.clientOf(t)
	cl.Retries = 0 // what does not answer now is a finding
	build := map[string]any{"notifyctl": version, "server": t.server, "context": t.name}
	if s := askServerBuild(ctx, p); s != nil {
		build["server_version"], build["skew"] = s.Version, s.Skew
	}
	b.json("version.json", build, nil)
	findings, err := cl.Doctor(ctx)
	b.json("doctor.json", findings, err)
	lags, err := cl.Lag(ctx)
	b.json("lag.json", lags, err)
	circuits, err := cl.Circuits(ctx)
	b.json("circuits.json", circuits, err)
	d, err := cl.Debug(ctx)
	if err != nil {
		b.json("server", nil, err)
		return
	}
	b.server(&d)
}

func (b *bundle) server(d *api.Debug) {
	for _, name := range slices.Sorted(maps.Keys(d.Texts)) {
		b.text("server/"+filepath.Base(name), d.Texts[name])
	}
	for _, name := range slices.Sorted(maps.Keys(d.Binaries)) {
		// Profiles hold names of functions and numbers, nothing of the heap itself.
		b.add("server/"+filepath.Base(name), d.Binaries[name])
	}
}

func (b *bundle) json(name string, v any, err error) {
	if err != nil {
		masked, n := term.Redact(err.Error())
		b.counted(n)
		b.Parts = append(b.Parts, bundlePart{Name: name, Missing: masked})
		return
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false) // or what is masked would be spelt differently
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		b.Parts = append(b.Parts, bundlePart{Name: name, Missing: err.Error()})
		return
	}
	b.text(name, text.String())
}

func (b *bundle) text(name, text string) {
	masked, n := term.RedactTold(text)
	b.counted(n)
	b.add(name, []byte(masked))
}

func (b *bundle) counted(n map[string]int) {
	for kind, times := range n {
		b.Redacted[kind] += times
	}
}

func (b *bundle) add(name string, data []byte) {
	b.Parts = append(b.Parts, bundlePart{Name: name, Bytes: len(data), data: data})
}

// describe adds the page that says what the bundle is.
func (b *bundle) describe(now time.Time) {
	var s strings.Builder
	fmt.Fprintf(&s, "Debug bundle of notifyd, made %s by notifyctl %s.\n\nHolds:\n", now.UTC().Format(time.RFC3339), version)
	for _, p := range b.Parts {
		if p.Missing != "" {
			fmt.Fprintf(&s, "  %-28s missing: %s\n", p.Name, p.Missing)
			continue
		}
		fmt.Fprintf(&s, "  %-28s %d bytes\n", p.Name, p.Bytes)
	}
	s.WriteString("\nMasked:\n")
	for _, kind := range slices.Sorted(maps.Keys(b.Redacted)) {
		fmt.Fprintf(&s, "  %-28s %d times\n", kind, b.Redacted[kind])
	}
	s.WriteString("\nUser ids, callers' names, ids of notifications and host names are not masked.\n")
	b.add("README.txt", []byte(s.String()))
}

// write makes the archive in one folder, for its owner's eyes, and never
// replaces a file: a half written one is removed.
func (b *bundle) write(now time.Time) (err error) {
	f, err := os.OpenFile(b.File, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return term.Usage("--file: %v", err)
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			_ = os.Remove(b.File)
		}
	}()
	zip := gzip.NewWriter(f)
	out := tar.NewWriter(zip)
	folder := strings.TrimSuffix(filepath.Base(b.File), ".tar.gz")
	for _, p := range b.Parts {
		if p.Missing != "" {
			continue
		}
		if err := out.WriteHeader(&tar.Header{Name: folder + "/" + p.Name, Mode: 0o600, Size: int64(len(p.data)), ModTime: now, Format: tar.FormatPAX}); err != nil {
			return err
		}
		if _, err := out.Write(p.data); err != nil {
			return err
		}
	}
	return errors.Join(out.Close(), zip.Close())
}

func (b *bundle) table() term.Table {
	t := term.Table{{"PART", "BYTES", "MISSING"}}
	for _, p := range b.Parts {
		t = append(t, []string{p.Name, count(p.Bytes), p.Missing})
	}
	return append(t, []string{b.File, "", ""})
}
