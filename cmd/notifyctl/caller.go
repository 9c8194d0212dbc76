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
		Short: "List the callers whose settings differ from the defaults",
		Example: `  notifyctl caller ls
  notifyctl caller ls -o json --jq .items[].id`,
	}, &listing[api.Caller]{columns: cols, get: wholeList((*api.Client).Callers), whole: true}), newShowCommand(p, &cobra.Command{
		Use: "show CALLER", Short: "Show the settings of a caller", Args: term.Exact("a caller"), Aliases: []string{"get"},
		Example: `  notifyctl caller show shop`,
	}, (*api.Client).Caller, withProgram(p, callerFields)), newCallerSet(p), newRotateSecret(p))
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
		what := "failures are sent to"
		if c.OutcomesOf == "all" {
			what = "outcomes are sent to"
		}
		t = append(t, []string{what, c.OutcomesURL})
	}
	for _, s := range c.Secrets {
		until := ""
		if s.ExpiresAt != nil {
			until = ", signs until " + s.ExpiresAt.Local().Format("2006-01-02 15:04 MST")
		}
		t = append(t, []string{"secret", "made " + p.timeText(s.CreatedAt) + until})
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
		Long: `set changes the given settings and keeps the others. A callback URL is a base URL
(scheme, host, port and path): triggers may call any URL below it.`,
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
	f.StringArrayVar(&o.add, "callback-url", nil, "a base URL that its triggers may call; may be given more than once")
	f.StringArrayVar(&o.remove, "remove-callback-url", nil, "a base URL to remove; may be given more than once")
	f.Float64Var(&o.rate, "rate", 0, "requests per second; 0: the server's default")
	f.IntVar(&o.burst, "burst", 0, "requests at once; 0: the server's default")
	f.IntVar(&o.flights, "max-in-flight", 0, "callbacks at a time; 0: the server's default")
	f.IntVar(&o.pending, "max-pending", 0, "triggers waiting; 0: the server's default")
	f.IntSliceVar(&o.final, "final-status", nil, "HTTP statuses, 300 to 599, that end a trigger without a retry, as 410 does; e.g. 400,422; 0: none but 410")
	f.StringVar(&o.outcomes, "outcomes", "", "URL that is called with the outcomes of its notifications; it must lie below a callback URL; \"\": none")
	f.StringVar(&o.outcomesOf, "outcomes-of", "failed", "which outcomes: failed, or all")
	f.StringVar(&o.reason, "reason", "", "why; kept in the audit log")
	f.BoolVar(&o.disabled, "disabled", false, "refuse every request of the caller; --disabled=false accepts them again")
	return c
}

func runCallerSet(ctx context.Context, p *program, id string, o *callerOptions) error {
	t, cl, err := p.operatorClient(o.reason)
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
			return term.Usage("--remove-callback-url %q: the caller has no such callback URL", gone)
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
	if o.changed("outcomes-of") { // do this after --outcomes, which may clear OutcomesOf
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
		Use: "rotate-secret CALLER", Short: "Create a new secret with which a caller checks its callbacks", Args: term.Exact("a caller"),
		Long: `rotate-secret creates a new signing secret and prints it. The secret is never shown
again. For the time of --overlap, callbacks are signed with the previous secret as well,
so that the service that checks them can change to the new one.`,
		Example: `  notifyctl caller rotate-secret shop
  notifyctl caller rotate-secret shop --overlap 0s`,
	}
	overlap, reason := c.Flags().String("overlap", "24h", "how long the previous secret signs as well; 0s: not at all"), reasonFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		d, err := parseSpan(*overlap)
		if err != nil {
			return err
		}
		return confirmAndChange(p, changes, "rotate the secret of "+args[0], *reason, func(cl *api.Client) (api.RotatedSecret, error) {
			return cl.RotateSecret(c.Context(), args[0], d)
		}, func(out *api.RotatedSecret) error {
			err := p.printer().Record(out, term.Table{{"caller", out.Caller}, {"secret", out.Secret}, {"previous secret signs until", p.optionalTimeText(out.OldUntil)}})
			if err == nil {
				p.note("the secret is not shown again")
			}
			return err
		})
	}
	return c
}
