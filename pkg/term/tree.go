package term

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Polish gives a command tree its manners. cobra 1.10 prints help and exits 0
// for a mistyped command below the root, and never suggests a flag; here both
// are usage errors with a suggestion, at every level, and so is an argument too
// many.
func Polish(root *cobra.Command) {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(flagError)
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	walk(root)
}

func walk(c *cobra.Command) {
	noFiles(c)
	switch {
	case c.Name() == "help":
	case !c.HasSubCommands():
		c.Args = usage(c.Args)
	default:
		if c.RunE == nil && c.Run == nil {
			c.Args = func(c *cobra.Command, args []string) error {
				if len(args) == 0 {
					return nil
				}
				return unknown(c, args[0])
			}
			c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		} else { // it does something by itself; what follows it is still a subcommand, mistyped
			c.Args = func(c *cobra.Command, args []string) error {
				if len(args) == 0 {
					return nil
				}
				return unknown(c, args[0])
			}
		}
	}
	if c.Name() == "help" {
		c.RunE = func(c *cobra.Command, args []string) error {
			to, rest, err := c.Root().Find(args)
			if err != nil || to == nil || len(rest) > 0 {
				if to == nil {
					to = c.Root()
				}
				return unknown(to, strings.Join(rest, " "))
			}
			to.InitDefaultHelpFlag()
			return to.Help()
		}
		c.Run = nil
	}
	for _, sub := range c.Commands() {
		walk(sub)
	}
}

// noFiles keeps shells from offering the files that lie about where an id, a user
// or a time is due: cobra offers them for all that has no completion of its own.
// What takes a file says so, in its usage.
func noFiles(c *cobra.Command) {
	if !c.HasSubCommands() && c.ValidArgsFunction == nil && len(c.ValidArgs) == 0 && !takesFile(c.Use) {
		c.ValidArgsFunction = cobra.NoFileCompletions
	}
	for _, flags := range []*pflag.FlagSet{c.LocalNonPersistentFlags(), c.PersistentFlags()} {
		flags.VisitAll(func(f *pflag.Flag) {
			if !takesFile(f.Usage) {
				_ = c.RegisterFlagCompletionFunc(f.Name, cobra.NoFileCompletions) // an error: it has one
			}
		})
	}
}

func takesFile(usage string) bool {
	usage = strings.ToLower(usage)
	return slices.ContainsFunc([]string{"file", "folder", "dir", ".yaml", "document"}, func(s string) bool { return strings.Contains(usage, s) })
}

// usage makes what is wrong with arguments an error of the command line; a
// command that says nothing about them takes none.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	if check == nil {
		check = Exact()
	}
	return func(c *cobra.Command, args []string) error {
		err := check(c, args)
		if _, ours := errors.AsType[*Error](err); err == nil || ours {
			return err
		}
		if strings.HasPrefix(err.Error(), "unknown command") { // how cobra words an argument too many
			err = fmt.Errorf("%s takes no arguments, got %q", c.CommandPath(), args[0])
		}
		return &Error{Exit: ExitUsage, Err: err, Next: []string{c.CommandPath() + " --help"}}
	}
}

func unknown(c *cobra.Command, arg string) error {
	msg := fmt.Sprintf("unknown command %q for %q", arg, c.CommandPath())
	if s := nearest(c, arg); len(s) > 0 {
		msg += fmt.Sprintf("; did you mean %s?", strings.Join(s, " or "))
	}
	return &Error{Exit: ExitUsage, Err: fmt.Errorf("%s", msg), Next: []string{c.CommandPath() + " --help"}}
}

// nearest lists the commands below c that arg may have meant: those that begin
// with it, that are suggested for it, or that are the fewest typing errors away.
func nearest(c *cobra.Command, arg string) (names []string) {
	best := min(3, (len(arg)+1)/2) + 1 // as many errors make another word
	for _, sub := range c.Commands() {
		if !sub.IsAvailableCommand() && sub.Name() != "help" {
			continue
		}
		d := Distance(sub.Name(), arg)
		for _, a := range sub.Aliases {
			d = min(d, Distance(a, arg))
		}
		if slices.Contains(sub.SuggestFor, arg) || (len(arg) > 1 && strings.HasPrefix(sub.Name(), arg)) {
			d = 0
		}
		switch {
		case d < best:
			best, names = d, []string{sub.Name()}
		case d == best && len(names) > 0:
			names = append(names, sub.Name())
		}
	}
	return names
}

func flagError(c *cobra.Command, err error) error {
	msg := err.Error()
	if i := strings.Index(msg, "time: "); i >= 0 { // time: missing unit in duration "5"
		msg = msg[:i] + "not a length of time such as 500ms, 10s or 2h"
	}
	if i := strings.Index(msg, "strconv."); i >= 0 { // strconv.ParseInt: parsing "abc": invalid syntax
		if j := strings.LastIndex(msg, ": "); j > i {
			msg = msg[:i] + msg[j+2:]
		}
	}
	if name, ok := strings.CutPrefix(msg, "unknown flag: --"); ok {
		name, _, _ = strings.Cut(name, "=")
		var flags []string
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				flags = append(flags, f.Name)
			}
		})
		// A distance of the name's whole length would make every short flag a suggestion.
		if best := Nearest(name, min(3, len(name)-1), flags); best != "" {
			msg += fmt.Sprintf("; did you mean --%s?", best)
		}
	}
	return &Error{Exit: ExitUsage, Err: fmt.Errorf("%s", msg), Next: []string{c.CommandPath() + " --help"}}
}

// Exact wants n arguments and names them when they are missing.
func Exact(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return Usage("%s needs %s", calledAs(c), strings.Join(names[len(args):], " and "))
		case len(names) == 0 && len(args) > 0:
			return Usage("%s takes no arguments, got %q", calledAs(c), args[0])
		case len(args) > len(names):
			return Usage("%s takes %d argument(s), got %q too many", calledAs(c), len(names), args[len(names)])
		}
		return nil
	}
}

// AtLeast wants n arguments or more and names them when they are missing.
func AtLeast(n int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) >= n {
			return nil
		}
		many := ""
		if n > 1 {
			many = fmt.Sprintf(", at least %d", n)
		}
		return Usage("%s needs %s%s", calledAs(c), what, many)
	}
}

// calledAs is the path of a command, with the alias it was called by.
func calledAs(c *cobra.Command) string {
	if name := c.CalledAs(); name != "" {
		return strings.TrimSuffix(c.CommandPath(), c.Name()) + name
	}
	return c.CommandPath()
}

// Nearest returns the name that is fewest typing errors away from word, at most most, and
// of several the first in the alphabet; empty: there is none.
func Nearest(word string, most int, names []string) (best string) {
	for _, n := range slices.Sorted(slices.Values(names)) {
		if d := Distance(n, word); d <= most {
			best, most = n, d-1
		}
	}
	return best
}

// Distance is the number of typing errors between two short words: a letter
// missing, added or wrong, or two neighbours swapped.
func Distance(a, b string) int {
	before := make([]int, len(b)+1) // the row before the last
	last := make([]int, len(b)+1)
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, last, row = last, row, before
		row[0] = i + 1
		for j := range len(b) {
			cost := last[j]
			if a[i] != b[j] {
				cost++
			}
			row[j+1] = min(cost, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}
