package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/term"
)

// build says what this program, and the server it would talk to, were made from.
type build struct {
	Version  string       `json:"version"`
	Go       string       `json:"go"`
	Platform string       `json:"platform"`
	Revision string       `json:"revision,omitempty"`
	Server   *serverBuild `json:"server,omitempty"`
}

type serverBuild struct {
	URL     string `json:"url"`
	Version string `json:"version,omitempty"` // empty: it did not say
	Skew    bool   `json:"skew"`              // another version than this program's

	date time.Time // of the answer, to the second; zero: it did not say
}

func newVersion(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version, and the server's where one answers", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			b := build{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			if info, ok := debug.ReadBuildInfo(); ok {
				for _, s := range info.Settings {
					if s.Key == "vcs.revision" {
						b.Revision = s.Value
					}
				}
			}
			b.Server = p.serverBuild(c.Context())
			if b.Server != nil && b.Server.Skew {
				p.note("warning: the server is of version %s, this is %s", b.Server.Version, b.Version)
			}
			t := term.Table{{"notifyctl", b.Version}, {"go", b.Go}, {"platform", b.Platform}, {"revision", b.Revision}}
			if b.Server != nil {
				t = append(t, []string{"server", first(b.Server.Version, "does not tell its version") + "  (" + b.Server.URL + ")"})
			}
			return p.printer().Record(b, t)
		},
	}
}

// serverBuild asks the server, briefly; nil when there is none that answers.
func (p *program) serverBuild(ctx context.Context) *serverBuild {
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
	date, _ := http.ParseTime(resp.Header.Get("Date")) // a proxy may leave it out
	return &serverBuild{URL: t.server, Version: health.Version, Skew: health.Version != "" && health.Version != version, date: date}
}
