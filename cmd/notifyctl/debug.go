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

// bundle is the result of "notifyctl debug bundle".
type bundle struct {
	File     string         `json:"file"`
	Parts    []bundlePart   `json:"parts"`
	Redacted map[string]int `json:"redacted"` // by kind: how often a value was masked
}

// bundlePart is a file of a bundle, or a file that could not be read.
type bundlePart struct {
	Name    string `json:"name"`
	Bytes   int    `json:"bytes"`
	Missing string `json:"missing,omitempty"` // why it could not be read

	data []byte
}

func newDebug(p *program) *cobra.Command {
	c := &cobra.Command{Use: "debug", Short: "Collect the data for a bug report"}
	var file string
	b := &cobra.Command{
		Use: "bundle", Short: "Write a redacted archive of the server's state (scope operate)", Args: cobra.NoArgs,
		Long: `bundle writes one archive with the server's build, its configuration and where each
setting comes from, the last lines of its log, metrics, offsets, profiles of goroutines
and heap, and the output of doctor, lag and circuit ls. Tokens, keys, secrets, phone
numbers, mail addresses and device tokens are masked, and bundle prints how many. Read
the archive before you pass it on: user ids and callers' names are not masked.

If the server does not answer a part, bundle leaves it out, names it, and exits 3.`,
		Example: "  notifyctl debug bundle\n  notifyctl debug bundle --file /tmp/bug.tar.gz",
		RunE:    func(c *cobra.Command, _ []string) error { return runBundle(c.Context(), p, file) },
	}
	b.Flags().StringVarP(&file, "file", "f", "", "file to write; default: notifyd-debug-<time>.tar.gz in the current folder")
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

// gather requests every part of the bundle. If a part fails, it is recorded as missing.
func (b *bundle) gather(ctx context.Context, p *program, t *target) {
	cl := p.clientOf(t)
	cl.Retries = 0 // a part that does not answer now is a finding
	build := map[string]any{"notifyctl": version, "server": t.server, "context": t.name}
	if s := askServerBuild(ctx, p); s != nil {
		build["server_version"], build["skew"] = s.Version, s.Skew
	}
	b.addJSON("version.json", build, nil)
	findings, err := cl.Doctor(ctx)
	b.addJSON("doctor.json", findings, err)
	lags, err := cl.Lag(ctx)
	b.addJSON("lag.json", lags, err)
	circuits, err := cl.Circuits(ctx)
	b.addJSON("circuits.json", circuits, err)
	d, err := cl.Debug(ctx)
	if err != nil {
		b.addJSON("server", nil, err)
		return
	}
	b.addServerParts(&d)
}

func (b *bundle) addServerParts(d *api.Debug) {
	for _, name := range slices.Sorted(maps.Keys(d.Texts)) {
		b.addText("server/"+filepath.Base(name), d.Texts[name])
	}
	for _, name := range slices.Sorted(maps.Keys(d.Binaries)) {
		// Profiles contain function names and numbers, but no contents of the heap. So they need no
		// masking.
		b.addPart("server/"+filepath.Base(name), d.Binaries[name])
	}
}

func (b *bundle) addJSON(name string, v any, err error) {
	if err != nil {
		masked, n := term.Redact(err.Error())
		b.addRedacted(n)
		b.Parts = append(b.Parts, bundlePart{Name: name, Missing: masked})
		return
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false) // escapes would hide values from the masking
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		b.Parts = append(b.Parts, bundlePart{Name: name, Missing: err.Error()})
		return
	}
	b.addText(name, text.String())
}

func (b *bundle) addText(name, text string) {
	masked, n := term.RedactText(text)
	b.addRedacted(n)
	b.addPart(name, []byte(masked))
}

func (b *bundle) addRedacted(n map[string]int) {
	for kind, times := range n {
		b.Redacted[kind] += times
	}
}

func (b *bundle) addPart(name string, data []byte) {
	b.Parts = append(b.Parts, bundlePart{Name: name, Bytes: len(data), data: data})
}

// describe adds the README of the bundle.
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
	b.addPart("README.txt", []byte(s.String()))
}

// write writes the archive, in which all files are in one top folder. Only the owner may read the
// archive. write never replaces an existing file. After an error it removes the incomplete archive.
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
