// Command overload sends a real notifyd many more fan-outs than notifyd can accept. It shows four
// things:
//
//   - Under overload notifyd accepts almost as many receivers a second as before.
//   - Single requests of the categories otp and alert stay fast.
//   - notifyd refuses the other fan-outs at once, with Retry-After.
//   - A campaign that the client library sends during the overload is accepted completely.
//
// overload first measures single requests while notifyd is idle. Then it measures the capacity: how
// many receivers of fan-outs notifyd accepts a second. Then it offers a multiple of the capacity
// (flag -times) for a while (flag -for). The providers run inside the process of notifyd and accept
// at once.
//
// A separate process sends the bulk load. It has the lowest priority, so that it takes no processor
// time from notifyd. The main process sends the single requests with the highest priority, and
// measures how late it sends them.
//
// The last line of the output has key=value pairs. overload exits with 1 if a message was lost, a
// single request was refused, the campaign was not accepted completely, or the audit found drift.
// Without -short it also exits with 1 if a figure is outside its bound. scripts/overload.sh runs it
// on the embedded engines and on servers.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

type options struct {
	rig.Servers

	servers bool
	times   float64
	long    time.Duration
	share   float64
	set     string
	short   bool
	keep    bool
	mutant  string
	flood   string
}

const (
	// minGoodput is the lowest allowed rate of accepted receivers under overload, as a share of
	// the capacity.
	minGoodput = 0.8
	// maxSlowdown bounds the p99 of single requests under overload. It is a multiple of the p99
	// while notifyd is idle.
	maxSlowdown = 2
	// minIdleP99 replaces the p99 of the idle notifyd if that is smaller. A p99 below 5 ms depends
	// mainly on the timers of the kernel.
	minIdleP99 = 5 * time.Millisecond
	// receivers is the number of receivers of each fan-out of the bulk load. campaignPart is the
	// number of receivers of each part of the campaign.
	receivers, campaignPart = 10_000, 5_000
	campaignParts           = 20
)

func main() {
	var o options
	flag.BoolVar(&o.servers, "servers", false, "on Kafka, Cassandra, Redis and PostgreSQL instead of the embedded engines")
	flag.Float64Var(&o.times, "times", 4, "offered load, as a multiple of the capacity")
	flag.DurationVar(&o.long, "for", time.Minute, "how long the overload lasts")
	flag.Float64Var(&o.share, "share", 0, "limit notifyd to this number of cores (needs root); 0: all cores")
	flag.StringVar(&o.set, "set", "", "further settings of notifyd: key=value pairs, separated by spaces")
	flag.BoolVar(&o.short, "short", false, "10 s of overload; figures are printed but not judged")
	flag.BoolVar(&o.keep, "keep", false, "keep data and logs")
	flag.StringVar(&o.flood, "flood", "", "internal: run as the process that sends the bulk load; its configuration as JSON")
	rig.MutantFlag(&o.mutant, "overload")
	o.Flags()
	flag.Parse()
	if o.flood != "" {
		if err := flood(context.Background(), o.flood, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "overload:", err)
			os.Exit(2)
		}
		return
	}
	rig.Main("overload", o.keep, o.run)
}

func (o *options) run(ctx context.Context, dir string) (ok bool) {
	rest, most := 20*time.Second, 15*time.Second
	if o.short {
		rest, most, o.long = 5*time.Second, 5*time.Second, 10*time.Second
	}
	bin := rig.Must(rig.Notifyd(ctx, dir, "overload", o.mutant))
	v, end := o.start(ctx, bin, dir)
	defer end()

	raisePriority()
	began := time.Now()
	warm := probe(ctx, v.Client(), 3*time.Second) // not measured: the first requests open connections and are slow
	idle := probe(ctx, v.Client(), rest)
	fmt.Printf("at rest:  %s\n", idle)
	f := bulk{URL: v.URL(), Token: v.TokenFile(), Receivers: receivers, AtOnce: 8, Seconds: 3}
	heated := f.run(ctx)
	f.Seconds = most.Seconds()
	closed := f.run(ctx)
	capacity := float64(closed.Accepted) / closed.Took
	fmt.Printf("capacity: %s\n", closed)

	f.AtOnce, f.Rate, f.Seconds = 0, o.times*capacity/receivers, o.long.Seconds()
	fmt.Printf("overload: %.0f fan-outs of %d a second are offered for %s, machine load %s\n", f.Rate, receivers, o.long, rig.LoadAverage())
	var busy probeResult
	var sent api.FanoutTotal
	var sendErr error
	var wg sync.WaitGroup
	wg.Go(func() { busy = probe(ctx, v.Client(), o.long) })
	wg.Go(func() { sent, sendErr = campaign(ctx, v.Client(), o.long/10) })
	flooded := f.run(ctx)
	wg.Wait()
	goodput := float64(flooded.Accepted) / flooded.Took
	fmt.Printf("          %s\n          %s\n", flooded, busy)
	if sendErr != nil {
		fmt.Println("          the campaign stopped:", sendErr)
	}

	lost := o.countUnfinished(ctx, v, heated, closed, flooded) + countUndelivered(ctx, v.Client(), warm, idle, busy)
	rep := rig.Must(v.Audit(ctx))
	whole := sendErr == nil && sent.Accepted == campaignParts*campaignPart
	bound := maxSlowdown * max(idle.otp.p99, minIdleP99)
	fast := busy.otp.p99 <= bound && busy.alert.p99 <= bound
	refused := busy.otp.failed + busy.alert.failed
	ok = lost == 0 && rep.Drift == 0 && whole && refused == 0 && (o.short || fast && goodput >= minGoodput*capacity)
	engines := "embedded"
	if o.servers {
		engines = "servers"
	}
	fmt.Printf("overload engines=%s capacity=%.0f offered=%.0f goodput=%.0f goodput_ratio=%.2f refused_early=%d timeouts=%d otp_idle_p99_ms=%.1f otp_p99_ms=%.1f alert_p99_ms=%.1f otp_refused=%d generator_late_p99_ms=%.1f campaign_parts=%d campaign_ended=%v lost=%d drift=%d share=%.2f load=%s seconds=%.0f judged=%v ok=%v\n",
		engines, capacity, f.Rate*receivers, goodput, goodput/capacity, flooded.Refused, flooded.Timeouts, ms(idle.otp.p99), ms(busy.otp.p99), ms(busy.alert.p99),
		refused, ms(busy.late), sent.Parts, whole, lost, rep.Drift, o.share, rig.LoadAverage(), time.Since(began).Seconds(), !o.short, ok)
	return ok
}

// start starts one notifyd with all roles and with providers inside the process. The caller must
// call the returned function, which ends notifyd and removes what start has set up.
func (o *options) start(ctx context.Context, bin, dir string) (v *rig.Victim, end func()) {
	env := []string{"NOTIFYD__PROVIDERS__STUB=true", "NOTIFYD__LOGGING__LEVEL=info"}
	for _, kv := range strings.Fields(o.set) {
		key, value, _ := strings.Cut(kv, "=")
		env = append(env, "NOTIFYD__"+strings.ReplaceAll(strings.ToUpper(key), ".", "__")+"="+value)
	}
	var ends []func()
	end = func() {
		for i := len(ends) - 1; i >= 0; i-- {
			ends[i]()
		}
	}
	var share *rig.Share
	if o.share > 0 {
		var err error
		share, err = rig.NewShare(fmt.Sprintf("notifyd-overload-%d", os.Getpid()), o.share)
		ends = append(ends, func() { share.Remove(ctx) })
		rig.Ok(err)
	}
	if o.servers {
		ends = append(ends, o.Apart(ctx, "overload"))
		f, err := rig.NewFleet(ctx, rig.FleetConfig{Bin: bin, Dir: dir, Engines: o.YAML(time.Second, 2*time.Second), First: "all", Env: env})
		ends = append(ends, f.End)
		rig.Ok(err)
		v = f.V
	} else {
		var err error
		v, err = rig.New(ctx, rig.Config{Bin: bin, Dir: dir, Env: env})
		ends = append(ends, v.End)
		rig.Ok(err)
		rig.Ok(v.Start(ctx, ""))
	}
	if share != nil {
		pid, _ := v.Pids()
		rig.Ok(share.Hold(pid))
	}
	return v, end
}

// raisePriority gives this process the highest priority. The process plays callers on other
// machines, so its wait for a core must not count as latency of notifyd. Without root the priority
// does not change; then generator_late_p99_ms shows how long this process waits. Call raisePriority
// only after notifyd was started; otherwise notifyd would inherit the priority.
func raisePriority() {
	threads, err := os.ReadDir("/proc/self/task") // on Linux each thread has its own priority
	if err != nil {
		return
	}
	for _, t := range threads {
		if tid, err := strconv.Atoi(t.Name()); err == nil {
			_ = syscall.Setpriority(syscall.PRIO_PROCESS, tid, -20) // fails without root
		}
	}
}

// campaign waits for the given delay. Then it sends a fan-out in parts through the client library,
// as a caller would.
func campaign(ctx context.Context, cl *api.Client, delay time.Duration) (api.FanoutTotal, error) {
	if err := rig.Pause(ctx, delay); err != nil {
		return api.FanoutTotal{}, err
	}
	return cl.SendFanout(ctx, api.FanoutSend{
		Fanout: api.Fanout{
			Channel: "push", Category: "marketing", Campaign: "cmp_" + notify.NewBase(time.Now()).String(),
			Content: api.Content{Body: "A campaign under way."},
		},
		PartSize: campaignPart,
		Receivers: func(yield func(api.Receiver, error) bool) {
			for i := range campaignParts * campaignPart {
				user := fmt.Sprintf("c%08d", i)
				if !yield(api.Receiver{UserID: user, Address: "fcm:" + user}, nil) {
					return
				}
			}
		},
	})
}

// countUnfinished waits until every receiver of the accepted fan-outs has a terminal state, and
// returns 0. It panics, as rig.Ok does, if a fan-out has not ended within rig.Patience.
func (o *options) countUnfinished(ctx context.Context, v *rig.Victim, all ...floodResult) (n int64) {
	var fans []acceptedFanout
	for i := range all {
		fans = append(fans, all[i].Fans...)
	}
	missing := make([]int64, len(fans))
	rig.InSteps(ctx, len(fans), 1, 4, func(ctx context.Context, i, _ int) {
		rig.Ok(rig.Until(ctx, "fan-out "+fans[i].ID+" has ended", func() (bool, error) {
			sum, err := v.Client().Summary(ctx, fans[i].ID, api.Page{Limit: 2 * receivers})
			if err != nil && notify.KindOf(err) != notify.KindUnavailable {
				return false, err
			}
			left := int64(fans[i].Accepted)
			for state, count := range sum.Counts {
				if s, _ := notify.ParseState(state); s.Terminal() {
					left -= int64(count)
				}
			}
			missing[i] = max(left, 0)
			return err == nil && left <= 0, nil
		}))
	})
	for _, left := range missing {
		n += left
	}
	return n
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
