// Command notifyctl sends notifications, shows their outcomes, and helps operators of notifyd.
// Data goes to standard output. Everything else (notes, progress, errors) goes to standard error.
//
// Start reading in main.go, which lists every command. Each command has its own file. globals.go
// contains the flags, the context and the client that all commands share.
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

// linkedVersion is the version. The linker sets it (make build).
var linkedVersion string

var version = term.Version(linkedVersion)

// program contains the environment of a command (streams, clock, terminal) and its global flags.
// Each program runs only one command.
type program struct {
	out, err io.Writer
	in       io.Reader
	getenv   func(string) string
	now      func() time.Time

	inTerminal, outTerminal, errTerminal bool
	width                                int // width of the output terminal, in characters; 0: there is no terminal

	global            globals
	running           *cobra.Command         // the command; nil until its flags are parsed
	args              []string               // its arguments
	drawing           atomic.Bool            // a live screen is shown, and notes would damage it
	auditID           atomic.Pointer[string] // id of the audit log row of the last change; nil: no change
	warnedUnencrypted sync.Once              // prints the warning about an unencrypted token only once
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
		if s, ok := errors.AsType[*signalStop](context.Cause(ctx)); ok {
			code = s.code
		}
		e, ok := errors.AsType[*term.Error](err)
		if !ok {
			return code // a person who pressed Ctrl-C needs no error message
		}
		err = &term.Error{Exit: code, Err: e.Err, Next: e.Next}
	}
	if err != nil {
		term.Report(p.err, err, p.global.output)
	}
	return code
}

// signalStop is the cancellation cause of a context that a signal has cancelled.
type signalStop struct {
	signal os.Signal
	code   int
}

func (s *signalStop) Error() string { return fmt.Sprintf("stopped by %v", s.signal) }

// signals returns a context that ends at the first SIGINT or SIGTERM. Then the command can print
// how much it has done and how to continue. The second signal ends the process. signals starts a
// goroutine that never ends.
func signals() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	ch := make(chan os.Signal, 2)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		for first := true; ; first = false {
			s := &signalStop{<-ch, term.ExitInterrupt}
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

// The groups in which the help page lists the commands.
const (
	groupSend  = "send"
	groupLook  = "look"
	groupRun   = "run"
	groupSetup = "setup"
)

// commands returns all commands, by the groups of the help page. Add a new command here.
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
		Short: "Send notifications and show their outcomes",
		Long: `notifyctl sends notifications through notifyd, shows their outcomes, and helps
operators of notifyd.

Start a server with "notifyd dev", which also writes a context for notifyctl. Then:
  notifyctl send --channel push --user ann --title Hello --body 'It works' --wait`,
	}
	root.InitDefaultVersionFlag() // otherwise "help" does not list --version
	root.SetIn(p.in)
	root.SetOut(p.out)
	root.SetErr(p.err)
	root.AddGroup(
		&cobra.Group{ID: groupSend, Title: "Send:"},
		&cobra.Group{ID: groupLook, Title: "Show:"},
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

// topics returns the help pages that describe no command.
func topics() []*cobra.Command {
	return []*cobra.Command{
		{Use: "exit-codes", Short: "What the exit codes mean", Long: `Exit codes are part of the interface:

    0  success, also if a list is empty
    1  something failed
    2  wrong flags or arguments, refused input, or a missing --yes
    3  some items failed; the output says which
    4  the token is missing or invalid, or it lacks a scope
    5  not found
    6  the state does not allow it, or an idempotency key was used with another body
    7  the server is unreachable, too busy or too slow; run the same command again
    8  --timeout ended before the outcome was known
    9  a check found a problem
   10  a job stopped itself (see dlq replay)
   99  a threshold of a load run was missed
  130  Ctrl-C
  143  SIGTERM

After exit 7, and after an interrupted send, it is unknown whether the server accepted
the request. "send" and "trigger create" then print an idempotency key: with this key
the request is accepted only once within 24 hours, however often it is sent. A batch and
a fan-out know how far they got. Every other command can be repeated as it is; only
"caller rotate-secret" creates another secret. A retry does not help after 4, 5 and 6.`},
		{Use: "formats", Short: "Output formats, filters and times", Long: `Results go to standard output in the format of -o:

  table  for people; columns may change between versions
  json   one indented document; a list is {"items": [...]}
  jsonl  one line of JSON per item; streams such as tail write each line at once
  yaml   one document

--jq filters the JSON form of any result, with jsonl each line. It is built in, jq need
not be installed:

  notifyctl ls --user ann --jq '.items[] | select(.status == "FAILED") | .notification_id'

Everything else goes to standard error: progress (only on a terminal), notes (-q turns
them off), and errors. With -o json or jsonl an error is one JSON line:

  {"error":{"code":"...","message":"...","hint":["..."],"exit":5,"retryable":false}}

Times in tables are relative; --time-format iso or local prints full times. JSON and
YAML always use RFC 3339. A flag that takes a time accepts RFC 3339, "now", or a
distance such as +10m, -2h or "3d ago".`},
		{Use: "env", Short: "Environment variables and files", Long: `A flag wins over its environment variable, and the variable wins over the context.

  NOTIFYCTL_CONTEXT     context to use                            --context
  NOTIFYCTL_SERVER      URL of the server                         --server
  NOTIFYCTL_TOKEN_FILE  file with the token                       --token-file
  NOTIFYCTL_TOKEN       the token itself
  NOTIFYCTL_TIMEOUT     longest wait for an answer, such as 1m    --timeout
  NO_COLOR              no colours                                --color never
  TZ                    zone of local times
  HTTPS_PROXY, HTTP_PROXY, NO_PROXY   proxies; never used for loopback

A server given without a context does not get the current context's token.

Files:

  $XDG_CONFIG_HOME/notifyctl/config.yaml   contexts            (~/.config)
  $XDG_CONFIG_HOME/notifyctl/tokens/       tokens kept by "context add --token-file -"
  $XDG_STATE_HOME/notifyctl/context        current context     (~/.local/state)
  $XDG_STATE_HOME/notifyctl/campaigns/     progress of each "send --fanout"`},
	}
}
