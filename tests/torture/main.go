// Command torture kills a real notifyd under load, again and again, and then
// checks what it promised: every acknowledged id reaches a terminal state,
// duplicates stay within the number of receivers the store says were sent
// again, and the order of first attempts per user holds.
//
// It ends with one line of key=value pairs and exits 1 when a promise is broken.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine/pebble"
	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/notify"
)

type options struct {
	kills  int
	seed   uint64
	rate   float64
	keep   bool
	mutant string
	dir    string
	drain  time.Duration
}

// faultPoints are where a kill can be ordered, with the highest count to draw:
// points that are passed often are hit later.
var faultPoints = []struct {
	name string
	most int
}{
	{"reserved-before-append", 60}, {"appended-before-answer", 60}, {"claimed", 60}, {"before-outcome", 60},
	{"outcome-before-handon", 60}, {"handon-before-mark", 60}, {"retries-before-parked", 4}, {"timers-published", 2},
}

func main() {
	var o options
	flag.IntVar(&o.kills, "kills", 20, "how often the process is killed")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "of the moments and points")
	flag.Float64Var(&o.rate, "rate", 300, "single notifications per second")
	flag.BoolVar(&o.keep, "keep", false, "keep the data and the logs")
	flag.StringVar(&o.mutant, "mutant", "", "break a mechanism first: "+strings.Join(mutantNames(), ", "))
	flag.DurationVar(&o.drain, "drain", 90*time.Second, "longest wait for everything to become terminal")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	ok, err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "torture:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (ok bool, err error) {
	if o.dir, err = os.MkdirTemp("", "notifyd-torture-"); err != nil {
		return false, err
	}
	defer func() {
		if o.keep || !ok {
			fmt.Println("data and logs are in", o.dir)
		} else {
			_ = os.RemoveAll(o.dir)
		}
	}()
	fmt.Printf("torture  seed=%d  kills=%d  rate=%.0f/s  mutant=%q\n", o.seed, o.kills, o.rate, o.mutant)
	bin, err := build(ctx, o.dir, o.mutant)
	if err != nil {
		return false, err
	}
	v, err := newVictim(ctx, bin, o.dir)
	if err != nil {
		return false, err
	}
	defer v.end()
	if err := v.faults(ctx); err != nil {
		return false, err
	}
	if err := v.start(ctx, ""); err != nil {
		return false, err
	}

	sent := v.load(ctx, o)
	rng := rand.New(rand.NewPCG(o.seed, 1))
	for k := range o.kills {
		point := ""
		if k%2 == 1 {
			p := faultPoints[rng.IntN(len(faultPoints))]
			point = fmt.Sprintf("%s:%d:kill", p.name, 1+rng.IntN(p.most))
		}
		if k > 0 || point != "" {
			if err := v.restart(ctx, point); err != nil {
				return false, err
			}
		}
		how, err := v.die(ctx, point, time.Duration(500+rng.IntN(2000))*time.Millisecond)
		if err != nil {
			return false, err
		}
		fmt.Printf("  kill %2d  %s\n", k+1, how)
	}
	if err := v.start(ctx, ""); err != nil {
		return false, err
	}
	promises, err := sent()
	if err != nil {
		return false, err
	}
	res, err := v.check(ctx, promises, o.drain)
	if err != nil {
		return false, err
	}
	if err := v.stop(); err != nil {
		return false, fmt.Errorf("the graceful stop failed: %w", err)
	}
	if err := v.rows(ctx, &res); err != nil {
		return false, err
	}
	good := res.lost == 0 && res.terminal == res.accepted && res.duplicates <= res.bound && res.reordered == 0 && res.noID == 0
	fmt.Printf("torture kills=%d accepted=%d terminal=%d lost=%d duplicates=%d bound=%d reordered=%d unknown=%d failed=%d ambiguous=%d ok=%v\n",
		o.kills, res.accepted, res.terminal, res.lost, res.duplicates, res.bound, res.reordered, res.unknown, res.failed, res.ambiguous, good)
	return good, nil
}

type result struct {
	accepted, terminal, lost, unknown, failed int64
	duplicates, ambiguous, reordered, noID    int64
	bound                                     int64
}

// load starts three streams of load: ordered single pushes, batches of mail,
// fan-outs of pushes. The function it returns stops them and says what was
// promised.
func (v *victim) load(ctx context.Context, o options) func() (*promises, error) {
	ctx, cancel := context.WithCancel(ctx)
	p := &promises{}
	scenarios := []load.Scenario{
		{Name: "singles", Target: load.Single, Rate: o.rate, Users: 512, Workers: 32, Address: true, Ordered: true, Category: "transactional"},
		{Name: "mail", Target: load.Batch, Rate: o.rate / 5, Size: 20, Users: 100_000, Workers: 2, Address: true, Channel: "email", Category: "transactional"},
		{Name: "fan-out", Target: load.Fanout, Rate: o.rate * 3, Size: 1500, Users: 100_000, Workers: 2, Address: true},
	}
	var wg sync.WaitGroup
	errs := make(chan error, len(scenarios))
	for _, s := range scenarios {
		s.Duration = time.Hour // until it is stopped
		s.Seed = o.seed
		target, err := load.NewHTTP(s, v.client)
		if err != nil {
			errs <- err
			continue
		}
		wg.Go(func() {
			_, err := load.Run(ctx, s, load.Config{
				Target: target, Timeout: 5 * time.Second, Patience: 5 * time.Minute,
				Keys:  func(n int64) string { return fmt.Sprintf("%s-%d-%d", s.Name, o.seed, n) },
				Acked: p.add,
			})
			errs <- err
		})
	}
	return func() (*promises, error) {
		// A moment of undisturbed load, so that what failed meanwhile is
		// repeated and answered.
		select {
		case <-time.After(3 * time.Second):
		case <-ctx.Done():
		}
		cancel()
		wg.Wait()
		close(errs)
		for err := range errs {
			if err != nil {
				return nil, err
			}
		}
		return p, nil
	}
}

// promises are the ids the server answered for.
type promises struct {
	mu   sync.Mutex
	ids  []string
	fans []load.Acked
}

func (p *promises) add(a load.Acked) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(a.IDs) > 0 {
		p.ids = append(p.ids, a.IDs...)
		return
	}
	p.fans = append(p.fans, a)
}

// check waits until every promised id is terminal, and holds the states against
// the ledger of the simulated providers.
func (v *victim) check(ctx context.Context, p *promises, limit time.Duration) (result, error) {
	var r result
	p.mu.Lock()
	defer p.mu.Unlock()
	r.accepted = int64(len(p.ids))
	for _, f := range p.fans {
		r.accepted += int64(f.Count - f.Rejected)
	}
	fmt.Printf("  promised %d receivers in %d singles and %d fan-outs; waiting for their ends\n", r.accepted, len(p.ids), len(p.fans))
	deadline := time.Now().Add(limit)
	reached := map[string]bool{} // ids whose state says a provider took them
	for _, id := range p.ids {
		state, err := v.terminal(ctx, id, deadline)
		if err != nil {
			return r, err
		}
		r.count(state, 1)
		if state == notify.Sent.String() || state == notify.Delivered.String() {
			reached[id] = true
		}
	}
	for _, f := range p.fans {
		counts, err := v.counts(ctx, notify.ID{Base: f.Base}.String(), int64(f.Count-f.Rejected), deadline)
		if err != nil {
			return r, err
		}
		took := int64(0)
		for state, n := range counts {
			r.count(state, n)
			if state == notify.Sent.String() || state == notify.Delivered.String() {
				took += n
			}
		}
		ids, err := v.ledgerBase(ctx, f)
		if err != nil {
			return r, err
		}
		r.lost += max(took-ids, 0) // said to be reached, and was not
	}
	missing, err := v.ledgerMissing(ctx, reached)
	if err != nil {
		return r, err
	}
	r.lost += missing + r.accepted - r.terminal
	err = v.ledgerTotals(ctx, &r) // before r is copied
	return r, err
}

func (r *result) count(state string, n int64) {
	s, _ := notify.ParseState(state)
	if s.Terminal() {
		r.terminal += n
	}
	switch s {
	case notify.Unknown:
		r.unknown += n
	case notify.Failed:
		r.failed += n
	}
}

func (v *victim) terminal(ctx context.Context, id string, deadline time.Time) (string, error) {
	for {
		st, err := v.client.Notification(ctx, id)
		if err != nil && notify.KindOf(err) != notify.KindUnavailable {
			if notify.KindOf(err) == notify.KindNotFound {
				return "LOST", nil
			}
			return "", err
		}
		if s, _ := notify.ParseState(st.Status); s.Terminal() || time.Now().After(deadline) {
			return st.Status, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (v *victim) counts(ctx context.Context, id string, want int64, deadline time.Time) (map[string]int64, error) {
	for {
		sum, err := v.client.Summary(ctx, id, api.Page{Limit: 10_000})
		if err != nil && notify.KindOf(err) != notify.KindUnavailable {
			return nil, err
		}
		done := int64(0)
		counts := map[string]int64{}
		for state, n := range sum.Counts {
			counts[state] = int64(n)
			if s, _ := notify.ParseState(state); s.Terminal() {
				done += int64(n)
			}
		}
		if done >= want || time.Now().After(deadline) {
			return counts, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// rows reads the bound from the store: how many receivers were handed to a
// provider again although an earlier call may have been taken.
func (v *victim) rows(ctx context.Context, r *result) error {
	s, err := pebble.Open(pebble.Config{Dir: filepath.Join(v.dir, "dev", "data", "store")})
	if err != nil {
		return err
	}
	err = s.Status().Scan(ctx, 0, 1<<60, func(row *notify.Row) error {
		r.bound += int64(row.Resent)
		return nil
	})
	return errors.Join(err, s.Close())
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// portBlock finds four free neighbours: dev takes the API's port and the three
// behind it.
func portBlock() (int, error) {
	for range 100 {
		port, err := freePort()
		if err != nil {
			return 0, err
		}
		n, _ := strconv.Atoi(port)
		free := true
		for i := range 4 {
			l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(n+i)))
			if err != nil {
				free = false
				break
			}
			l.Close()
		}
		if free {
			return n, nil
		}
	}
	return 0, errors.New("no four free ports in a row")
}

var httpClient = &http.Client{Timeout: 30 * time.Second}
