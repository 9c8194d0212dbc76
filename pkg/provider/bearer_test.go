package provider

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

type minter struct {
	n     atomic.Int64
	takes time.Duration
	fail  atomic.Bool
	at    []time.Time
}

func (m *minter) mint(ctx context.Context) (string, time.Time, time.Time, error) {
	if !sleep(ctx, m.takes) {
		return "", time.Time{}, time.Time{}, ctx.Err()
	}
	if m.fail.Load() {
		return "", time.Time{}, time.Time{}, errors.New("refused")
	}
	m.n.Add(1)
	now := time.Now()
	m.at = append(m.at, now)
	return now.Format(time.RFC3339Nano), now.Add(apnsRenewToken), now.Add(apnsTokenLife), nil
}

func newTestBearer(m *minter) *bearer {
	return newBearer("bearer", apnsMinTokenAge, slog.New(slog.DiscardHandler), m.mint)
}

func TestBearerSingleFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &minter{takes: 100 * time.Millisecond}
		b := newTestBearer(m)
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				if _, err := b.get(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if m.n.Load() != 1 {
			t.Fatalf("minted %d times", m.n.Load())
		}
		// Every goroutine is told continually that its token is too old. Never are two tokens
		// made within 20 minutes.
		for range 65 {
			for range 100 {
				cur, _ := b.get(t.Context())
				if _, err := b.replace(t.Context(), cur); err != nil {
					t.Error(err)
				}
			}
			time.Sleep(time.Minute)
		}
		if len(m.at) != 4 {
			t.Errorf("minted %d times in 65 minutes", len(m.at))
		}
		for i := 1; i < len(m.at); i++ {
			if d := m.at[i].Sub(m.at[i-1]); d < 20*time.Minute {
				t.Errorf("two within %v", d)
			}
		}
	})
}

// A late complaint about a token that was replaced already returns the new token.
func TestBearerLateComplaint(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &minter{}
		b := newTestBearer(m)
		first, _ := b.get(t.Context())
		time.Sleep(25 * time.Minute)
		second, _ := b.replace(t.Context(), first)
		time.Sleep(25 * time.Minute)
		if got, err := b.replace(t.Context(), first); err != nil || got != second || second == first || m.n.Load() != 2 {
			t.Errorf("minted %d times, %v", m.n.Load(), err)
		}
	})
}

func TestBearerRenews(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &minter{}
		b := newTestBearer(m)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { b.run(ctx) })
		synctest.Wait()
		first, _ := b.get(ctx)
		time.Sleep(44 * time.Minute)
		if cur, _ := b.get(ctx); cur != first {
			t.Error("renewed before 45 minutes")
		}
		time.Sleep(2 * time.Minute)
		if cur, _ := b.get(ctx); cur == first {
			t.Error("not renewed at 45 minutes")
		}
		time.Sleep(10 * time.Hour)
		// 10 h 46 min in steps of 45
		if n := m.n.Load(); n != 15 {
			t.Errorf("minted %d times", n)
		}
		cancel()
		wg.Wait()
	})
}

func TestBearerFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &minter{}
		b := newTestBearer(m)
		if _, err := b.get(t.Context()); err != nil {
			t.Fatal(err)
		}
		// While renewing fails, the old one serves until it is dead.
		m.fail.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { b.run(ctx) })
		time.Sleep(57 * time.Minute)
		if _, err := b.get(ctx); err != nil {
			t.Errorf("the old one is alive: %v", err)
		}
		time.Sleep(2 * time.Minute)
		if _, err := b.get(ctx); err == nil {
			t.Error("a dead token was given out")
		}
		m.fail.Store(false)
		time.Sleep(10 * time.Second)
		if _, err := b.get(ctx); err != nil {
			t.Errorf("not healed: %v", err)
		}
		cancel()
		wg.Wait()
	})
}

// A token endpoint that is away for an hour is logged a few times, not every 5 seconds.
func TestBearerLogsAFailureSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &minter{}
		m.fail.Store(true)
		var out bytes.Buffer // only run writes to it, and it has ended when it is read
		b := newBearer("bearer", 0, slog.New(slog.NewTextHandler(&out, nil)), m.mint)
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		b.run(ctx)
		if n := strings.Count(out.String(), "no new provider token"); n < 5 || n > 7 {
			t.Errorf("%d lines in an hour", n)
		}
	})
}
