package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/term"
)

// configFlags are the flags of every command that reads a configuration.
type configFlags struct {
	files []string
	set   []string
}

func (f *configFlags) add(c *cobra.Command) {
	c.Flags().StringArrayVar(&f.files, "config", nil, "configuration file; may be given more than once; a later file overrides an earlier one")
	c.Flags().StringArrayVar(&f.set, "set", nil, "one value, as key=value, e.g. --set api.listen=127.0.0.1:8000")
}

// load builds the configuration. Values in configuration files override the defaults, environment
// variables override files, and flags override everything.
func (f *configFlags) load(p *program, extra map[string]any) (app.Loaded, error) {
	flags := maps.Clone(extra)
	if flags == nil {
		flags = map[string]any{}
	}
	for _, kv := range f.set { // --set overrides the values in extra, which the command sets
		key, value, ok := strings.Cut(kv, "=")
		if !ok {
			return app.Loaded{}, term.Usage("--set %q is not key=value", kv)
		}
		flags[key] = value
	}
	l, err := app.Load(f.files, p.environ, flags)
	if err != nil {
		return l, &term.Error{Exit: term.ExitUsage, Err: err, Next: []string{configNext(err)}}
	}
	l.Config.Version = version
	if l.Config.DataDir == "" {
		l.Config.DataDir = app.DataFolder(p.getenv, "data")
	}
	return l, nil
}

// configNext returns the next step after an error of loading the configuration.
func configNext(err error) string {
	if errors.Is(err, fs.ErrPermission) { // the systemd unit runs notifyd as a separate user
		return "chmod 0644 FILE: the user that runs notifyd must be able to read it"
	}
	return "notifyd config example"
}

func newServe(p *program) *cobra.Command {
	var cf configFlags
	var roles []string
	var data string
	c := &cobra.Command{
		Use: "serve", Short: "Run a server", Args: cobra.NoArgs,
		Long: `serve runs the API, the workers and the scheduler on the embedded engines: a
Kafka-compatible log and a store in the data folder, no other server needed.

With engines: distributed it runs the roles it is given, over Kafka, Cassandra,
Redis and PostgreSQL, which "notifyd migrate up" prepares; any number of processes
may have the same role:

  api          takes requests
  worker       calls providers; worker:push or worker:sms-bulk only those lanes
  scheduler    releases what is due; run two
  dispatcher   calls the URLs of triggers
  operator     history, dead letters, jobs, audit, reconcile, purge; run two

SIGTERM drains: no new requests, work in flight is finished; a second signal, half
a second later or more, ends the process at once.`,
		RunE: func(c *cobra.Command, _ []string) error {
			extra := map[string]any{}
			if len(roles) > 0 {
				if _, err := cluster.ParseRoles(roles); err != nil {
					return term.Usage("--role %v", err)
				}
				extra["roles"] = roles
			}
			if data != "" {
				extra["data_dir"] = data
			}
			l, err := cf.load(p, extra)
			if err != nil {
				return err
			}
			var last recentLog
			log := newLogger(io.MultiWriter(p.err, &last), &l.Config)
			p.setStandardLogger(log)
			app.MakeRoomForFiles()
			n, err := app.New(l.Config, log, app.WithProgress(func(step string) { log.Info("starting", "step", step) }))
			if err != nil {
				return err
			}
			n.Describe(app.About{Config: l.Print(), Log: last.Lines})
			log.Info("ready", "api", n.Addr(), "admin", n.Admin(), "kafka", n.Kafka(), "data", l.Config.DataDir, "version", version)
			if err := n.Run(c.Context()); !isRequestedStop(c.Context(), err) {
				return err
			}
			log.Info("stopped")
			return nil
		},
	}
	cf.add(c)
	c.Flags().StringSliceVar(&roles, "role", nil, "roles of this process (default: the setting roles): "+strings.Join(cluster.Roles, ", "))
	c.Flags().StringVar(&data, "data-dir", "", "folder of the embedded log and stores (default: the setting data_dir)")
	return c
}

func newConfig(p *program) *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Check and print the configuration"}
	var cf configFlags
	check := &cobra.Command{
		Use: "check", Short: "Report every problem of the configuration", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			l, err := cf.load(p, nil)
			if err == nil {
				err = l.Config.Auth.Check()
			}
			if err != nil {
				return err
			}
			fmt.Fprintln(p.out, "configuration is good")
			return nil
		},
	}
	var origin bool
	show := &cobra.Command{
		Use: "print", Short: "Print the configuration as the server sees it", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			l, err := cf.load(p, nil)
			if err != nil {
				return err
			}
			for _, line := range strings.SplitAfter(l.Print(), "\n") {
				if value, _, _ := strings.Cut(line, " # "); !origin && line != "" {
					line = strings.TrimRight(value, " ") + "\n"
				}
				fmt.Fprint(p.out, line)
			}
			return nil
		},
	}
	show.Flags().BoolVar(&origin, "origin", false, "say where each value came from")
	cf.add(check)
	cf.add(show)
	example := &cobra.Command{
		Use: "example", Short: "Print a file with every key, its default and its meaning", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprint(p.out, app.Example())
			return err
		},
	}
	c.AddCommand(check, show, example)
	return c
}

func newHealthcheck(p *program) *cobra.Command {
	var server string
	c := &cobra.Command{
		Use: "healthcheck", Short: "Exit 0 when a server is ready, 7 when not", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := context.WithTimeout(c.Context(), 3*time.Second)
			defer stop()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(server, "/")+"/readyz", nil)
			if err != nil {
				return term.Usage("--server: %v", err)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return term.Exitf(term.ExitUnavailable, "%v", err)
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return term.Exitf(term.ExitUnavailable, "the server is not ready: %s", resp.Status)
			}
			fmt.Fprintln(p.out, "ready")
			return nil
		},
	}
	c.Flags().StringVar(&server, "server", "http://"+app.Default().API.Listen, "address of the API")
	return c
}
