package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

func newCaller(p *program) *cobra.Command {
	c := &cobra.Command{Use: "caller", Short: "Read and set callers' limits, callback URLs and secrets"}
	c.AddCommand(newCallerList(p), newCallerShow(p), newCallerSet(p), newRotateSecret(p))
	return c
}

func newCallerList(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the callers that differ from the defaults", Args: cobra.NoArgs, Aliases: []string{"list"},
		Example: `  notifyctl caller ls
  notifyctl caller ls -o json --jq .items[].id`,
		RunE: p.call(func(ctx context.Context, cl *api.Client, _ []string) error {
			out, err := cl.Callers(ctx)
			if err != nil {
				return err
			}
			if err := printWide(p, out, out.Items, []string{"SECRETS"}, func() term.Table {
				t := term.Table{{"CALLER", "RATE", "DISABLED", "SECRETS", "CALLBACK URLS"}}
				for i := range out.Items {
					v := &out.Items[i]
					t = append(t, []string{v.ID, rateOf(v), yesNo(v.Disabled), strconv.Itoa(len(v.Secrets)), strings.Join(v.CallbackURLs, " ")})
				}
				return t
			}); err != nil {
				return err
			}
			p.more(len(out.Items), "")
			return nil
		}),
	}
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

func newCallerShow(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "show CALLER", Short: "Show what is set for a caller", Args: term.Exact("a caller"), Aliases: []string{"get"},
		Example: `  notifyctl caller show shop`,
		RunE: p.call(func(ctx context.Context, cl *api.Client, args []string) error {
			v, err := cl.Caller(ctx, args[0])
			if err != nil {
				return err
			}
			return p.printCaller(&v)
		}),
	}
}

func (p *program) printCaller(c *api.Caller) error {
	return p.printer().Record(c, func() term.Table {
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
	})
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
	t, err := p.target()
	if err != nil {
		return err
	}
	cl := p.clientOf(&t)
	cl.Reason, cl.Context = o.reason, t.name
	c, err := cl.Caller(ctx, id)
	if err != nil && notify.KindOf(err) != notify.KindNotFound {
		return err
	}
	c.ID = id
	for _, gone := range o.remove {
		at := -1
		for i, u := range c.CallbackURLs {
			if u == gone {
				at = i
			}
		}
		if at < 0 {
			return term.Usage("--remove-callback-url %q: the caller does not have it", gone)
		}
		c.CallbackURLs = append(c.CallbackURLs[:at:at], c.CallbackURLs[at+1:]...)
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
	if err := p.confirm(&t, changes, "change caller "+id); err != nil {
		return err
	}
	if c, err = cl.PutCaller(ctx, c); err != nil {
		return err
	}
	return p.printCaller(&c)
}

func newRotateSecret(p *program) *cobra.Command {
	overlap, reason := "24h", ""
	c := &cobra.Command{
		Use: "rotate-secret CALLER", Short: "Give a caller a fresh secret to check callbacks with", Args: term.Exact("a caller"),
		Long: `rotate-secret makes a new signing secret and prints it: the only time it is shown. The
one before signs beside it for the overlap, so that the receiver can be changed over.`,
		Example: `  notifyctl caller rotate-secret shop
  notifyctl caller rotate-secret shop --overlap 0s`,
		RunE: func(c *cobra.Command, args []string) error {
			return runRotateSecret(c.Context(), p, args[0], overlap, reason)
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why; kept in the audit log")
	c.Flags().StringVar(&overlap, "overlap", overlap, "how long the secret before signs too; 0s: not at all")
	return c
}

func runRotateSecret(ctx context.Context, p *program, id, overlap, reason string) error {
	var d time.Duration
	if overlap != "0" {
		var err error
		if d, err = parseSpan(overlap); err != nil {
			return err
		}
	}
	cl, err := p.confirmed(changes, "rotate the secret of "+id, reason)
	if err != nil {
		return err
	}
	out, err := cl.RotateSecret(ctx, id, d)
	if err != nil {
		return err
	}
	if err := p.printer().Record(out, func() term.Table {
		return term.Table{{"caller", out.Caller}, {"secret", out.Secret}, {"the one before signs until", p.whenever(out.OldUntil)}}
	}); err != nil {
		return err
	}
	p.note("it is not shown again")
	return nil
}
