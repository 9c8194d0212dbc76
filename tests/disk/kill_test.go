package disk_test

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/simulator"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

// TestKillBetweenReservationAndAppend kills a process after it has reserved the idempotency key of
// a request and before it has appended the record. The caller repeats the request with the same key
// to a new process. The notification is delivered once. The repeat does not wait until the lease of
// the dead process expires, because no other process can have the store open.
func TestKillBetweenReservationAndAppend(t *testing.T) {
	w := newWorld(t, simulator.Config{})
	bin, err := rig.Build(t.Context(), "../..", t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	first := w.process(bin, "request-reserved:1:kill")
	if _, err := first.Send(t.Context(), push(0), "key"); err == nil {
		t.Fatal("answered by a process that was to die")
	}
	select {
	case <-first.exited:
	case <-time.After(patience):
		t.Fatal("the process did not die")
	}
	second := w.process(bin, "")
	a, err := second.Send(t.Context(), push(0), "key")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{Client: second.Client, w: w, log: &output{}}
	n.status(a.NotificationID, func(s notify.State) bool { return s == notify.Delivered })
	again, err := second.Send(t.Context(), push(0), "key")
	if err != nil || again.NotificationID != a.NotificationID {
		t.Errorf("the same key again: %v, %v", again, err)
	}
	sum := w.sim.Ledger().Summary()
	t.Logf("killed once, sent three times with one key: ids=%d deliveries=%d duplicates=%d",
		sum.IDs, sum.Deliveries, sum.Duplicates)
	if sum.IDs != 1 || sum.Duplicates != 0 {
		t.Errorf("%+v", sum.Totals)
	}
}

// process is a notifyd in a separate process. It calls the simulated providers of its world.
type process struct {
	*api.Client
	exited chan struct{}
}

func (w *world) process(bin, faults string) *process {
	w.t.Helper()
	data := filepath.Join(w.dir, "process")
	_ = os.Remove(filepath.Join(data, "running.json"))
	c := rig.DieWithStarter(exec.Command(bin, "dev", "--data-dir", data, "--port", "0", "--simulator-dir", filepath.Join(w.dir, "simulator"), "--context", "", "--seed", "none", "--ready-timeout", "0"))
	c.Env = append(os.Environ(), "NOTIFYD_FAULT="+faults)
	log := &output{}
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		w.t.Fatal(err)
	}
	p := &process{exited: make(chan struct{})}
	transport := api.NewTransport(0)
	go func() {
		_ = c.Wait() // the test does not check the exit code
		close(p.exited)
	}()
	w.t.Cleanup(func() {
		_ = c.Process.Kill()
		<-p.exited
		transport.CloseIdleConnections()
		if w.t.Failed() {
			w.t.Logf("log of the process:\n%s", log)
		}
	})
	p.Client = &api.Client{HTTPClient: &http.Client{Transport: transport}, Token: func(context.Context) (string, error) {
		b, err := os.ReadFile(filepath.Join(data, "token"))
		return strings.TrimSpace(string(b)), err
	}}
	n := &node{w: w}
	n.eventually("the process runs", func() bool {
		var r struct {
			API string `json:"api"`
		}
		b, err := os.ReadFile(filepath.Join(data, "running.json"))
		if err != nil || json.Unmarshal(b, &r) != nil {
			return false
		}
		p.BaseURL = r.API
		return p.Ready(w.t.Context()) == nil
	})
	return p
}
