package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/term"
	"github.com/notifyd/notifyd/pkg/tool/codes"
)

func newExplain(p *program) *cobra.Command {
	var kind string
	c := &cobra.Command{
		Use: "explain [CODE]", Short: "Explain a code: of an error, state, class, verdict or exit",
		Long: `explain says what a code means, what to do, whether a retry helps, and where the code
is printed. It knows the codes of errors ("code" of an answer), of failed notifications
and callbacks, states, classes, verdicts of load runs, and exit codes. Without a code it
lists all of them, on a terminal with $PAGER (default: less). It needs no server.`,
		Example: "  notifyctl explain idempotency_running\n  notifyctl explain 7\n  notifyctl explain --kind state",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if kind != "" && !slices.Contains(codes.Kinds, kind) {
				return term.Usage("--kind %q does not exist; the kinds are %s%s", kind, strings.Join(codes.Kinds, ", "), nearest(kind, codes.Kinds))
			}
			if len(args) == 0 {
				return runExplainAll(c.Context(), p, kind)
			}
			return runExplain(p, args[0], kind)
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var names []string
			for _, e := range codes.All() {
				if len(args) == 0 {
					names = append(names, e.Code)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
	c.Flags().StringVar(&kind, "kind", "", "only one kind: "+strings.Join(codes.Kinds, ", "))
	completeFlag(c, "kind", codes.Kinds)
	return c
}

func runExplainAll(ctx context.Context, p *program, kind string) error {
	var list []codes.Entry
	for _, e := range codes.All() {
		if kind == "" || e.Kind == kind {
			list = append(list, e)
		}
	}
	return p.runPaged(ctx, func() error {
		cols := columns[codes.Entry]{head: "CODE  KIND  RETRY  MEANING", row: func(e *codes.Entry) []string { return []string{e.Code, e.Kind, e.Retry, e.Meaning} }}
		return p.printer().Print(list, cols.table(list))
	})
}

func runExplain(p *program, code, kind string) error {
	var found []codes.Entry
	for _, e := range codes.Find(code) {
		if kind == "" || e.Kind == kind {
			found = append(found, e)
		}
	}
	if len(found) == 0 {
		msg := fmt.Sprintf("there is no code %q", code)
		if near := codes.Similar(code, term.Distance); len(near) > 0 {
			msg += "; did you mean " + strings.Join(near, " or ") + "?"
		}
		return &term.Error{Exit: term.ExitNotFound, Err: fmt.Errorf("%s", msg), Next: []string{"notifyctl explain      (lists them)"}}
	}
	if p.global.output != "table" || p.global.jq != "" {
		return p.printer().Print(found, nil)
	}
	for i, e := range found {
		if i > 0 {
			fmt.Fprintln(p.out)
		}
		if err := p.printer().Record(nil, term.Table{
			{"code", code}, {"family", textIf(e.Code != code && strings.Contains(e.Code, "<"), e.Code)}, {"kind", e.Kind},
			{"meaning", e.Meaning}, {"do", e.Do}, {"retry helps", e.RetryWords()}, {"printed in", e.Where},
		}); err != nil {
			return err
		}
	}
	return nil
}

// build is what "notifyctl version" prints: the build of this program and of the chosen server.
type build struct {
	Version  string       `json:"version"`
	Go       string       `json:"go"`
	Platform string       `json:"platform"`
	Revision string       `json:"revision,omitempty"`
	Server   *serverBuild `json:"server,omitempty"`
}

type serverBuild struct {
	URL     string `json:"url"`
	Version string `json:"version,omitempty"` // empty: the answer contained no version
	Skew    bool   `json:"skew"`              // the server has another version than this program

	date time.Time // Date header of the answer, to the second; zero: the answer had no such header
}

func newVersion(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version, and the server's version if it answers", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			b := build{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			if info, ok := debug.ReadBuildInfo(); ok {
				for _, s := range info.Settings {
					if s.Key == "vcs.revision" {
						b.Revision = s.Value
					}
				}
			}
			b.Server = askServerBuild(c.Context(), p)
			if b.Server != nil && b.Server.Skew {
				p.note("warning: the server has version %s, notifyctl has %s", b.Server.Version, b.Version)
			}
			t := term.Table{{"notifyctl", b.Version}, {"go", b.Go}, {"platform", b.Platform}, {"revision", b.Revision}}
			if b.Server != nil {
				t = append(t, []string{"server", cmp.Or(b.Server.Version, "of unknown version") + "  (" + b.Server.URL + ")"})
			}
			return p.printer().Record(b, t)
		},
	}
}

// askServerBuild requests the server's version. It waits at most 2 s. It returns nil if no server
// answers.
func askServerBuild(ctx context.Context, p *program) *serverBuild {
	t, err := p.target()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, min(p.global.timeout, 2*time.Second))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(t.server, "/")+"/healthz", http.NoBody)
	if err != nil {
		return nil
	}
	tr := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	var health struct {
		Version string `json:"version"`
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil || json.Unmarshal(body, &health) != nil {
		return nil
	}
	date, _ := http.ParseTime(resp.Header.Get("Date")) // a proxy may remove the header
	return &serverBuild{URL: t.server, Version: health.Version, Skew: health.Version != "" && health.Version != version, date: date}
}
