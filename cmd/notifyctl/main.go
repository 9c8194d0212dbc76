// Command notifyctl sends notifications, shows what became of them, and helps
// those who run notifyd. Data goes to standard output, everything said about it
// to standard error.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	_ "time/tzdata" // --tz works where the system has no zones

	"github.com/spf13/cobra"
	xterm "golang.org/x/term"

	"github.com/notifyd/notifyd/pkg/term"
)

// linked is set by the linker (make build).
var linked string

var version = term.Version(linked)

// program is what commands use of the outside world, and what the global flags
// say. One runs one command.
type program struct {
	out, err io.Writer
	in       io.Reader
	getenv   func(string) string
	now      func() time.Time

	inTerminal, outTerminal, errTerminal bool
	width                                int // of the terminal that takes standard output; 0: none

	global  globals
	running *cobra.Command         // once its flags are read
	args    []string               // its arguments
	drawing atomic.Bool            // panels have the terminal: remarks would tear them
	auditID atomic.Pointer[string] // row of the audit log of the last change; nil: there was none
	inClear sync.Once              // told that a token goes over a line that others can read
}

func main() {
	ctx, stop := signals()
	p := &program{
		out: os.Stdout, err: os.Stderr, in: os.Stdin, getenv: os.Getenv, now: time.Now,
		inTerminal:  xterm.IsTerminal(int(os.Stdin.Fd())),
		outTerminal: xterm.IsTerminal(int(os.Stdout.Fd())),
		errTerminal: xterm.IsTerminal(int(os.Stderr.Fd())),
	}
	if w, _, err := xterm.GetSize(int(os.Stdout.Fd())); err == nil && p.outTerminal {
		p.width = w
	}
	code := run(ctx, p, os.Args[1:])
	stop()
	os.Exit(code)
}

// run runs one command line and returns its exit code.
func run(ctx context.Context, p *program, args []string) int {
	root := newRoot(p)
	root.SetArgs(args)
	c, err := root.ExecuteContextC(ctx)
	err = p.withAdvice(c, err)
	code := term.ExitCode(err)
	if err != nil && ctx.Err() != nil && code == term.ExitInterrupt {
		if s, ok := errors.AsType[*stopped](context.Cause(ctx)); ok {
			code = s.code
		}
		e, ok := errors.AsType[*term.Error](err)
		if !ok {
			return code // whoever pressed Ctrl-C knows
		}
		err = &term.Error{Exit: code, Err: e.Err, Next: e.Next}
	}
	if err != nil {
		term.Report(p.err, err, p.global.output)
	}
	return code
}

// stopped is why the context ended.
type stopped struct {
	signal os.Signal
	code   int
}

func (s *stopped) Error() string { return fmt.Sprintf("stopped by %v", s.signal) }

// signals returns a context that ends at the first SIGINT or SIGTERM: commands
// say how far they came, and how to go on. The second one ends the process.
func signals() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	ch := make(chan os.Signal, 2)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		for first := true; ; first = false {
			s := &stopped{<-ch, term.ExitInterrupt}
			if s.signal == syscall.SIGTERM {
				s.code = term.ExitTerminated
			}
			if !first {
				os.Exit(s.code)
			}
			cancel(s)
		}
	}()
	return ctx, func() { signal.Stop(ch); cancel(nil) }
}

// The groups of the help page.
const (
	groupSend  = "send"
	groupLook  = "look"
	groupRun   = "run"
	groupSetup = "setup"
)

// commands is every command, by its group of the help page; a new one is added
// here.
func commands(p *program) map[string][]*cobra.Command {
	return map[string][]*cobra.Command{
		groupSend:  {newSend(p), newSchedule(p), newReschedule(p), newTrigger(p), newCancel(p), newUser(p)},
		groupLook:  {newShow(p), newWhy(p), newList(p), newCampaign(p), newTail(p), newFailed(p), newExplain(p)},
		groupRun:   {newDoctor(p), newUI(p), newLag(p), newRates(p), newBackup(p), newArchive(p), newDLQ(p), newJob(p), newReconcile(p), newAudit(p), newLane(p), newSuppression(p), newCircuit(p), newProvider(p), newCaller(p), newURL(p), newSim(p), newLoad(p), newDashboards(p), newPlan(p)},
		groupSetup: {newContext(p), newVersion(p), newDebug(p)},
	}
}

func newRoot(p *program) *cobra.Command {
	root := &cobra.Command{
		Use: "notifyctl", Version: version,
		Short: "Send notifications and see what became of them",
		Long: `notifyctl sends notifications through notifyd, shows what became of them, and
helps those who run it.

Start a server with "notifyd dev", which also writes a context for notifyctl, and
  notifyctl send --channel push --user ann --title Hello --body 'It works' --wait`,
	}
	root.InitDefaultVersionFlag() // else "help" does not list it
	root.SetIn(p.in)
	root.SetOut(p.out)
	root.SetErr(p.err)
	root.AddGroup(
		&cobra.Group{ID: groupSend, Title: "Send:"},
		&cobra.Group{ID: groupLook, Title: "Look:"},
		&cobra.Group{ID: groupRun, Title: "Operate:"},
		&cobra.Group{ID: groupSetup, Title: "Set up:"},
	)
	for group, list := range commands(p) {
		for _, c := range list {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	root.AddCommand(topics()...)
	root.SetHelpCommandGroupID(groupSetup)
	root.SetCompletionCommandGroupID(groupSetup)
	p.global.add(p, root)
	root.PersistentPreRunE = func(c *cobra.Command, args []string) error {
		p.running, p.args = c, args
		return p.global.check(c.Flags().Changed("timeout"), p.getenv("NOTIFYCTL_TIMEOUT"))
	}
	term.Polish(root)
	return root
}

// topics are pages of help that belong to no command.
func topics() []*cobra.Command {
	return []*cobra.Command{
		{Use: "exit-codes", Short: "What the exit codes mean", Long: `Exit codes are part of the interface:

    0  done; an empty list is done as well
    1  something failed
    2  wrong flags or arguments, refused input, or a missing --yes
    3  some items failed; which ones was printed
    4  no valid token, or it lacks a scope
    5  no such thing
    6  the state forbids it, or an idempotency key came with another body
    7  the server is away, too busy or too slow; try the same command again
    8  a wait ended before the thing did
    9  a check found something
   10  stopped by a guard
   99  a threshold of a load run was missed
  130  Ctrl-C
  143  SIGTERM

After 7, and after an interrupted sending, nobody knows whether the request was
taken. "send" and "trigger create" print the idempotency key to give then: with the
same key it is taken once, however often it is sent, for 24 hours. A batch and a
fan-out know by themselves how far they came. Every other command says what is to
be, and may be repeated as it is; only "caller rotate-secret" makes another secret.
4, 5 and 6 do not change by trying again.`},
		{Use: "formats", Short: "Output formats, filters and times", Long: `Results go to standard output in the format of -o:

  table  for people; columns may change between versions
  json   one indented document; a list is {"items": [...]}
  jsonl  one line of JSON an item; streams such as tail write each at once
  yaml   one document

--jq filters the JSON form of any result without jq being installed, with jsonl each
line:

  notifyctl ls --user ann --jq '.items[] | select(.status == "FAILED") | .notification_id'

Everything else goes to standard error: progress (only to a terminal), remarks
(-q turns them off), and errors. With -o json or jsonl an error is one JSON line:

  {"error":{"code":"...","message":"...","hint":["..."],"exit":5,"retryable":false}}

Times in tables are relative; --time-format iso or local writes them in full, and
the JSON forms are always RFC 3339. Where a time is given, it is RFC 3339, "now",
or a distance such as +10m, -2h or "3d ago".`},
		{Use: "env", Short: "Environment variables and files", Long: `A flag wins over its environment variable, and that over the context.

  NOTIFYCTL_CONTEXT     context to use                            --context
  NOTIFYCTL_SERVER      URL of the server                         --server
  NOTIFYCTL_TOKEN_FILE  file with the token                       --token-file
  NOTIFYCTL_TOKEN       the token itself
  NOTIFYCTL_TIMEOUT     longest wait for an answer, like 1m       --timeout
  NO_COLOR              no colours                                --color never
  TZ                    zone of times written as local
  HTTPS_PROXY, HTTP_PROXY, NO_PROXY   proxies; never for loopback

A server given without a context does not get the current context's token.

Files:

  $XDG_CONFIG_HOME/notifyctl/config.yaml   contexts            (~/.config)
  $XDG_CONFIG_HOME/notifyctl/tokens/       tokens kept by "context add --token-file -"
  $XDG_STATE_HOME/notifyctl/context        the current one     (~/.local/state)
  $XDG_STATE_HOME/notifyctl/campaigns/     how far each "send --fanout" came`},
	}
}
