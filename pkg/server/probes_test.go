package server

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/notifyd/notifyd/pkg/notify"
)

// The probes say which program answers, what is wrong although it takes
// requests, and why it takes none: as far as the reason is ours to tell.
func TestProbesTell(t *testing.T) {
	t.Parallel()
	var notReady error
	warnings := []string{"log_damaged"}
	s := newWorld().start(t, Config{}, func(d *Deps) {
		d.Version = "v1.2.3"
		d.Ready = func(context.Context) error { return notReady }
		d.Warnings = func() []string { return warnings }
	})
	var h health
	if err := json.Unmarshal([]byte(ask(s, "GET", "/healthz", "", "").body), &h); err != nil || h.Status != "ok" || h.Version != "v1.2.3" {
		t.Errorf("healthz: %+v, %v", h, err)
	}
	if err := json.Unmarshal([]byte(ask(s, "GET", "/readyz", "", "").body), &h); err != nil || h.Status != "ready" || !slices.Equal(h.Warnings, warnings) {
		t.Errorf("readyz: %+v, %v", h, err)
	}
	f := func(err error, want string) {
		t.Helper()
		notReady = err
		got := ask(s, "GET", "/readyz", "", "")
		if p := got.problem(t); got.status != 503 || p.Code != "not_ready" || p.Detail != want {
			t.Errorf("%v: %d %+v", err, got.status, p)
		}
	}
	const intro = "this server cannot take requests now"
	f(&notify.Error{Kind: notify.KindUnavailable, Code: "disk_full", Msg: "the log's volume is full"}, intro+": the log's volume is full (disk_full)")
	f(notify.Unavailable("preferences", 0, errors.New("snapshot is 3s old")), intro+": preferences is unavailable (preferences)")
	f(errors.New("open /var/lib/x: i/o error"), intro)
}
