package enginetest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/engine"
)

// competingReceivers lets 4 producers enqueue 400 messages and 8 receivers receive them.
// The receivers acknowledge some deliveries, release others, and let the visibility of
// others end. Two receivers must never own the same message at the same time.
func competingReceivers(t *testing.T, q engine.Queue) {
	const producers, each = 4, 100
	type event struct {
		body     string
		from, to time.Time
		done     bool
	}
	events := make([][]event, 8)
	ctx, cancel := context.WithCancel(bg)
	left := make(chan struct{}, producers*each)
	together(producers+8, func(i int) {
		if i < producers {
			for n := 0; n < each; n += 10 {
				var ms []engine.Message
				for k := range 10 {
					ms = append(ms, message(fmt.Sprintf("%d-%d", i, n+k), time.Duration(k)*time.Second))
				}
				if err := q.Enqueue(bg, ms); err != nil {
					t.Error(err)
				}
				time.Sleep(3 * time.Second)
			}
			return
		}
		r := i - producers
		for n := 0; ; n++ {
			ds, err := q.Receive(ctx, 5, 10*time.Second)
			if err != nil {
				t.Error(err)
			}
			if len(ds) == 0 {
				return
			}
			from := time.Now()
			time.Sleep(2 * time.Second)
			for k, d := range ds {
				e := event{body: string(d.Body), from: from, to: time.Now(), done: true}
				switch {
				case d.Receives < QueueReceives && (n+k)%5 == 0:
					e.done = false
					err = q.Release(bg, d.Receipt, time.Second)
				case d.Receives < QueueReceives && (n+k)%5 == 1:
					e.done, e.to = false, from.Add(10*time.Second) // the visibility ends
				default:
					err = q.Ack(bg, []string{d.Receipt})
				}
				if err != nil {
					t.Error(err)
				}
				events[r] = append(events[r], e)
				if e.done {
					if left <- struct{}{}; len(left) == producers*each {
						cancel()
					}
				}
			}
		}
	})
	held := map[string][]event{}
	for _, e := range slices.Concat(events...) {
		held[e.body] = append(held[e.body], e)
	}
	same(t, "messages", len(held), producers*each)
	for body, es := range held {
		slices.SortFunc(es, func(a, b event) int { return a.from.Compare(b.from) })
		for i := range es {
			if i > 0 && es[i].from.Before(es[i-1].to) {
				t.Fatalf("message %s was received while another receiver owned it", body)
			}
			if es[i].done != (i == len(es)-1) {
				t.Fatalf("message %s was received after it was acknowledged, or it was never acknowledged", body)
			}
		}
	}
	same(t, "depth", depth(t, q), engine.QueueDepth{})
}

// queueModel runs random programs on an engine and on modelQueue and compares the results.
// All times are whole seconds, so that the same messages are due in the engine and in the
// model.
func queueModel(t *testing.T, open Opener[engine.Queue]) {
	runModelInBubble(t, func(rt *rapid.T) map[string]func(*rapid.T) {
		q, _ := open(rt)
		var m modelQueue
		n := 0
		var have, want []string // receipts of the same deliveries, from the engine and from the model
		secs := rapid.Custom(func(rt *rapid.T) time.Duration {
			return time.Duration(rapid.IntRange(0, 4).Draw(rt, "seconds")) * time.Second
		})
		some := func(rt *rapid.T) (a, b []string) {
			for range rapid.IntRange(0, min(3, len(have))).Draw(rt, "some") {
				i := rapid.IntRange(0, len(have)-1).Draw(rt, "which")
				a, b = append(a, have[i]), append(b, want[i])
			}
			return a, b
		}
		seen := func(ds []engine.Delivery) (out []string) {
			for _, d := range ds {
				out = append(out, fmt.Sprintf("%s received %d times, enqueued %v", d.Body, d.Receives, d.Enqueued.UnixMilli()/1000))
			}
			return out
		}
		return map[string]func(*rapid.T){
			"enqueue": func(rt *rapid.T) {
				var ms []engine.Message
				for range rapid.IntRange(0, 4).Draw(rt, "messages") {
					n++
					ms = append(ms, message(strconv.Itoa(n), secs.Draw(rt, "delay")))
				}
				must(rt, q.Enqueue(bg, ms))
				m.enqueue(ms)
			},
			"receive": func(rt *rapid.T) {
				n, hold := rapid.IntRange(0, 5).Draw(rt, "max"), secs.Draw(rt, "visibility")+time.Second
				a, b := receiveReady(rt, q, n, hold), m.receive(n, hold)
				same(rt, "Receive", seen(a), seen(b))
				have, want = append(have, receipts(a)...), append(want, receipts(b)...)
			},
			"ack": func(rt *rapid.T) {
				a, b := some(rt)
				must(rt, q.Ack(bg, a))
				m.remove(m.held(b))
			},
			"extend": func(rt *rapid.T) {
				a, b := some(rt)
				by := secs.Draw(rt, "by") + time.Second
				must(rt, q.Extend(bg, a, by))
				for _, x := range m.held(b) {
					x.visible = time.Now().Add(by)
				}
			},
			"release": func(rt *rapid.T) {
				if a, b := some(rt); len(a) > 0 {
					delay := secs.Draw(rt, "delay")
					must(rt, q.Release(bg, a[0], delay))
					for _, x := range m.held(b[:1]) {
						x.held, x.visible = false, time.Now().Add(delay)
					}
				}
			},
			"pass": func(rt *rapid.T) { time.Sleep(secs.Draw(rt, "time")) },
			"": func(rt *rapid.T) {
				a, b := depth(rt, q), m.depth()
				a.Oldest, b.Oldest = a.Oldest.Truncate(time.Second).UTC(), b.Oldest.Truncate(time.Second).UTC()
				same(rt, "Depth", a, b)
			},
		}
	})
}

// receiveReady receives ready messages. It does not wait, so the time of the bubble does
// not advance.
func receiveReady(t T, q engine.Queue, max int, visibility time.Duration) []engine.Delivery {
	t.Helper()
	if depth(t, q).Ready == 0 {
		return nil
	}
	return val(q.Receive(bg, max, visibility))(t)
}
