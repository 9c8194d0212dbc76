package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// A pipeline accepts requests, and its stub reports each receiver once.
func TestPipeline(t *testing.T) {
	t.Parallel()
	var taken, fans atomic.Int64
	p, err := NewPipeline(t.Context(), PipelineConfig{
		Dir: t.TempDir(), Stub: true, Profiles: 1000, Set: map[string]any{"log.linger": "1ms"},
		Taken: func(c *notify.Call) {
			for i := range c.Items {
				if c.Items[i].FanOut && len(c.Items[i].Address) == len("apns:")+64 {
					fans.Add(1)
				}
			}
			taken.Add(int64(len(c.Items)))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer runPipeline(t, p)()
	patience, done := context.WithTimeout(t.Context(), 5*time.Minute)
	defer done()
	tr := api.NewTransport(1)
	defer tr.CloseIdleConnections()
	cl := &api.Client{BaseURL: p.URL, HTTPClient: &http.Client{Transport: tr}, Token: func(context.Context) (string, error) { return p.Token, nil }}
	body := `{"channel":"push","category":"marketing","content":{"title":"t","body":"b"},"receivers":["u00000001","u00000999"]}`
	if _, err := cl.Post(t.Context(), "/v1/notifications:fanout", api.TypeJSON, []byte(body), ""); err != nil {
		t.Fatal(err)
	}
	for taken.Load() < 2 {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-patience.Done():
			t.Fatal("nothing was delivered")
		}
	}
	if taken.Load() != 2 || fans.Load() != 2 {
		t.Errorf("%d receivers, %d with the address of their profile", taken.Load(), fans.Load())
	}
}

// runPipeline starts p and waits until it is ready. The caller must call stop, which waits until p
// has ended.
func runPipeline(t *testing.T, p *Pipeline) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	ready, done := context.WithTimeout(ctx, 5*time.Minute)
	defer done()
	if err := p.Ready(ready); err != nil {
		stop()
		t.Fatal(err)
	}
	return stop
}

// A setting that does not exist is refused, and nothing stays open.
func TestPipelineRefuses(t *testing.T) {
	t.Parallel()
	_, err := NewPipeline(t.Context(), PipelineConfig{Dir: t.TempDir(), Set: map[string]any{"log.lingr": "1ms"}})
	if err == nil || !strings.Contains(err.Error(), `did you mean "log.linger"`) {
		t.Error(err)
	}
}

// TestLocalLoadNeedsHarmlessProviders: over loopback, an embedded notifyd accepts the load of a run
// without a grant only if it calls no real providers.
func TestLocalLoadNeedsHarmlessProviders(t *testing.T) {
	for _, simulated := range []bool{true, false} {
		t.Run(fmt.Sprintf("simulated %v", simulated), func(t *testing.T) {
			p, err := NewPipeline(t.Context(), PipelineConfig{Dir: t.TempDir(), Set: map[string]any{"providers.simulated": simulated}})
			if err != nil {
				t.Fatal(err)
			}
			defer runPipeline(t, p)()
			transport := api.NewTransport(0)
			defer transport.CloseIdleConnections()
			cl := &api.Client{
				BaseURL: p.URL, Load: api.LoadLocal, HTTPClient: &http.Client{Transport: transport},
				Token: func(context.Context) (string, error) { return p.Token, nil },
			}
			_, err = cl.Notification(t.Context(), notify.ID{Base: notify.NewBase(time.Now())}.String())
			e, ok := errors.AsType[*notify.Error](err)
			if refused := ok && e.Code == "load_grant_missing"; refused == simulated {
				t.Errorf("with simulated providers %v: %v", simulated, err)
			}
		})
	}
}
