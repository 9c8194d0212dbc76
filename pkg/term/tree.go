package term

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Polish turns three mistakes into usage errors with a suggestion, at every level of the command
// tree: a mistyped command, a mistyped flag, and too many arguments. Without Polish, cobra 1.10
// prints help and exits with 0 for a mistyped command below the root, and it never suggests a flag.
func Polish(root *cobra.Command) {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(flagError)
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	polishCommand(root)
}

// polishCommand applies Polish to c and to all commands below c.
func polishCommand(c *cobra.Command) {
	disableFileCompletion(c)
	switch {
	case c.Name() == "help":
	case !c.HasSubCommands():
		c.Args = asUsageErrors(c.Args)
	default:
		c.Args = func(c *cobra.Command, args []string) error { // an argument is a mistyped subcommand
			if len(args) == 0 {
				return nil
			}
			return unknownCommand(c, args[0])
		}
		if c.RunE == nil && c.Run == nil {
			c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		}
	}
	if c.Name() == "help" {
		c.RunE = func(c *cobra.Command, args []string) error {
			to, rest, err := c.Root().Find(args)
			if err != nil || to == nil || len(rest) > 0 {
				if to == nil {
					to = c.Root()
				}
				return unknownCommand(to, strings.Join(rest, " "))
			}
			to.InitDefaultHelpFlag()
			return to.Help()
		}
		c.Run = nil
	}
	for _, sub := range c.Commands() {
		polishCommand(sub)
	}
}

// disableFileCompletion stops the shell from completing file names for arguments and flags that are
// not files, such as an id, a user or a time. By default cobra completes file names for each
// argument and flag without a completion. disableFileCompletion reads the usage text to find the
// arguments and flags that are files.
func disableFileCompletion(c *cobra.Command) {
	if !c.HasSubCommands() && c.ValidArgsFunction == nil && len(c.ValidArgs) == 0 && !takesFile(c.Use) {
		c.ValidArgsFunction = cobra.NoFileCompletions
	}
	for _, flags := range []*pflag.FlagSet{c.LocalNonPersistentFlags(), c.PersistentFlags()} {
		flags.VisitAll(func(f *pflag.Flag) {
			if !takesFile(f.Usage) {
				_ = c.RegisterFlagCompletionFunc(f.Name, cobra.NoFileCompletions) // it fails only if the flag already has a completion
			}
		})
	}
}

func takesFile(usage string) bool {
	usage = strings.ToLower(usage)
	return slices.ContainsFunc([]string{"file", "folder", "dir", ".yaml", "document"}, func(s string) bool { return strings.Contains(usage, s) })
}

// asUsageErrors wraps the function check, which checks the arguments of a command, so that its
// errors become usage errors. If check is nil, the command takes no arguments.
func asUsageErrors(check cobra.PositionalArgs) cobra.PositionalArgs {
	if check == nil {
		check = Exact()
	}
	return func(c *cobra.Command, args []string) error {
		err := check(c, args)
		if _, ours := errors.AsType[*Error](err); err == nil || ours {
			return err
		}
		if strings.HasPrefix(err.Error(), "unknown command") { // cobra's text for too many arguments
			err = fmt.Errorf("%s takes no arguments, got %q", c.CommandPath(), args[0])
		}
		return &Error{Exit: ExitUsage, Err: err, Next: []string{c.CommandPath() + " --help"}}
	}
}

func unknownCommand(c *cobra.Command, arg string) error {
	msg := fmt.Sprintf("unknown command %q for %q", arg, c.CommandPath())
	if s := nearestCommands(c, arg); len(s) > 0 {
		msg += fmt.Sprintf("; did you mean %s?", strings.Join(s, " or "))
	}
	return &Error{Exit: ExitUsage, Err: fmt.Errorf("%s", msg), Next: []string{c.CommandPath() + " --help"}}
}

// nearestCommands returns the subcommands of c that the user may have meant by arg: those with the
// fewest typing errors. It counts no errors for a subcommand whose name starts with arg, or whose
// SuggestFor contains arg.
func nearestCommands(c *cobra.Command, arg string) (names []string) {
	best := min(3, (len(arg)+1)/2) + 1 // a name with this many errors is a different word
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
		// Limit the errors to less than the length of the name. Otherwise every short flag would be
		// suggested.
		if best := Nearest(name, min(3, len(name)-1), flags); best != "" {
			msg += fmt.Sprintf("; did you mean --%s?", best)
		}
	}
	return &Error{Exit: ExitUsage, Err: fmt.Errorf("%s", msg), Next: []string{c.CommandPath() + " --help"}}
}

// Exact returns a check that requires one argument for each of the given names. The error of the
// check lists the names of the missing arguments.
func Exact(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return Usage("%s needs %s", calledAs(c), strings.Join(names[len(args):], " and "))
		case len(names) == 0 && len(args) > 0:
			return Usage("%s takes no arguments, got %q", calledAs(c), args[0])
		case len(args) > len(names):
			return Usage("%s takes %d argument(s); %q is one too many", calledAs(c), len(names), args[len(names)])
		}
		return nil
	}
}

// AtLeast returns a check that requires n or more arguments. The parameter description says what
// the arguments are, for the text of the error.
func AtLeast(n int, description string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) >= n {
			return nil
		}
		many := ""
		if n > 1 {
			many = fmt.Sprintf(", at least %d", n)
		}
		return Usage("%s needs %s%s", calledAs(c), description, many)
	}
}

// calledAs returns the full command of c, with the alias if the user typed an alias.
func calledAs(c *cobra.Command) string {
	if name := c.CalledAs(); name != "" {
		return strings.TrimSuffix(c.CommandPath(), c.Name()) + name
	}
	return c.CommandPath()
}

// Nearest returns the name that the user most probably meant by a word: the one from which the word
// differs by the fewest typing errors. It returns "" if every name has more than maxErrors errors.
// If several names have equally few errors, it returns the first one in alphabetical order.
func Nearest(word string, maxErrors int, names []string) (best string) {
	for _, n := range slices.Sorted(slices.Values(names)) {
		if d := Distance(n, word); d <= maxErrors {
			best, maxErrors = n, d-1
		}
	}
	return best
}

// Distance returns the number of typing errors between two short words. A missing, added or wrong
// letter is one error. Two swapped neighbour letters are also one error.
func Distance(a, b string) int {
	before := make([]int, len(b)+1) // the row that was computed before the one in last
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
