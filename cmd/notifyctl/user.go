package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

func newUser(p *program) *cobra.Command {
	c := &cobra.Command{Use: "user", Short: "Read and change addresses, opt-outs and quiet hours"}
	c.AddCommand(newShowCommand(p, &cobra.Command{
		Use: "get USER", Short: "Show a user's profile", Args: term.Exact("a user id"), Aliases: []string{"show"},
		Example: `  notifyctl user get ann
  notifyctl user get ann -o json >ann.json`,
	}, (*api.Client).User, userFields), newUserSet(p))
	return c
}

func userFields(u *api.User) term.Table {
	t := term.Table{{"user", u.UserID}}
	for _, ch := range slices.Sorted(maps.Keys(u.Addresses)) {
		t = append(t, []string{ch, strings.Join(u.Addresses[ch], "  ")})
	}
	t = append(t, []string{"opted out of", strings.Join(u.OptOut, ", ")})
	if u.QuietHours != nil {
		t = append(t, []string{"quiet hours", u.QuietHours.From + "-" + u.QuietHours.To})
	}
	t = append(t, []string{"time zone", u.TimeZone})
	for _, a := range slices.Sorted(maps.Keys(u.Suppressed)) {
		t = append(t, []string{"suppressed", a + "  (" + u.Suppressed[a] + ")"})
	}
	return append(t, []string{"version", fmt.Sprint(u.Version)})
}

type userOptions struct {
	file            string
	push, sms, mail []string
	optOut, optIn   []string
	quiet, zone     string
	changed         func(flag string) bool
}

func newUserSet(p *program) *cobra.Command {
	var o userOptions
	c := &cobra.Command{
		Use: "set USER", Short: "Change a user's profile", Args: oneUser,
		Long: `set changes what its flags name and keeps the rest. It only writes if the profile still
has the version that set read, so that no other change is lost. A flag with addresses
replaces the addresses of its channel; an empty value removes them. With -f, a whole
document, as "user get -o json" prints it, replaces the profile; if it has a version,
that must be the stored one. An opt-out applies to every call that starts a second later
or after that. set prints the stored profile.`,
		Example: `  notifyctl user set ann --push apns:0f3a91c4d2 --sms +4915112345678 --email ann@example.com
  notifyctl user set ann --opt-out marketing --opt-out email/digest --quiet-hours 22:00-07:00 --tz Europe/Berlin
  notifyctl user get ann -o json > ann.json; notifyctl user set ann -f ann.json`,
		RunE: func(c *cobra.Command, args []string) error {
			o.changed = func(name string) bool { return c.Flags().Changed(name) }
			return runUserSet(c.Context(), p, &o, args[0])
		},
	}
	f := c.Flags()
	f.StringVarP(&o.file, "file", "f", "", "JSON document of the user; -: standard input")
	f.StringSliceVar(&o.push, "push", nil, "device tokens, such as apns:TOKEN or fcm:TOKEN")
	f.StringSliceVar(&o.sms, "sms", nil, "phone numbers, such as +4915112345678")
	f.StringSliceVar(&o.mail, "email", nil, "mail addresses")
	f.StringSliceVar(&o.optOut, "opt-out", nil, "channel, category or channel/category that the user does not want")
	f.StringSliceVar(&o.optIn, "opt-in", nil, "remove an opt-out")
	f.StringVar(&o.quiet, "quiet-hours", "", "quiet hours in local time, such as 22:00-07:00; none: no quiet hours")
	f.StringVar(&o.zone, "tz", "", "time zone, such as Europe/Berlin")
	completeFlag(c, "opt-out", append(channelNames(), categoryNames()...))
	completeFlag(c, "opt-in", append(channelNames(), categoryNames()...))
	return c
}

// oneUser checks that there is one argument, the user. A common mistake is to type --quiet instead
// of --quiet-hours. Then the hours become a second argument, and the error names --quiet-hours.
func oneUser(c *cobra.Command, args []string) error {
	if len(args) == 2 && strings.Count(args[1], ":") == 2 {
		return term.Usage("%q is not a user; to set quiet hours, use --quiet-hours %s", args[1], args[1])
	}
	return term.Exact("a user id")(c, args)
}

func runUserSet(ctx context.Context, p *program, o *userOptions, user string) error {
	named := slices.ContainsFunc([]string{"push", "sms", "email", "opt-out", "opt-in", "quiet-hours", "tz"}, o.changed)
	switch {
	case o.file == "" && !named:
		return term.Usage("nothing to change: give flags with new values, or a file with -f")
	case o.file != "" && named:
		return term.Usage("-f replaces the whole profile, so other flags that change the profile cannot be given")
	}
	cl, err := p.confirmedClient(changes, "change user "+user, "")
	if err != nil {
		return err
	}
	var out api.UserVersion
	if o.file != "" {
		u, err := readUser(p, o.file)
		if err != nil {
			return err
		}
		if u.UserID != "" && u.UserID != user {
			return term.Usage("the document is for user %q, not for %q", u.UserID, user)
		}
		u.UserID = user
		out, err = cl.PutUser(ctx, u)
		if err != nil {
			return err
		}
	} else if out, err = o.change(ctx, cl, user); err != nil {
		return err
	}
	stored, err := cl.User(ctx, user)
	if err != nil { // the change is stored, but the token may lack the scope to read
		return p.printer().Record(out, term.Table{{"user", out.UserID}, {"version", fmt.Sprint(out.Version)}})
	}
	return p.printer().Record(stored, userFields(&stored))
}

// change reads the profile, changes it and writes it. If another writer changed the profile in the
// meantime, it starts again, up to four times.
func (o *userOptions) change(ctx context.Context, cl *api.Client, user string) (out api.UserVersion, err error) {
	for range 5 {
		u, err := cl.User(ctx, user)
		if err != nil && notify.KindOf(err) != notify.KindNotFound {
			return out, err
		}
		u.UserID = user
		if err := o.apply(&u); err != nil {
			return out, err
		}
		out, err = cl.PutUser(ctx, u)
		if notify.KindOf(err) != notify.KindConflict {
			return out, err
		}
	}
	return out, term.Exitf(term.ExitConflict, "user %q was changed by another writer in each of 5 tries; run the command again", user)
}

func (o *userOptions) apply(u *api.User) error {
	if u.Addresses == nil {
		u.Addresses = map[string][]string{}
	}
	for ch, list := range map[string][]string{"push": o.push, "sms": o.sms, "email": o.mail} {
		if !o.changed(ch) {
			continue
		}
		if list = slices.DeleteFunc(list, func(a string) bool { return a == "" }); len(list) == 0 {
			delete(u.Addresses, ch)
			continue
		}
		u.Addresses[ch] = list
	}
	u.OptOut = slices.DeleteFunc(u.OptOut, func(s string) bool { return slices.Contains(o.optIn, s) })
	for _, s := range o.optOut {
		if !slices.Contains(u.OptOut, s) {
			u.OptOut = append(u.OptOut, s)
		}
	}
	if o.changed("tz") {
		u.TimeZone = o.zone
	}
	switch {
	case !o.changed("quiet-hours"):
	case o.quiet == "none" || o.quiet == "":
		u.QuietHours = nil
	default:
		from, to, ok := strings.Cut(o.quiet, "-")
		if !ok {
			return term.Usage("--quiet-hours %q: write 22:00-07:00, or none", o.quiet)
		}
		u.QuietHours = &api.QuietHours{From: from, To: to}
	}
	return nil
}

func readUser(p *program, name string) (u api.User, err error) {
	b, err := readAll(p, name)
	if err != nil {
		return u, err
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&u); err != nil {
		return u, term.Usage("%s: %v", label(name), err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return u, term.Usage("%s: there is text after the document", label(name))
	}
	return u, nil
}

// readAll reads a file of at most 1 MiB. The name "-" means standard input.
func readAll(p *program, name string) ([]byte, error) {
	f := io.NopCloser(p.in)
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, term.Usage("%v", err)
		}
		f = file
	}
	defer f.Close()
	const most = 1 << 20
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && len(b) > most {
		err = term.Usage("%s is larger than 1 MiB", label(name))
	}
	return b, err
}

// label returns the name of an input, for use in messages.
func label(name string) string {
	if name == "-" {
		return "standard input"
	}
	return name
}

func newSuppression(p *program) *cobra.Command {
	c := &cobra.Command{
		Use: "suppression", Short: "List suppressed addresses, and lift suppressions",
		Long: `If a provider reports an address as dead (a bounce, a removed app, a number that takes
no SMS), the server suppresses it: every notification to it, of every caller and
category, ends as SUPPRESSED suppressed_address. lift removes the suppression. If the
provider reports the address as dead again, it is suppressed again.`,
	}
	var f api.SuppressionFilter
	list := &listing[api.Suppression]{
		get: func(ctx context.Context, cl *api.Client, after string, n int) (api.Suppressions, error) {
			return cl.Suppressions(ctx, f, after, n)
		},
		columns: columns[api.Suppression]{head: "USER  CHANNEL  ADDRESS  CODE", row: func(s *api.Suppression) []string {
			return []string{s.UserID, s.Channel, s.Address, s.Code}
		}},
	}
	ls := newListing(p, &cobra.Command{
		Short: "List the suppressed addresses, by user", Example: "  notifyctl suppression ls --channel email --code sendgrid_bounce",
	}, list)
	ls.Flags().StringVar(&f.UserID, "user", "", "only suppressions in this user's profile")
	ls.Flags().StringVar(&f.Channel, "channel", "", "only this channel: push, sms, email")
	ls.Flags().StringVar(&f.Code, "code", "", "only suppressions with this code of a provider")
	completeFlag(ls, "channel", []string{"push", "sms", "email"})
	show := &cobra.Command{
		Use: "show ADDRESS", Short: "Show which profiles suppress an address, and why", Args: term.Exact("an address"),
		RunE: func(c *cobra.Command, args []string) error {
			f.Address = args[0]
			return list.print(c.Context(), p, maxPage, "")
		},
	}
	lift := &cobra.Command{
		Use: "lift ADDRESS", Short: "Lift the suppression of an address", Args: term.Exact("an address"),
		Long: `lift removes the suppression of an address from every profile, or with --user from one.
The address is suppressed again if a provider reports it as dead again.`,
		Example: "  notifyctl suppression lift +4915112345678 --reason 'the carrier repaired it'",
	}
	user, reason := lift.Flags().String("user", "", "only in this user's profile"), reasonFlag(lift)
	lift.RunE = func(c *cobra.Command, args []string) error {
		return confirmAndChange(p, changes, "lift the suppression of "+args[0], *reason, func(cl *api.Client) (api.SuppressionLifted, error) {
			return cl.LiftSuppression(c.Context(), api.SuppressionLift{Address: args[0], UserID: *user})
		}, func(out *api.SuppressionLifted) error {
			if err := p.printer().Record(out, term.Table{{"address", out.Address}, {"lifted from", count(out.Lifted) + " profiles"}}); err != nil {
				return err
			}
			if out.StillSuppressed {
				p.note("another profile still suppresses the address: notifyctl suppression show %s", term.Quote(out.Address))
			}
			return nil
		})
	}
	c.AddCommand(ls, show, lift)
	return c
}
