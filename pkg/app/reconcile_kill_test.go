package app

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/conserve"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// For TestReconcileSurvivesKills: the variable with the folder of the process that is killed, and
// the text that the process prints when it is to be killed.
const (
	killDir = "NOTIFYD_TEST_DIR"
	killMe  = "kill me: "
)

// TestReconcileSurvivesKills: the process that repairs is killed while its job has repaired nothing
// yet, and again after a page. The next start ends the job. Each finding is accounted for once, and
// nothing is left to repair.
func TestReconcileSurvivesKills(t *testing.T) {
	t.Parallel()
	const receivers = 3000 // more than a page
	if dir := os.Getenv(killDir); dir != "" {
		beKilled(t, dir)
		return
	}
	dir := t.TempDir()
	cfg := testConfig(t, dir)
	l := run(t, cfg, quick)
	ctx := t.Context()
	fan, err := l.client.Fanout(ctx, fanout(receivers), "")
	if err != nil {
		t.Fatal(err)
	}
	l.delivered(t, fan.FirstID, receivers)
	base, err := notify.ParseID(fan.FirstID)
	if err != nil {
		t.Fatal(err)
	}
	var rows []notify.Row
	if err := l.embedded.store.Status().Request(ctx, base.Base, func(r *notify.Row) error {
		rows = append(rows, *r)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all is committed", func() bool {
		b, err := conserve.WorkerLog{Admin: l.Node.admin, Reader: l.Node.reader}.Bounds(ctx)
		for i := range rows {
			if err != nil || b[log.TopicPartition{Topic: rows[i].Topic, Partition: rows[i].LogPart}].Committed <= rows[i].Offset {
				return false
			}
		}
		return true
	})
	for i := range rows {
		rows[i].Done, rows[i].DoneUpTo, rows[i].StartedUpTo, rows[i].Starts = false, 0, rows[i].Count, 1
	}
	if err := l.embedded.store.Status().Put(ctx, rows); err != nil {
		t.Fatal(err)
	}
	if err := l.stop(); err != nil {
		t.Fatal(err)
	}

	for range 2 {
		c := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		c.Env = append(os.Environ(), childEnv+"=1", killDir+"="+dir)
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		said, seen := "", strings.Builder{}
		for lines := bufio.NewScanner(out); lines.Scan(); {
			seen.WriteString(lines.Text() + "\n")
			if s, ok := strings.CutPrefix(strings.TrimSpace(lines.Text()), killMe); ok {
				said = s
				break
			}
		}
		_ = c.Process.Signal(syscall.SIGKILL)
		_ = c.Wait() // it was killed
		if said == "" {
			t.Fatalf("the process ended by itself:\n%s", &seen)
		}
		t.Log("killed:", said)
	}

	l = run(t, cfg, quick)
	jobs, err := l.client.Jobs(ctx, 10)
	if err != nil || len(jobs) != 1 {
		t.Fatalf("%+v, %v", jobs, err)
	}
	job := jobs[0]
	eventually(t, "the job ends", func() bool {
		if job, err = l.client.Job(ctx, job.ID); err != nil || job.State == deadletter.JobFailed {
			t.Fatal(job, err)
		}
		return job.State == deadletter.JobDone
	})
	if job.Planned != receivers || job.Done+job.Skipped[deadletter.SkipChanged] != receivers {
		t.Errorf("%+v", job)
	}
	l.delivered(t, fan.FirstID, receivers)
	lines := map[string]int{}
	if err := l.client.JobReport(ctx, job.ID, func(b json.RawMessage) error {
		var r deadletter.Repair
		err := json.Unmarshal(b, &r)
		lines[r.ID]++
		return err
	}); err != nil || len(lines) != receivers {
		t.Errorf("%d lines, %v", len(lines), err)
	}
	if plan, rep := l.reported(t); plan.Entries != 0 {
		t.Errorf("left to repair: %+v", rep)
	}
	l.agrees(t, receivers, receivers, 0)
}

// beKilled begins the job, or continues it, and says when its process is to be killed.
func beKilled(t *testing.T, dir string) {
	t.Helper()
	l := run(t, testConfig(t, dir), quick)
	ctx := t.Context()
	jobs, err := l.client.Jobs(ctx, 10)
	if err != nil {
		t.Fatal(err)
	}
	if len(jobs) == 0 {
		plan, err := l.client.Plan(ctx, api.JobSpec{Kind: "reconcile"})
		if err != nil {
			t.Fatal(err)
		}
		job, err := l.client.StartJob(ctx, api.JobRequest{Spec: plan.Spec, Digest: plan.Digest, Report: plan.Reconcile})
		if err != nil || job.State != deadletter.JobRunning {
			t.Fatal(job, err)
		}
		fmt.Printf("\n%sthe job has begun, at %d of %d\n", killMe, job.Position, job.Planned)
	} else {
		eventually(t, "a page is repaired", func() bool {
			j, err := l.client.Job(ctx, jobs[0].ID)
			if err != nil || j.State != deadletter.JobRunning && j.State != deadletter.JobDone {
				t.Fatal(j, err)
			}
			jobs[0] = j
			return j.Position > 0
		})
		fmt.Printf("\n%sat %d of %d\n", killMe, jobs[0].Position, jobs[0].Planned)
	}
	<-time.After(5 * time.Minute) // it is killed
}
