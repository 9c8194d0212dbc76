package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/load"
)

// measureGenerator measures P1: the load generator makes single notifications as JSON, records the
// time of each in the histograms, and sends them to the null sink. The side "flat out" requests a
// rate that is too high to be reached. The side "paced" requests 5 million per second.
// measureGenerator panics if a notification is lost.
func measureGenerator(ctx context.Context, b *bench) {
	run := func(rate load.Number) func(d time.Duration) float64 {
		return func(d time.Duration) float64 {
			r := generate(ctx, d, load.Step{Target: load.Null, Rate: rate, Payload: load.Payload{Text: text}})
			if t := &r.Totals; t.Lost > 0 || t.Delivered != t.Sent {
				panic(fmt.Errorf("the null sink must get every notification: sent %d, delivered %d, lost %d", t.Sent, t.Delivered, t.Lost))
			}
			if r.Totals.Sent == 0 {
				panic(errors.New("the generator sent nothing"))
			}
			return r.Rates.Sent
		}
	}
	flat, paced := &side{name: "flat out", run: run(1e9)}, &side{name: "paced", run: run(5e6)}
	b.alternate("P1", b.length(3*time.Second, time.Second), flat, paced)
	b.add(result{ID: "P1", Work: fmt.Sprintf("messages that the generator makes and times, sent to the null sink; %.2f cores, %.0f ns", flat.cores, flat.cost), Value: flat.best, Unit: "messages/s", main: true}, atLeast(20e6, "messages/s"))
	reached := paced.best >= 0.99*5e6
	b.add(result{ID: "P1", Work: fmt.Sprintf("processor time of the generator at an intended rate of 5M/s, %s/s sent; %.0f ns", number(paced.best), paced.cost), Value: paced.cores, Unit: "cores"},
		need{"<= 0.3 cores at the rate", func(r result) bool { return reached && r.Value <= 0.3 }})
}
