// Command replay makes many notifications fail for good, repairs their provider, and replays the
// dead letters at a given rate. During the replay it repeatedly kills notifyd, and the command
// notifyctl that waits for the replay. It checks that every dead letter is sent once more and that
// none is lost. notifyd may send a few letters twice, but only as many as it has counted.
//
// The last line of the output has key=value pairs. replay exits with 1 if a check fails.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

type options struct {
	letters, kills int
	rate           float64
	seed           uint64
	planLimit      time.Duration
	drain          time.Duration
}

func main() {
	var o options
	flag.IntVar(&o.letters, "letters", 100_000, "number of dead letters")
	flag.IntVar(&o.kills, "kills", 10, "number of times notifyd and notifyctl are killed during the replay")
	flag.Float64Var(&o.rate, "rate", 4000, "rate of the replay, in dead letters a second")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "seed of the random kill times")
	flag.DurationVar(&o.planLimit, "plan-limit", 2*time.Second, "longest time that making the plan may take")
	flag.DurationVar(&o.drain, "drain", 3*time.Minute, "longest wait for a step")
	flag.Parse()
	rig.Main("replay", false, o.run)
}

func (o *options) run(ctx context.Context, dir string) (ok bool) {
	fmt.Printf("replay  letters=%d  kills=%d  rate=%.0f/s  seed=%d\n", o.letters, o.kills, o.rate, o.seed)
	bin := rig.Must(rig.Notifyd(ctx, dir, "", ""))
	v, err := rig.New(ctx, rig.Config{Bin: bin, Dir: dir})
	defer v.End()
	rig.Ok(err)
	rig.Ok(v.Rule(ctx, `{"provider":"apns","do":"error","code":"PayloadTooLarge"}`))
	rig.Ok(v.Start(ctx, ""))
	cl := v.Client()
	cl.Retries = 100
	op := newOperator(ctx, dir, v.URL(), v.TokenFile())
	createDeadLetters(ctx, cl, o)

	began := time.Now()
	plan := rig.Must(cl.Plan(ctx, api.JobSpec{Kind: "replay", Filter: api.LetterFilter{Code: "apns_payload_too_large"}, Rate: o.rate, Canary: 20}))
	planned := time.Since(began)
	fmt.Printf("  the plan has %d of %d dead letters; made in %s\n", plan.Entries, o.letters, planned.Round(time.Millisecond))

	// The first command of the operator makes the plan. The second command starts the replay under
	// a name. If the operator repeats the second command, the name makes it wait for the same job,
	// even if the earlier command was killed.
	file := filepath.Join(dir, "plan.json")
	op.run(0, "dlq", "replay", "--code", "apns_payload_too_large", "--rate", fmt.Sprint(o.rate), "--canary", "20", "--plan-out", file)
	replay := []string{"dlq", "replay", "--plan", file, "--name", "proof", "--reason", "proof", "--yes"}

	// The provider still refuses the notifications, so the canary fails and its guard stops the
	// job.
	op.run(term.ExitGuard, replay...)
	jobs := rig.Must(cl.Jobs(ctx, 10))
	if len(jobs) != 1 {
		panic(fmt.Errorf("notifyd has %d jobs, but must have 1", len(jobs)))
	}
	job := jobs[0]
	canary := job.Done
	fmt.Printf("  the canary: the job is %s (%s), %d dead letters were sent\n", job.State, job.Why, canary)
	canaryHeld := job.State == "stopped" && canary <= 20
	rig.Ok(v.DropRule(ctx, 1))
	op.run(0, "job", "resume", job.ID, "--reason", "the provider is repaired", "--yes")

	rng := rand.New(rand.NewPCG(o.seed, 1))
	for k := range o.kills {
		// Wait until notifyd has replayed some letters since its last start, so that the job is
		// running at every kill.
		from := job.Position
		joined := op.start(replay...)
		until := from + (plan.Entries-from)/(o.kills-k+1)/2 + rng.IntN(1+(plan.Entries-from)/(o.kills-k+1)/2)
		job = waitForJob(ctx, cl, job.ID, o, func(j *api.Job) bool { return j.Position >= until || j.State != "running" })
		// Kill notifyctl before notifyd at even k, and while notifyd is down at odd k.
		if k%2 == 0 {
			joined.kill()
		}
		rig.Must(v.Die(ctx, "", time.Duration(rng.IntN(200))*time.Millisecond))
		if k%2 == 1 {
			joined.kill()
		}
		fmt.Printf("  kill %d after %d of %d dead letters\n", k+1, job.Position, job.Planned)
		rig.Ok(v.Restart(ctx, ""))
	}
	// The last command waits for the end of the same job and prints the result.
	out := op.run(0, replay...)
	fmt.Print(out)
	job = waitForJob(ctx, cl, job.ID, o, func(j *api.Job) bool { return j.State != "running" })
	return judge(ctx, v, cl, o, &plan, &job, canary, canaryHeld, planned)
}

// createDeadLetters sends notifications that the provider refuses, and waits for their dead letters.
func createDeadLetters(ctx context.Context, cl *api.Client, o *options) {
	began := time.Now()
	rig.Must(cl.SendFanout(ctx, api.FanoutSend{
		Fanout: api.Fanout{Channel: "push", Category: "transactional", Campaign: "cmp_" + notify.NewBase(time.Now()).String(), Content: api.Content{Title: "Replay", Body: "once"}},
		Receivers: func(yield func(api.Receiver, error) bool) {
			for i := range o.letters {
				if !yield(api.Receiver{UserID: fmt.Sprintf("u-%06d", i), Address: fmt.Sprintf("apns:%064x", 5_000_000+i)}, nil) {
					return
				}
			}
		},
	}))
	for end := time.Now().Add(o.drain); ; {
		top, err := cl.TopDeadLetters(ctx, api.LetterFilter{State: "dead"}, 1)
		if err == nil && top.Total >= o.letters {
			fmt.Printf("  %d dead letters after %s\n", top.Total, time.Since(began).Round(100*time.Millisecond))
			return
		}
		if time.Now().After(end) {
			panic(errors.Join(fmt.Errorf("waited %s for %d dead letters, but there are only %d", o.drain, o.letters, top.Total), err))
		}
		time.Sleep(300 * time.Millisecond)
	}
}

func waitForJob(ctx context.Context, cl *api.Client, id string, o *options, ready func(*api.Job) bool) (j api.Job) {
	for end := time.Now().Add(o.drain); ; {
		var err error
		if j, err = cl.Job(ctx, id); err == nil && ready(&j) {
			return j
		}
		if ctx.Err() != nil || time.Now().After(end) {
			panic(errors.Join(fmt.Errorf("waited too long for job %s: state %s (%s), %d of %d dead letters done", id, j.State, j.Why, j.Position, j.Planned), err))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// judge compares the index of dead letters, the sums of the job and the ledger of the provider. It
// prints the last line of the output. It returns true if the three agree.
func judge(ctx context.Context, v *rig.Victim, cl *api.Client, o *options, plan *api.Plan, job *api.Job, canary int, canaryHeld bool, planned time.Duration) bool {
	// The letters of the canary failed again. The plan does not contain the new dead letters, so
	// the provider never accepts these notifications.
	want := int64(o.letters - canary)
	var led rig.Result
	ids := int64(0)
	rig.Within(ctx, o.drain, 300*time.Millisecond, func() bool {
		ids = rig.Must(v.Delivered(ctx))
		return ids >= want
	})
	rig.Ok(v.Totals(ctx, &led))
	top := rig.Must(cl.TopDeadLetters(ctx, api.LetterFilter{}, 1))
	sums := job.Done+job.Skips()+job.Exhausted+job.Failed == job.Planned && job.Planned == plan.Entries
	check := rig.Must(cl.VerifyAudit(ctx, ""))
	rig.Ok(v.Stop())
	rig.Ok(v.Rows(ctx, &led))
	deadAgain := top.States["dead"]
	lost := want - ids
	ok := canaryHeld && job.State == "done" && sums && job.Done == o.letters && top.States["replayed"] == o.letters && deadAgain == canary &&
		lost == 0 && led.Duplicates <= led.Bound && check.Broken == 0 && planned < o.planLimit
	fmt.Printf("replay letters=%d plan_ms=%d canary=%d kills=%d client_kills=%d asked=%.0f reached=%.0f replayed=%d skipped=%d exhausted=%d failed=%d planned=%d delivered=%d lost=%d duplicates=%d bound=%d audit_rows=%d ok=%t\n",
		o.letters, planned.Milliseconds(), canary, o.kills, o.kills, o.rate, job.Reached, job.Done, job.Skips(), job.Exhausted, job.Failed, job.Planned,
		ids, lost, led.Duplicates, led.Bound, check.Rows, ok)
	return ok
}
