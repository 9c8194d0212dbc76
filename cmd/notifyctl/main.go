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
	"sync/atomic"
	"syscall"
	"time"
	_ "time/tzdata" // --tz works where the system has no zones

	xterm "golang.org/x/term"

	"github.com/spf13/cobra"

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
