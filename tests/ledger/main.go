// Command ledger shows that the ledger of a load run counts a billion notifications exactly, with a
// bounded amount of memory and disk space. A run sends the notifications to a target in this
// process. The target records them in two ledgers of simulated providers, and makes errors at known
// places. There is no network: the run calls the HTTP handlers of the ledgers directly. Everything
// else works as in a normal run.
//
// Nineteen of twenty notifications are receivers of fan-outs, and one is a single message. Half of
// the single messages are scheduled for later. The target makes these errors:
//
//   - It loses a notification.
//   - It delivers a notification twice: at once, much later, or at the other ledger.
//   - It delivers a message before an earlier message of the same user.
//   - It delivers a message before its due time.
//   - It delivers a message that it never accepted.
//
// The program prints
//
//	ledger ids=1000000000 lost=.. duplicated=.. reordered=.. unexpected=.. early=.. rss_mib=.. disk_mib=.. seconds=.. ok=true
//
// and exits 1 if a count differs from the number of errors that the target made, if an end-to-end
// time is missing, or if memory or disk space is above its bound.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/simulator"
)

const (
	// rssMost bounds the resident memory of the whole process, in bytes.
	rssMost = 1 << 30
	// diskMost bounds the disk space for each notification, in bytes.
	diskMost = 64

	ledgerMemory  = 192 << 20 // bytes of memory of each of the two ledgers
	promiseMemory = 64 << 20  // bytes of memory for messages that were accepted and have not arrived
)

func main() {
	n := flag.Int64("n", 1_000_000_000, "number of notifications")
	dir := flag.String("dir", os.TempDir(), "folder of the ledgers' unnamed files; about 20 GB for a billion notifications")
	flag.Parse()
	// Without this limit the heap may grow to twice the size of its live objects before the garbage
	// collector runs.
	debug.SetMemoryLimit(rssMost * 9 / 10)
	p, err := prove(context.Background(), *n, *dir, ledgerMemory, promiseMemory)
	if err != nil {
		fmt.Fprintln(os.Stderr, "ledger:", err)
		os.Exit(1)
	}
	ok := len(p.wrong) == 0 && p.rss <= rssMost
	fmt.Println(p.line(ok))
	for _, w := range p.wrong {
		fmt.Fprintln(os.Stderr, "ledger:", w)
	}
	if !ok {
		os.Exit(1)
	}
}

// proof is the result of a run: the counts of the ledger and the other figures. The field wrong has
// a text for each count or figure that is not as expected.
type proof struct {
	ids       int64
	ledger    load.LedgerResult
	rss, disk int64
	took      time.Duration
	wrong     []string
}

func (p *proof) line(ok bool) string {
	l := &p.ledger
	return fmt.Sprintf("ledger ids=%d lost=%d duplicated=%d reordered=%d unexpected=%d early=%d rss_mib=%d disk_mib=%d seconds=%.0f ok=%t",
		p.ids, l.Lost, l.Duplicates, l.Reordered, l.Unexpected, l.Early, p.rss>>20, p.disk>>20, p.took.Seconds(), ok)
}

// prove sends n notifications, rounded up to whole requests, and checks the result. The parameter
// memory is the number of bytes of memory for each ledger, and promises is the number of bytes of
// memory for the run.
func prove(ctx context.Context, n int64, dir string, memory, promises int) (*proof, error) {
	fans, batches := (n*19/20+fanSize-1)/fanSize, (n/40+batchSize-1)/batchSize
	t := &target{rounds: max(batches/10, 1)}
	var sims []*load.Simulators
	for i := range t.ledgers {
		t.ledgers[i] = simulator.NewLedger(dir, memory)
		sims = append(sims, &load.Simulators{URL: fmt.Sprintf("http://ledger-%d", i), Client: &http.Client{Transport: handler{t.ledgers[i].Handler()}}})
	}
	s := load.Scenario{Name: "ledger", Drain: load.Duration(24 * time.Second), Phases: []load.PhaseSpec{{Name: "main", Steps: []load.Step{
		{Name: "fanouts", Target: load.Fanout, Count: load.Number(fans * fanSize), Size: fanSize, Workers: 2},
		{Name: "singles", Target: load.Batch, Count: load.Number(batches * batchSize), Size: batchSize, Workers: 1},
		{Name: "later", Target: load.Batch, Count: load.Number(batches * batchSize), Size: batchSize, Workers: 1, Scheduled: &load.LaterSpec{After: load.Duration(time.Second)}},
	}}}}
	began := time.Now()
	run, err := load.New(s, load.Config{Target: t, Ledger: load.NewShards(sims...), Memory: promises})
	if err != nil {
		return nil, err
	}
	res, err := run.Run(ctx)
	if err != nil {
		return nil, err
	}
	p := &proof{ids: t.done.accepted, ledger: res.Ledger, took: time.Since(began)}
	for _, l := range t.ledgers {
		p.disk += l.Summary().Disk
	}
	if p.rss, err = peakMemory(); err != nil {
		return nil, err
	}
	p.judge(&t.done, res)
	return p, nil
}

func (p *proof) judge(done *injected, res *load.Result) {
	l := &p.ledger
	timed := int64(0)
	for i := range res.Steps {
		timed += res.Steps[i].EndToEnd.Count + res.Steps[i].Lateness.Count
	}
	for _, c := range []struct {
		what      string
		got, want int64
	}{
		{"expected", l.Expected, done.accepted}, {"delivered", l.Delivered, done.accepted - done.lost},
		{"lost", l.Lost, done.lost}, {"duplicated", l.Duplicates, done.duplicated}, {"reordered", l.Reordered, done.reordered},
		{"unexpected", l.Unexpected, done.unexpected}, {"early", l.Early, done.early},
		{"pending", l.Pending, 0}, {"unverified", l.Unverified, 0},
	} {
		if c.got != c.want {
			p.wrong = append(p.wrong, fmt.Sprintf("the ledger counts %d messages as %s, but there were %d", c.got, c.what, c.want))
		}
	}
	if timed < l.Delivered {
		p.wrong = append(p.wrong, fmt.Sprintf("only %d of %d deliveries have an end-to-end time", timed, l.Delivered))
	}
	if p.disk > diskMost*p.ids {
		p.wrong = append(p.wrong, fmt.Sprintf("the ledgers use %d bytes of disk for %d receivers; the limit is %d bytes a receiver", p.disk, p.ids, diskMost))
	}
}

// peakMemory returns the peak resident memory of the process in bytes.
func peakMemory() (int64, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	kib := int64(0)
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		return 0, fmt.Errorf("cannot read VmHWM in /proc/self/status: %w", err)
	}
	return kib << 10, nil
}

// handler is an http.RoundTripper that calls a handler instead of a server.
type handler struct{ http.Handler }

func (h handler) RoundTrip(r *http.Request) (*http.Response, error) {
	w := &answer{head: http.Header{}, status: http.StatusOK}
	h.ServeHTTP(w, r)
	return &http.Response{StatusCode: w.status, Header: w.head, Body: io.NopCloser(&w.body), Request: r}, nil
}

type answer struct {
	head   http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.head }
func (a *answer) WriteHeader(status int)      { a.status = status }
func (a *answer) Write(b []byte) (int, error) { return a.body.Write(b) }
