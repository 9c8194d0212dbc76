// Command notifyd is the runtime. It accepts notifications, stores them, and delivers them to push, SMS
// and mail providers.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"
	_ "time/tzdata" // for quiet hours in images without time zone files

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/term"
)

// linkedVersion is the version. The linker sets it (make build).
var linkedVersion string

var version = term.Version(linkedVersion)

// program holds the parts of the environment that commands use. Tests replace them.
type program struct {
	out, err          io.Writer
	getenv            func(string) string
	environ           []string
	setStandardLogger func(*slog.Logger) // replaces the standard loggers of the process
}

func main() {
	restrictFileModes()
	p := &program{out: os.Stdout, err: os.Stderr, getenv: os.Getenv, environ: os.Environ(), setStandardLogger: redirectStandardLoggers}
	ctx, stop := signals()
	c, err := newRoot(p).ExecuteContextC(ctx)
	err = addAdvice(c, err)
	stop()
	if err != nil {
		term.Report(p.err, err, "")
	}
	os.Exit(term.ExitCode(err))
}

// signals returns a context that ends at the first SIGINT or SIGTERM. The process then drains. A second
// signal ends the process at once.
func signals() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	ch := make(chan os.Signal, 2)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM)
	go handleSignals(ch, cancel, os.Exit)
	return ctx, cancel
}

// sameSignalWithin is a time after the first signal. Another signal within this time counts as a copy
// of the first signal. Some supervisors send the signal both to the process and to its group. Without
// this rule the copy would end a drain that has just begun.
const sameSignalWithin = 500 * time.Millisecond

// handleSignals calls the function drain at the first signal. At the first signal that arrives at
// least sameSignalWithin later, it calls the function exit and returns.
func handleSignals(signals <-chan os.Signal, drain func(), exit func(code int)) {
	<-signals
	first := time.Now()
	drain()
	for s := range signals {
		if time.Since(first) < sameSignalWithin {
			continue
		}
		if s == syscall.SIGTERM {
			exit(term.ExitTerminated)
		} else {
			exit(term.ExitInterrupt)
		}
		return
	}
}

func newRoot(p *program) *cobra.Command {
	root := &cobra.Command{
		Use: "notifyd", Version: version,
		Short: "Notifications that arrive: now or later, once, and accounted for",
		Long: `notifyd takes notifications over HTTP, keeps them in a log, and brings them to
push, SMS and mail providers, with retries, dead letters and a status for each.

Start with "notifyd dev": everything in one process, with simulated providers.`,
	}
	root.SetOut(p.out)
	root.SetErr(p.err)
	root.AddCommand(newDev(p), newServe(p), newSimulate(p), newConfig(p), newToken(p), newMigrate(p), newRestore(p), newRestoreServers(p), newHealthcheck(p), newVersion(p))
	term.Polish(root)
	return root
}

func newVersion(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version and how it was built", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			fmt.Fprintf(p.out, "notifyd %s\n", version)
			if info, ok := debug.ReadBuildInfo(); ok {
				fmt.Fprintf(p.out, "  go      %s\n", info.GoVersion)
				for _, s := range info.Settings {
					switch s.Key {
					case "GOOS", "GOARCH", "CGO_ENABLED", "-tags":
						fmt.Fprintf(p.out, "  %-7s %s\n", s.Key, s.Value)
					}
				}
				for _, d := range info.Deps {
					switch d.Path {
					case "github.com/twmb/franz-go", "github.com/twmb/franz-go/pkg/kfake", "github.com/cockroachdb/pebble/v2":
						fmt.Fprintf(p.out, "  dep     %s %s\n", d.Path, d.Version)
					}
				}
			}
			return nil
		},
	}
}

// newLogger returns a logger that writes to w, with secrets and addresses masked.
func newLogger(w io.Writer, cfg *app.Config) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(cfg.Logging.Level)) // Config.validate has checked the level
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: redact}
	if cfg.Logging.Format == "text" {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}

// recentLog keeps the last lines of the log for debug bundles. Secrets are removed from the lines, as
// in the log. It is safe for concurrent use.
type recentLog struct {
	mu    sync.Mutex // guards the fields below
	lines []string   // a ring once it contains recentLines lines
	next  int        // index of the oldest line, which the next Write replaces
}

// recentLines is the number of lines that recentLog keeps. recentBytes is the maximum length of a line
// in bytes.
const recentLines, recentBytes = 500, 4096

func (r *recentLog) Write(b []byte) (int, error) {
	line := string(bytes.TrimSuffix(b[:min(len(b), recentBytes)], []byte("\n")))
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.lines) < recentLines {
		r.lines = append(r.lines, line)
	} else {
		r.lines[r.next] = line
		r.next = (r.next + 1) % recentLines
	}
	return len(b), nil
}

// Lines returns the lines that are kept, the oldest first.
func (r *recentLog) Lines() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(slices.Clone(r.lines[r.next:]), r.lines[:r.next]...)
}

// redirectStandardLoggers makes the parameter log the default logger of the packages log and slog.
// Libraries write to these packages. A line of the package log becomes a warning, because libraries
// use it only when something is wrong.
func redirectStandardLoggers(log *slog.Logger) {
	slog.SetLogLoggerLevel(slog.LevelWarn)
	slog.SetDefault(log)
}

// isRequestedStop reports whether err is nil, or only means that ctx was cancelled.
func isRequestedStop(ctx context.Context, err error) bool {
	return err == nil || (ctx.Err() != nil && errors.Is(err, context.Canceled))
}
