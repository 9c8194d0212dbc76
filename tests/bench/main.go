// Command bench measures the figures of docs/performance.md: P1 (the load
// generator alone), P2 (fan-outs accepted), P3 (batches accepted), P4 (single
// requests), P5 (pushes to APNs), P6 (the whole chain), P7 (timers) and P8
// (callbacks of triggers). With -engine it measures P10 (real servers) instead. With
// -engine and -chain it measures P11 (the whole chain on real servers) instead.
//
// The reference of a figure is measured in the same run. If the figure and its reference are rates,
// they are measured in turns. The best round counts, because other programs may use the machine.
//
// bench prints a table and one line of key=value pairs, and writes
// bench/results.json. It exits with 1 only if a measurement itself fails. If a figure
// misses its bound, the table and the line show it, and the exit code is still 0.
package main

import (
	"cmp"
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

	engines []string // each is name=address
	chain   bool
	java    string
	jars    string
}

// figures has the functions of P1 to P8. Each function adds one or more lines to the table.
var figures = []struct {
	id  string
	run func(ctx context.Context, b *bench)
}{{"P1", measureGenerator}, {"P2", measureFanouts}, {"P3", measureBatches}, {"P4", measureSingleRequests}, {"P5", measurePushes}, {"P6", measureChain}, {"P7", measureTimerEngine}, {"P8", measureCallbacks}}

func main() {
	if len(os.Args) == 2 && os.Args[1] == pushSinkArg {
		exit(rig.Try(pushSinkMain))
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
	flag.StringVar(&o.with, "with", "", "where P6's addresses come from, profiles or request; empty: first profiles, then request")
	flag.IntVar(&o.rounds, "rounds", 0, "rounds of each side; 0: 5, short 2")
	flag.Float64Var(&o.rate, "rate", 5e6, "receivers per second of P6's open loop")
	flag.BoolVar(&o.verbose, "v", false, "print every round and the server's log")
	flag.Func("engine", "name=address of kafka, cassandra, redis or postgres; may be repeated; measures only P10, on these servers", func(s string) error {
		o.engines = append(o.engines, s)
		return nil
	})
	flag.BoolVar(&o.chain, "chain", false, "with -engine for all four servers: measures P11, the whole chain on these servers, instead of P10")
	flag.StringVar(&o.java, "java", "java", "path of the program java, which runs Kafka's own tools for P10")
	flag.StringVar(&o.jars, "jars", "", "class path of Kafka's own tools for P10")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	exit(rig.Try(func() { measure(ctx, o) }))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// defaults sets the options that no flag has set. Short runs have other defaults.
func (o *options) defaults() {
	short := func(long, short int) int {
		if o.short {
			return short
		}
		return long
	}
	least := 2
	if len(o.engines) > 0 {
		least = 1
	}
	o.rounds = cmp.Or(o.rounds, short(5, least))
	o.users = cmp.Or(o.users, short(5_000_000, 200_000))
	o.open = cmp.Or(o.open, time.Duration(short(20, 4))*time.Second)
	o.closed = cmp.Or(o.closed, time.Duration(short(10, 3))*time.Second)
}

func measure(ctx context.Context, o options) {
	o.defaults()
	if o.with != "" && o.with != string(inProfiles) && o.with != string(inRequest) {
		panic(fmt.Errorf("-with must be profiles or request, not %q", o.with))
	}
	b := &bench{options: o}
	if o.dir == "" {
		b.dir = rig.Must(os.MkdirTemp("", "notifyd-bench-"))
		defer os.RemoveAll(b.dir)
	} else {
		rig.Ok(os.MkdirAll(o.dir, 0o700))
	}
	if len(o.engines) > 0 {
		servers(ctx, b)
		b.report()
		return
	}
	only := strings.FieldsFunc(strings.ToUpper(o.only), func(r rune) bool { return r == ',' || r == ' ' })
	for _, f := range figures {
		at := slices.Index(only, f.id)
		if at < 0 && o.only != "" {
			continue
		}
		b.figure(f.id, func() { f.run(ctx, b) })
		only = slices.DeleteFunc(only, func(id string) bool { return id == f.id })
	}
	if len(only) > 0 {
		panic(fmt.Errorf("-only: no figures are called %q", only))
	}
	b.report()
}

// figure runs one measurement and prints how long it took and the load average before and after.
func (b *bench) figure(id string, run func()) {
	began, load := time.Now(), rig.LoadAverage()
	if err := rig.Try(run); err != nil {
		panic(fmt.Errorf("%s: %w", id, err))
	}
	b.notef("%s took %.0f s; load average %s before, %s after", id, time.Since(began).Seconds(), load, rig.LoadAverage())
}

// report prints the table and the last line of the output, and writes the results to the file b.out.
func (b *bench) report() {
	b.table(os.Stdout)
	if b.out != "" {
		b.write(b.out)
	}
	fmt.Println(b.line())
}
