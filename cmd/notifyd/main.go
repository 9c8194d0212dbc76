// Command notifyd is the runtime: it takes notifications, keeps them, and
// brings them to push, SMS and mail providers.
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
	_ "time/tzdata" // quiet hours work in images without zone files

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/term"
)

// linked is set by the linker (make build).
var linked string

var version = term.Version(linked)

// program is what commands use of the outside world.
type program struct {
	out, err io.Writer
	getenv   func(string) string
	environ  []string
	standard func(*slog.Logger) // takes over the standard loggers of the process
}

func main() {
	ownFiles()
	p := &program{out: os.Stdout, err: os.Stderr, getenv: os.Getenv, environ: os.Environ(), standard: takeOver}
	ctx, stop := signals()
	c, err := newRoot(p).ExecuteContextC(ctx)
	err = advise(c, err)
	stop()
	if err != nil {
		term.Report(p.err, err, "")
	}
	os.Exit(term.ExitCode(err))
}

// signals returns a context that ends at the first SIGINT or SIGTERM: the
// process drains. The next one ends the process.
func signals() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	ch := make(chan os.Signal, 2)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM)
	go obey(ch, cancel, os.Exit)
	return ctx, cancel
}

// sameOrder is how long after a signal the next one is taken for the same
// order: some supervisors signal the process and its group, and a drain would be
// cut off when it has just begun.
const sameOrder = 500 * time.Millisecond

// obey calls drain at the first signal, and exit at the first one that comes
// later than sameOrder behind it. Then it is done.
func obey(signals <-chan os.Signal, drain func(), exit func(code int)) {
	<-signals
	first := time.Now()
	drain()
	for s := range signals {
		if time.Since(first) < sameOrder {
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

// logger writes to standard error; a daemon's output is its log.
func logger(w io.Writer, cfg *app.Config) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(cfg.Logging.Level)) // validated before
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: redact}
	if cfg.Logging.Format == "text" {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}

// recent keeps the last lines of the log, redacted as they are written, for
// debug bundles. It may be written and read by many at once.
type recent struct {
	mu    sync.Mutex
	lines []string
	next  int
}

// recentLines is how many lines are kept, recentBytes how much of one.
const recentLines, recentBytes = 500, 4096

func (r *recent) Write(b []byte) (int, error) {
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

// Lines returns them, the oldest first.
func (r *recent) Lines() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(slices.Clone(r.lines[r.next:]), r.lines[:r.next]...)
}

// takeOver makes the logger that of packages which use Go's standard ones: a line
// of the log package is a warning, for nobody writes one there about nothing.
func takeOver(log *slog.Logger) {
	slog.SetLogLoggerLevel(slog.LevelWarn)
	slog.SetDefault(log)
}

// interrupted says whether an error is only the end that was asked for.
func interrupted(ctx context.Context, err error) bool {
	return err == nil || (ctx.Err() != nil && errors.Is(err, context.Canceled))
}
