package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

func newCaller(p *program) *cobra.Command {
	c := &cobra.Command{Use: "caller", Short: "Read and set callers' limits, callback URLs and secrets"}
	cols := columns[api.Caller]{
		head: "CALLER  RATE  DISABLED  SECRETS  CALLBACK URLS", optional: []string{"SECRETS"},
		row: func(v *api.Caller) []string {
			return []string{v.ID, rateOf(v), yesNo(v.Disabled), strconv.Itoa(len(v.Secrets)), strings.Join(v.CallbackURLs, " ")}
		},
	}
	c.AddCommand(newListing(p, &cobra.Command{
		Short: "List the callers that differ from the defaults",
		Example: `  notifyctl caller ls
  notifyctl caller ls -o json --jq .items[].id`,
	}, &listing[api.Caller]{columns: cols, get: all((*api.Client).Callers), whole: true}), newGet(p, &cobra.Command{
		Use: "show CALLER", Short: "Show what is set for a caller", Args: term.Exact("a caller"), Aliases: []string{"get"},
		Example: `  notifyctl caller show shop`,
	}, (*api.Client).Caller, bind(p, callerFields)), newCallerSet(p), newRotateSecret(p))
	return c
}

func rateOf(c *api.Caller) string {
	if c.Rate == 0 {
		return "default"
	}
	return strconv.FormatFloat(c.Rate, 'f', -1, 64) + "/s"
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func orDefault(n int) string {
	if n == 0 {
		return "default"
	}
	return count(n)
}

func callerFields(p *program, c *api.Caller) term.Table {
	t := term.Table{{"caller", c.ID}, {"rate", rateOf(c)}, {"burst", orDefault(c.Burst)}, {"disabled", yesNo(c.Disabled)}}
	for _, u := range c.CallbackURLs {
		t = append(t, []string{"callback URL", u})
	}
	t = append(t, []string{"callbacks at a time", orDefault(c.MaxInFlight)}, []string{"triggers waiting", orDefault(c.MaxPending)})
	if len(c.FinalStatuses) > 0 {
		t = append(t, []string{"final answers", strings.Trim(fmt.Sprint(append([]int{410}, c.FinalStatuses...)), "[]")})
	}
	if c.OutcomesURL != "" {
		what := "failures are told to"
		if c.OutcomesOf == "all" {
			what = "outcomes are told to"
		}
		t = append(t, []string{what, c.OutcomesURL})
	}
	for _, s := range c.Secrets {
		until := ""
		if s.ExpiresAt != nil {
			until = ", signs until " + s.ExpiresAt.Local().Format("2006-01-02 15:04 MST")
		}
		t = append(t, []string{"secret", "made " + p.when(s.CreatedAt) + until})
	}
	return append(t, []string{"version", fmt.Sprint(c.Version)})
}

type callerOptions struct {
	add, remove             []string
	rate                    float64
	burst, flights, pending int
	final                   []int
	disabled                bool
	outcomes, outcomesOf    string
	reason                  string
	changed                 func(string) bool
}

func newCallerSet(p *program) *cobra.Command {
	var o callerOptions
	c := &cobra.Command{
		Use: "set CALLER", Short: "Change a caller's limits and callback URLs", Args: term.Exact("a caller"),
		Long: `set changes what is given and leaves the rest. A callback URL is a base: scheme, host,
port and path; triggers may call what lies below it.`,
		Example: `  notifyctl caller set shop --callback-url https://shop.example/hooks/
  notifyctl caller set shop --rate 500 --burst 1000 --max-in-flight 50
  notifyctl caller set shop --outcomes https://shop.example/hooks/ended --outcomes-of all`,
		RunE: func(c *cobra.Command, args []string) error {
			o.changed = c.Flags().Changed
			return runCallerSet(c.Context(), p, args[0], &o)
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringArrayVar(&o.add, "callback-url", nil, "base URL its triggers may call; may be given more than once")
	f.StringArrayVar(&o.remove, "remove-callback-url", nil, "base URL to take away")
	f.Float64Var(&o.rate, "rate", 0, "requests per second; 0: the server's default")
	f.IntVar(&o.burst, "burst", 0, "requests at once; 0: the server's default")
	f.IntVar(&o.flights, "max-in-flight", 0, "callbacks at a time; 0: the server's default")
	f.IntVar(&o.pending, "max-pending", 0, "triggers waiting; 0: the server's default")
	f.IntSliceVar(&o.final, "final-status", nil, "answers, 300 to 599, that end a trigger at once beside 410, e.g. 400,422; 0: none")
	f.StringVar(&o.outcomes, "outcomes", "", "URL its notifications that ended are told to, under a callback URL; \"\": none")
	f.StringVar(&o.outcomesOf, "outcomes-of", "failed", "which of them: failed, or all")
	f.StringVar(&o.reason, "reason", "", "why; kept in the audit log")
	f.BoolVar(&o.disabled, "disabled", false, "refuse every request of it; --disabled=false admits it again")
	return c
}

func runCallerSet(ctx context.Context, p *program, id string, o *callerOptions) error {
	t, cl, err := p.operator(o.reason)
	if err != nil {
		return err
	}
	c, err := cl.Caller(ctx, id)
	if err != nil && notify.KindOf(err) != notify.KindNotFound {
		return err
	}
	c.ID = id
	for _, gone := range o.remove {
		at := slices.Index(c.CallbackURLs, gone)
		if at < 0 {
			return term.Usage("--remove-callback-url %q: the caller does not have it", gone)
		}
		c.CallbackURLs = slices.Delete(c.CallbackURLs, at, at+1)
	}
	c.CallbackURLs = append(c.CallbackURLs, o.add...)
	for flag, set := range map[string]func(){
		"rate": func() { c.Rate = o.rate }, "burst": func() { c.Burst = o.burst }, "max-in-flight": func() { c.MaxInFlight = o.flights },
		"max-pending": func() { c.MaxPending = o.pending }, "disabled": func() { c.Disabled = o.disabled },
		"final-status": func() {
			if c.FinalStatuses = o.final; slices.Equal(o.final, []int{0}) {
				c.FinalStatuses = nil
			}
		},
		"outcomes": func() {
			if c.OutcomesURL = o.outcomes; o.outcomes == "" {
				c.OutcomesOf = ""
			}
		},
	} {
		if o.changed(flag) {
			set()
		}
	}
	if o.changed("outcomes-of") { // after --outcomes, which may take it away
		c.OutcomesOf = o.outcomesOf
	}
	if err := p.confirm(t, changes, "change caller "+id); err != nil {
		return err
	}
	if c, err = cl.PutCaller(ctx, c); err != nil {
		return err
	}
	return p.printer().Record(c, callerFields(p, &c))
}

func newRotateSecret(p *program) *cobra.Command {
	c := &cobra.Command{
		Use: "rotate-secret CALLER", Short: "Give a caller a fresh secret to check callbacks with", Args: term.Exact("a caller"),
		Long: `rotate-secret makes a new signing secret and prints it: the only time it is shown. The
one before signs beside it for the overlap, so that the receiver can be changed over.`,
		Example: `  notifyctl caller rotate-secret shop
  notifyctl caller rotate-secret shop --overlap 0s`,
	}
	overlap, reason := c.Flags().String("overlap", "24h", "how long the secret before signs too; 0s: not at all"), reasonFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		d, err := parseSpan(*overlap)
		if err != nil {
			return err
		}
		return change(p, changes, "rotate the secret of "+args[0], *reason, func(cl *api.Client) (api.RotatedSecret, error) {
			return cl.RotateSecret(c.Context(), args[0], d)
		}, func(out *api.RotatedSecret) error {
			err := p.printer().Record(out, term.Table{{"caller", out.Caller}, {"secret", out.Secret}, {"the one before signs until", p.whenever(out.OldUntil)}})
			if err == nil {
				p.note("it is not shown again")
			}
			return err
		})
	}
	return c
}
