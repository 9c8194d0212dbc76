package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/dashboards"
	"github.com/notifyd/notifyd/docs"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
	"github.com/notifyd/notifyd/pkg/tool/promcheck"
)

func newDashboards(p *program) *cobra.Command {
	c := &cobra.Command{
		Use: "dashboards", Short: "Export and check Grafana dashboards, Prometheus rules and runbooks",
		Long: `dashboards exports and checks the files for monitoring notifyd: Grafana dashboards,
Prometheus rules, and a runbook for each alert. notifyctl contains all of them.`,
		Example: `  notifyctl dashboards export ./monitoring
  notifyctl dashboards check ./monitoring/grafana/service.json --url http://127.0.0.1:7421/metrics`,
	}
	c.AddCommand(newDashboardsList(p), newDashboardsExport(p), newDashboardsCheck(p))
	return c
}

// embeddedFile is a file that is embedded in the program.
type embeddedFile struct {
	File  string `json:"file"`
	Bytes int64  `json:"bytes"`
}

func embeddedFiles() (out []embeddedFile, err error) {
	err = fs.WalkDir(dashboards.Files(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			out = append(out, embeddedFile{name, info.Size()})
		}
		return err
	})
	return out, err
}

func newDashboardsList(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the files", Args: cobra.NoArgs, Aliases: []string{"list"},
		RunE: func(*cobra.Command, []string) error {
			files, err := embeddedFiles()
			if err != nil {
				return err
			}
			cols := columns[embeddedFile]{head: "FILE  BYTES", row: func(f *embeddedFile) []string { return []string{f.File, count(f.Bytes)} }}
			return p.printer().Print(files, cols.table(files))
		},
	}
}

func newDashboardsExport(p *program) *cobra.Command {
	runbooks, force := dashboards.Runbooks, false
	c := &cobra.Command{
		Use: "export DIR", Short: "Write the files to a folder", Args: term.Exact("a folder"),
		Long: `export writes grafana/, rules/ and runbooks/ into a folder, and creates the folder if
necessary. If a file exists with other contents, export writes nothing, unless --force
is given.`,
		RunE: func(_ *cobra.Command, args []string) error { return exportDashboards(p, args[0], runbooks, force) },
	}
	c.Flags().StringVar(&runbooks, "runbooks", runbooks, "URL of the folder with the runbooks that alerts link to")
	c.Flags().BoolVar(&force, "force", false, "replace files that differ")
	return c
}

func exportDashboards(p *program, dir, runbooks string, force bool) error {
	if runbooks == "" {
		return term.Usage("--runbooks must not be empty: every alert links to its runbook")
	}
	files, err := embeddedFiles()
	if err != nil {
		return err
	}
	content := map[string][]byte{}
	for _, f := range files {
		b, err := fs.ReadFile(dashboards.Files(), f.File)
		if err != nil {
			return err
		}
		b = bytes.ReplaceAll(b, []byte(dashboards.Runbooks), []byte(strings.TrimSuffix(runbooks, "/")+"/"))
		content[f.File] = b
		there, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(f.File)))
		switch {
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return err
		case err == nil && !force && !bytes.Equal(there, b):
			return &term.Error{
				Exit: term.ExitConflict, Err: fmt.Errorf("%s exists with other contents; nothing was written", filepath.Join(dir, f.File)),
				Next: []string{"notifyctl dashboards export " + term.Quote(dir) + " --force"},
			}
		}
	}
	for i, f := range files {
		to := filepath.Join(dir, filepath.FromSlash(f.File))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil { //nolint:gosec // Grafana and Prometheus must be able to read it
			return err
		}
		if err := os.WriteFile(to, content[f.File], 0o644); err != nil { //nolint:gosec // Grafana and Prometheus must be able to read it
			return err
		}
		files[i].Bytes = int64(len(content[f.File]))
	}
	return p.printer().Line(files, func() string { return fmt.Sprintf("%d files written to %s", len(files), dir) })
}

func newDashboardsCheck(p *program) *cobra.Command {
	var from string
	c := &cobra.Command{
		Use: "check [FILE|DIR...]", Short: "Check that dashboards and rules use metrics that exist",
		Long: `check parses every query of dashboards (.json) and rules (.yml), and checks that each
metric, label and bucket exists in this release. It checks every such file below a
folder, and without arguments the files that notifyctl contains.

With --url, check uses the metrics of a running server of any release instead. A metric
with labels appears there only with its first value, so a metric that is missing there
but exists in this release is only noted.

Give a file that uses a recorded metric together with the rules that record it.
check exits 9 if something is wrong.`,
		Args: cobra.ArbitraryArgs,
		Example: `  notifyctl dashboards check
  notifyctl dashboards check ./monitoring
  notifyctl dashboards check my.json rules/*.yml
  notifyctl dashboards check --url http://127.0.0.1:7421/metrics`,
		RunE: func(c *cobra.Command, args []string) error { return checkDashboards(c.Context(), p, args, from) },
	}
	c.Flags().StringVar(&from, "url", "", "URL of the metrics of a running server, on its admin listener")
	return c
}

func checkDashboards(ctx context.Context, p *program, names []string, from string) error {
	files, err := filesToCheck(names)
	if err != nil {
		return err
	}
	o, err := knownMetrics(ctx, p, from)
	if err != nil {
		return err
	}
	res := promcheck.Check(files, o)
	cols := columns[promcheck.Problem]{head: "FILE  WHERE  PROBLEM", row: func(pr *promcheck.Problem) []string { return []string{pr.File, pr.Where, pr.What} }}
	t := cols.table(res.Problems)
	if len(t) == 1 {
		t = term.Table{{fmt.Sprintf("%d files, %d queries: nothing is wrong", len(files), res.Queries)}}
	}
	if err := p.printer().Print(res, t); err != nil {
		return err
	}
	for _, name := range res.Silent {
		p.note("%s has no value on that server yet", name)
	}
	if n := len(res.Problems); n > 0 {
		return term.Exitf(term.ExitFindings, "%d problems in %d files", n, len(files))
	}
	return nil
}

// expandFolders replaces each folder by the dashboards and rules files in it and in its subfolders.
func expandFolders(names []string) (out []string, err error) {
	for _, name := range names {
		if info, err := os.Stat(name); err != nil || !info.IsDir() {
			out = append(out, name) // a missing file is reported when it is read
			continue
		}
		was := len(out)
		err := filepath.WalkDir(name, func(file string, d fs.DirEntry, err error) error {
			if ext := filepath.Ext(file); err == nil && !d.IsDir() && (ext == ".json" || ext == ".yml" || ext == ".yaml") {
				out = append(out, file)
			}
			return err
		})
		if err != nil {
			return nil, &term.Error{Exit: term.ExitUsage, Err: err}
		}
		if len(out) == was {
			return nil, term.Usage("%s contains no dashboard (.json) and no rules (.yml)", name)
		}
	}
	return out, nil
}

// filesToCheck reads the files with these names. If there are no names, it returns the embedded
// files.
func filesToCheck(names []string) (files []promcheck.File, err error) {
	names, err = expandFolders(names)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, &term.Error{Exit: term.ExitUsage, Err: err}
		}
		files = append(files, promcheck.File{Name: filepath.ToSlash(name), Data: b})
	}
	if len(names) > 0 {
		return files, nil
	}
	list, err := embeddedFiles()
	for _, f := range list {
		if path.Ext(f.File) == ".md" {
			continue
		}
		b, err := fs.ReadFile(dashboards.Files(), f.File)
		if err != nil {
			return nil, err
		}
		files = append(files, promcheck.File{Name: f.File, Data: b})
	}
	return files, err
}

// knownMetrics returns the metrics of this release. If url is not empty, it returns the metrics
// that the server at this URL serves. It also returns those metrics of this release that have labels
// and that the server does not serve, because a metric with labels appears only after its first use.
func knownMetrics(ctx context.Context, p *program, url string) (o promcheck.Options, err error) {
	table, err := promcheck.ParseTable(docs.Metrics)
	if err != nil {
		return o, err
	}
	client, err := promcheck.Client()
	if err != nil {
		return o, err
	}
	o.Metrics = client.With(table)
	if url == "" {
		return o, nil
	}
	served, err := scrapeMetrics(ctx, p, url)
	if err != nil {
		return o, err
	}
	o.Metrics, o.Served = served, served
	for name := range table {
		m := table[name]
		if _, ok := served[name]; !ok && len(m.Labels) > 0 {
			o.Metrics = o.Metrics.With(promcheck.Catalogue{name: m})
		}
	}
	return o, nil
}

// maxScrape is how many bytes of /metrics are read.
const maxScrape = 64 << 20

func scrapeMetrics(ctx context.Context, p *program, from string) (promcheck.Catalogue, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, http.NoBody)
	if err != nil || req.URL.Host == "" {
		return nil, term.Usage("--url %q is not a URL such as http://127.0.0.1:7421/metrics", from)
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4")
	away := func(err error) error {
		return &notify.Error{Kind: notify.KindUnavailable, Code: "metrics_away", Field: "url", Msg: "cannot read " + from, Err: err}
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Timeout: p.global.timeout, Transport: transport}).Do(req)
	if err != nil {
		return nil, away(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, away(errors.New("the server answered " + resp.Status))
	}
	served, err := promcheck.ParseExposition(io.LimitReader(resp.Body, maxScrape))
	if err != nil {
		return nil, away(fmt.Errorf("the answer is not in the format of metrics: %w", err))
	}
	return served, nil
}
