// Command bench measures the figures of docs/performance.md: P1 (the load
// generator alone), P2 (fan-outs accepted), P3 (batches accepted), P4 (single
// requests), P5 (pushes to APNs), P6 (the whole chain), P7 (timers) and P8
// (callbacks of triggers); with -engine it measures P10 (real servers) instead. Each figure has its reference
// measured in the same run, in turns with it where both are rates; the best of
// the rounds counts, for the machine may be shared.
//
// It prints a table and one line of key=value pairs, and writes
// bench/results.json. It exits 1 only when a measurement itself fails: a figure
// below its need is said, not hidden.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

type options struct {
	only    string
	short   bool
	out     string
	dir     string
	profile string
	users   int
	open    time.Duration
	round   time.Duration
	closed  time.Duration
	with    string
	rounds  int
	rate    float64
	verbose bool

	engines []string // name=address
	java    string
	jars    string
}

// figure measures one line or more of the table.
type figure struct {
	id  string
	run func(ctx context.Context, b *bench) error
}

var figures = []figure{{"P1", generator}, {"P2", fanouts}, {"P3", batches}, {"P4", singles}, {"P5", pushes}, {"P6", chain}, {"P7", timers}, {"P8", callbacks}}

func main() {
	if len(os.Args) == 2 && os.Args[1] == pushSinkArg {
		if err := pushSinkMain(); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	var o options
	flag.StringVar(&o.only, "only", "", "comma-separated figures, e.g. P2,P6, or keys of the closing line with -engine; empty: all")
	flag.BoolVar(&o.short, "short", false, "shorter runs, fewer users and timers; two minutes in all")
	flag.StringVar(&o.out, "out", "bench/results.json", "where the results are written; empty: nowhere")
	flag.StringVar(&o.dir, "dir", "", "data folder, kept; empty: a temporary one, removed")
	flag.StringVar(&o.profile, "profile", "", "folder for CPU, allocation, block and mutex profiles of the measured spans")
	flag.IntVar(&o.users, "users", 0, "users of P6; 0: 5,000,000, short 200,000")
	flag.DurationVar(&o.open, "open", 0, "length of P6's open loop; 0: 20 s, short 4 s")
	flag.DurationVar(&o.round, "round", 0, "length of a round of P2, P3, P4, P5 and P8, longer for a profile; 0: 3 s, short 1 s")
	flag.DurationVar(&o.closed, "closed", 0, "length of P6's closed loop; 0: 10 s, short 3 s")
	flag.StringVar(&o.with, "with", "", "where P6's addresses come from, profiles or request; empty: first the one, then the other")
	flag.IntVar(&o.rounds, "rounds", 0, "rounds of each side; 0: 5, short 2")
	flag.Float64Var(&o.rate, "rate", 5e6, "receivers per second of P6's open loop")
	flag.BoolVar(&o.verbose, "v", false, "print every round and the server's log")
	flag.Func("engine", "name=address of kafka, cassandra, redis or postgres, may be repeated: measures P10 on it and nothing else", func(s string) error {
		o.engines = append(o.engines, s)
		return nil
	})
	flag.StringVar(&o.java, "java", "java", "runs Kafka's own tools for P10")
	flag.StringVar(&o.jars, "jars", "", "class path of Kafka's own tools for P10")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := measure(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func measure(ctx context.Context, o options) error {
	def := func(p *int, long, short int) {
		if *p == 0 {
			if *p = long; o.short {
				*p = short
			}
		}
	}
	if len(o.engines) > 0 {
		def(&o.rounds, 5, 1)
	}
	def(&o.rounds, 5, 2)
	def(&o.users, 5_000_000, 200_000)
	if o.open == 0 {
		if o.open = 20 * time.Second; o.short {
			o.open = 4 * time.Second
		}
	}
	if o.closed == 0 {
		if o.closed = 10 * time.Second; o.short {
			o.closed = 3 * time.Second
		}
	}
	if o.with != "" && o.with != string(inProfiles) && o.with != string(inRequest) {
		return fmt.Errorf("addresses come from profiles or request, not from %q", o.with)
	}
	only := strings.FieldsFunc(strings.ToUpper(o.only), func(r rune) bool { return r == ',' || r == ' ' })
	for _, id := range only {
		if len(o.engines) == 0 && !slices.ContainsFunc(figures, func(f figure) bool { return f.id == id }) {
			return fmt.Errorf("no figure is called %q", id)
		}
	}
	b := &bench{options: o}
	if o.dir == "" {
		dir, err := os.MkdirTemp("", "notifyd-bench-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		b.dir = dir
	} else if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return err
	}
	if len(o.engines) > 0 {
		if err := servers(ctx, b); err != nil {
			return err
		}
		return b.report()
	}
	for _, f := range figures {
		if len(only) > 0 && !slices.Contains(only, f.id) {
			continue
		}
		began, load := time.Now(), rig.LoadAverage()
		if err := f.run(ctx, b); err != nil {
			return fmt.Errorf("%s: %w", f.id, err)
		}
		b.notef("%s took %.0f s; load average %s before, %s after", f.id, time.Since(began).Seconds(), load, rig.LoadAverage())
	}
	return b.report()
}

// report prints the table and the line, and writes the file.
func (b *bench) report() error {
	b.table(os.Stdout)
	if b.out != "" {
		if err := b.write(b.out); err != nil {
			return err
		}
	}
	fmt.Println(b.line())
	return nil
}
