package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

// probeEvery is the time between two otp requests of a probe. The probe also sends an alert
// request together with every second otp request.
const probeEvery = 20 * time.Millisecond

// probeResult has the latencies and the number of refusals of the single requests of a probe.
type probeResult struct {
	otp, alert times
	late       time.Duration // p99 of how late this process sent the requests
	ids        []string      // notification ids of the accepted requests
}

type times struct {
	took   []time.Duration
	p99    time.Duration
	failed int
}

func (p probeResult) String() string {
	return fmt.Sprintf("%d otp p99 %.1f ms, %d alert p99 %.1f ms, %d refused, sent late by %.1f ms at p99",
		len(p.otp.took), ms(p.otp.p99), len(p.alert.took), ms(p.alert.p99), p.otp.failed+p.alert.failed, ms(p.late))
}

// probe sends single requests for the given duration, and returns when all requests are answered.
// Each request begins at its planned time, even if earlier requests are not answered yet (open
// loop).
func probe(ctx context.Context, cl *api.Client, duration time.Duration) (p probeResult) {
	one := *cl
	one.Retries = 0 // probe counts a refused request instead of repeating it
	var mu sync.Mutex
	var wg sync.WaitGroup
	var late []time.Duration
	send := func(category string, into *times, n int) {
		user := fmt.Sprintf("p%08d", n)
		from := time.Now()
		made, err := one.Send(ctx, api.Notification{
			Channel: "push", Category: category, To: api.Receiver{UserID: user, Address: "fcm:" + user}, Content: api.Content{Body: "Your code is 123456."},
		}, "")
		took := time.Since(from)
		mu.Lock()
		defer mu.Unlock()
		into.took = append(into.took, took)
		if err != nil {
			if into.failed++; into.failed <= 3 {
				fmt.Printf("  %s refused after %s: %v\n", category, took.Round(time.Millisecond), err)
			}
			return
		}
		p.ids = append(p.ids, made.NotificationID)
	}
	began := time.Now()
	for n := 0; ; n++ {
		at := began.Add(time.Duration(n) * probeEvery)
		if at.Sub(began) >= duration || rig.Pause(ctx, time.Until(at)) != nil {
			break
		}
		late = append(late, time.Since(at))
		wg.Go(func() { send("otp", &p.otp, n) })
		if n%2 == 0 {
			wg.Go(func() { send("alert", &p.alert, n) })
		}
	}
	wg.Wait()
	p.otp.p99, p.alert.p99, p.late = p99(p.otp.took), p99(p.alert.took), p99(late)
	return p
}

func p99(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[(len(all)*99+99)/100-1]
}

// countUndelivered returns how many accepted single requests do not reach the state DELIVERED.
func countUndelivered(ctx context.Context, cl *api.Client, all ...probeResult) (n int64) {
	var ids []string
	for i := range all {
		ids = append(ids, all[i].ids...)
	}
	lost := make([]bool, len(ids))
	rig.InSteps(ctx, len(ids), 1, 4, func(ctx context.Context, i, _ int) {
		if err := rig.Delivered(ctx, cl, ids[i]); err != nil {
			fmt.Println("  lost:", err)
			lost[i] = true
		}
	})
	for _, one := range lost {
		if one {
			n++
		}
	}
	return n
}
