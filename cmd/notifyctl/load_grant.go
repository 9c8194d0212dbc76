package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/atomicfile"
	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/term"
)

func grantColumns(p *program) columns[api.LoadGrant] {
	return columns[api.LoadGrant]{
		head:     "GRANT  STATE  EXPIRES  RATE  TARGETS  PROVIDERS  HOSTS  BY  APPROVED  REVOKED  REASON",
		optional: []string{"REASON", "REVOKED", "APPROVED", "HOSTS"},
		row: func(g *api.LoadGrant) []string {
			return []string{
				g.ID, g.State, p.optionalTimeText(&g.ExpiresAt), count(int64(g.Rate)), strings.Join(g.Targets, ","), g.Providers, strings.Join(g.Hosts, ","),
				g.By, g.ApprovedBy, g.RevokedBy, g.Reason,
			}
		},
	}
}

// loadGrants returns the commands that list and change grants. With a grant, an operator allows load
// runs against a cluster.
func loadGrants(p *program) []*cobra.Command {
	cols := grantColumns(p)
	set := func(verb, to, short, long string) *cobra.Command {
		c := &cobra.Command{Use: verb + " GRANT", Short: short, Long: long, Args: term.Exact("a grant, such as lg_01J9ZQ4M8W6V3T2R1P0NKJHGFE")}
		reason := reasonFlag(c)
		c.RunE = func(c *cobra.Command, args []string) error {
			return confirmAndChange(p, changes, "set grant "+args[0]+" to "+to, *reason, func(cl *api.Client) (api.LoadGrant, error) {
				return cl.ChangeGrant(c.Context(), args[0], to)
			}, func(g *api.LoadGrant) error { return p.printer().Print(g, cols.table([]api.LoadGrant{*g})) })
		}
		return c
	}
	return []*cobra.Command{
		newLoadGrant(p),
		newListing(p, &cobra.Command{
			Use: "grants", Args: cobra.NoArgs, Short: "List the grants of the last week",
			Long: "grants lists who allowed which load on the server, and the state of each grant. It needs\nthe scope observe.",
		}, &listing[api.LoadGrant]{columns: cols, whole: true, get: wholeList((*api.Client).Grants)}),
		set("approve", "approved", "Approve a grant for real providers",
			"approve makes a grant for real providers valid. The operator who made the grant cannot\napprove it. It needs the scope operate."),
		set("revoke", "revoked", "End a grant", "revoke ends a grant: its load stops within a second. It needs the scope operate."),
	}
}

func newLoadGrant(p *program) *cobra.Command {
	var in api.LoadGrantRequest
	var length time.Duration
	var rate, out string
	c := &cobra.Command{
		Use: "grant", Short: "Allow load on the server for a while", Args: cobra.NoArgs,
		Long: `grant makes a load grant, with which the server allows a load run. It is a token that
the cluster signs. It says to which hosts load may be sent, for how long, on which
channels, how many messages a second all generators together may send, and which
providers the server may call. load run needs it (--grant) for a server that is not on
this machine: the server refuses load without it. A grant for real providers is valid
only after another operator has approved it. It needs the scope operate.`,
		Example: "  notifyctl load grant --for 2h --rate 2M --targets push,sms --providers simulated --out staging.grant\n  notifyctl load run scenarios/steady.yaml --grant staging.grant",
	}
	reason := reasonFlag(c)
	f := c.Flags()
	f.DurationVar(&length, "for", time.Hour, "how long the grant is valid, at most 24h")
	f.StringVar(&rate, "rate", "", "highest number of messages a second, e.g. 50k (required)")
	f.StringSliceVar(&in.Targets, "targets", nil, "channels on which load may be sent: "+strings.Join(api.GrantTargets, ", ")+" (required)")
	f.StringVar(&in.Providers, "providers", api.ProvidersStub, "providers that the server may call: "+strings.Join(api.ProviderModes, ", ")+"; each includes those before it")
	f.StringSliceVar(&in.Hosts, "host", nil, "HOST or HOST:PORT to which load may be sent (default: the host of the server)")
	f.StringVar(&out, "out", "", "write the token to this file, which only you can read, instead of printing it")
	completeFlag(c, "providers", api.ProviderModes)
	c.RunE = func(c *cobra.Command, _ []string) error {
		n, err := load.ParseNumber(rate)
		if err != nil {
			return term.Usage("--rate %q must be the highest number of messages a second, such as 50k", rate)
		}
		if len(in.Targets) == 0 {
			return term.Usage("--targets is required; give one or more of %s", strings.Join(api.GrantTargets, ", "))
		}
		in.Rate, in.Seconds, in.Reason = float64(n), int64(length/time.Second), *reason
		if len(in.Hosts) == 0 {
			t, err := p.target()
			if err != nil {
				return err
			}
			host, err := api.LoadHost(t.server)
			if err != nil {
				return err
			}
			in.Hosts = []string{host}
		}
		what := fmt.Sprintf("allow %s messages a second to %s for %s, with %s providers", rate, strings.Join(in.Hosts, ", "), term.FormatDuration(length), in.Providers)
		return confirmAndChange(p, changes, what, *reason, func(cl *api.Client) (api.LoadGrant, error) { return cl.Grant(c.Context(), in) },
			func(g *api.LoadGrant) error { return printGrant(p, g, out) })
	}
	return c
}

func printGrant(p *program, g *api.LoadGrant, out string) error {
	if out != "" {
		if err := atomicfile.WriteFile(out, []byte(g.Token+"\n")); err != nil {
			return err
		}
		g.Token = ""
	}
	cols := grantColumns(p)
	if err := p.printer().Print(g, cols.table([]api.LoadGrant{*g})); err != nil {
		return err
	}
	if p.global.output == "table" && g.Token != "" {
		fmt.Fprintf(p.out, "\n%s\n", g.Token)
	}
	if g.State == api.GrantPending {
		p.note("it waits for another operator: notifyctl load approve %s", g.ID)
	}
	return nil
}

// grantToken returns the token from the file of --grant, or else from the environment. It returns
// "" if there is no token.
func (o *loadOptions) grantToken(p *program) (string, error) {
	if o.grant == "" {
		return strings.TrimSpace(p.getenv("NOTIFYCTL_LOAD_GRANT")), nil
	}
	b, err := os.ReadFile(o.grant)
	if err != nil {
		return "", term.Usage("--grant: %s", err)
	}
	return strings.TrimSpace(string(b)), nil
}
