package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// sampleEvery is the time between two samples of a step. A sample reads /proc and the ledger. It
// does not read the metrics of the processes, because that would use part of their share of a core.
const sampleEvery = 250 * time.Millisecond

// step starts n processes of the load's role, sends the messages, waits until all messages have
// ended, and stops the processes. The number of messages is the usual number times factor. step
// returns the figures.
func (s *scaleout) step(ctx context.Context, k kind, n int, factor float64) figures {
	count := max(int(float64(k.count)*s.scale*factor), 100)
	procs := s.start(ctx, k, n)
	pids := map[string][]int{"generator": {os.Getpid()}}
	maps.Copy(pids, s.pids)
	for _, p := range procs {
		pids[processes] = append(pids[processes], p.Pid())
	}

	// Before the load, measure how many requests the processes send while they have no messages.
	before := s.metrics(ctx, procs)
	calm := []sample{take(pids, 0)}
	rig.Ok(rig.Pause(ctx, s.calm()))
	calm = append(calm, take(pids, 0)) // the two calls of s.metrics are not between the two samples, so their cost is not measured
	rest := s.metrics(ctx, procs)

	base := s.countDone(ctx, k)
	loaded := s.metrics(ctx, procs)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	accepted := make(chan error, 1)
	var p promised
	go func() { accepted <- rig.Try(func() { p = s.offer(ctx, k, count) }) }()
	var samples []sample
	var waited rig.Endurance
	for until := int64(count); ; {
		at := take(pids, s.countDone(ctx, k)-base)
		samples = append(samples, at)
		for _, one := range procs {
			rig.Ok(one.Ended())
		}
		select {
		case err := <-accepted:
			rig.Ok(err)
			accepted, until = nil, p.count
		default:
		}
		if accepted == nil && (at.done >= until || waited.Over()) {
			break
		}
		rig.Ok(rig.Pause(ctx, sampleEvery))
	}
	ended := 0.0
	var after map[string]float64
	for waited = (rig.Endurance{}); ; {
		after = s.metrics(ctx, procs)
		if ended = k.ended(after) - k.ended(loaded); ended >= float64(p.count) || waited.Over() {
			break
		}
		rig.Ok(rig.Pause(ctx, sampleEvery))
	}
	f := figures{
		load: k.name, processes: n, count: p.count, share: cmp.Or(s.share, k.share), machine: float64(runtime.NumCPU()), samples: samples, from: p.from,
		asked: minus(after, loaded), calm: calm, rest: minus(rest, before), ended: int64(ended),
	}
	for _, one := range procs {
		f.rss = append(f.rss, rig.RSS(one.Pid()))
	}
	f.lost, f.twice = s.check(ctx, p)
	f.lost += max(p.count-f.ended, 0)
	f.twice += max(f.ended-p.count, 0)
	f.lost += int64(count) - p.count // messages that notifyd refused for good
	for _, one := range procs {
		rig.Ok(one.Stop())
		s.f.Remove(one)
	}
	s.removeShares(ctx)
	return f
}

// calm returns the duration of the measurement without load.
func (s *scaleout) calm() time.Duration {
	if s.short {
		return 3 * time.Second
	}
	return 10 * time.Second
}

// start starts n processes and waits until each has the same number of partitions. Then it limits
// each process to its share of a core.
func (s *scaleout) start(ctx context.Context, k kind, n int) (procs []*rig.Process) {
	for range n {
		s.spent++
		procs = append(procs, rig.Must(s.f.Run(ctx, fmt.Sprintf("scaleout-%d-%s", s.spent, strings.ReplaceAll(k.role, ":", "-")), k.role, nil)))
	}
	if k.group != "" {
		rig.Ok(rig.Until(ctx, fmt.Sprintf("the %d members of %s have the same number of partitions", n, k.group), func() (bool, error) {
			return s.balanced(ctx, k.group, n)
		}))
	}
	for _, p := range procs {
		share, err := rig.NewShare(s.Keyspace+"-"+p.Name, cmp.Or(s.share, k.share))
		s.shares = append(s.shares, share)
		rig.Ok(err)
		rig.Ok(share.Hold(p.Pid()))
	}
	return procs
}

// removeShares removes the control groups of processes that have ended.
func (s *scaleout) removeShares(ctx context.Context) {
	for _, one := range s.shares {
		one.Remove(ctx)
	}
	s.shares = nil
}

// balanced returns true if a consumer group is stable and has n members with the same number of
// partitions of each topic.
func (s *scaleout) balanced(ctx context.Context, group string, n int) (bool, error) {
	all, err := s.adm.DescribeGroups(ctx, group)
	if err != nil {
		return false, err
	}
	g := all[group]
	if g.State != "Stable" || len(g.Members) != n {
		return false, nil
	}
	for _, m := range g.Members {
		a, ok := m.Assigned.AsConsumer()
		if !ok {
			return false, nil
		}
		for _, t := range a.Topics {
			if len(t.Partitions) != partitions/n {
				return false, nil
			}
		}
	}
	return true, nil
}

// metrics returns the sum of each metric over the processes.
func (s *scaleout) metrics(ctx context.Context, procs []*rig.Process) map[string]float64 {
	sum := map[string]float64{}
	for _, p := range procs {
		for name, v := range rig.Must(p.Metrics(ctx)) {
			sum[name] += v
		}
	}
	return sum
}

func minus(a, b map[string]float64) map[string]float64 {
	out := map[string]float64{}
	for name, v := range a {
		out[name] = v - b[name]
	}
	return out
}

// sample is a measurement at one moment: the number of messages that were done by then, and the
// processor time that was used by then.
type sample struct {
	at   time.Time
	done int64
	cpu  map[string]time.Duration // name of a group of processes -> its processor time
}

func take(pids map[string][]int, done int64) sample {
	s := sample{at: time.Now(), done: done, cpu: rig.CPU(pids)}
	s.cpu[others] = rig.MachineCPU()
	for name := range pids {
		s.cpu[others] -= s.cpu[name]
	}
	return s
}

// others is the name of a group of processes: all processes of the machine that are not part of the
// run.
const others = "others"
