package load

import (
	"cmp"
	"context"
	"sync"
	"time"
)

// calibrate measures the rate at which this machine makes bodies without a server. For each step
// name it makes bodies on all CPUs for the time d. It stores the rates, in messages per second, in
// c.calibrated.
func calibrate(ctx context.Context, c *coordinator, d time.Duration) {
	began := time.Now()
	known := map[string]float64{}
	for _, s := range c.run.steps {
		rate, ok := known[s.Name]
		if !ok {
			rate = generateBodies(ctx, s, d)
			known[s.Name] = rate
		}
		c.calibrated[s] = rate
	}
	c.calibrationTook = time.Since(began)
}

// generateBodies makes bodies of a step for the time d, on all CPUs, and records a sample for each
// body. It sends nothing. It returns the generator's own rate in messages per second.
func generateBodies(ctx context.Context, s *stepRun, d time.Duration) float64 {
	var wg sync.WaitGroup
	var total int64
	var mu sync.Mutex
	began := time.Now()
	kafka, _ := s.target.(*KafkaTarget) // a Kafka target encodes envelopes instead of bodies
	for w := range processors() {
		wg.Go(func() {
			rec := newRecorder()
			body := make([]byte, 0, 4096)
			n := int64(0)
			for i := uint64(w) << 40; time.Since(began) < d && ctx.Err() == nil; i++ {
				for range max(64/s.Size, 1) {
					sent := time.Since(began)
					if kafka == nil {
						body = s.data.appendRequest(body[:0], i, i*uint64(s.Size), s.Size, 0)
					} else if _, _, err := kafka.records(&Request{Step: s.Step, Seq: i * uint64(s.Size), Size: s.Size, WantIDs: s.run.wantIDs(), data: s.data}); err != nil {
						return // sending will report the same error
					}
					rec.record(&sample{intended: sent, taken: sent, sent: sent, done: sent, messages: s.Size, ack: Ack{Accepted: s.Size}})
					n += int64(s.Size)
				}
			}
			mu.Lock()
			total += n
			mu.Unlock()
		})
	}
	wg.Wait()
	return float64(total) / time.Since(began).Seconds()
}

// addEvidence adds the figures of one second to the evidence of the verdict. The parameter all holds
// the counts of all steps, workers is the mean number of workers that ran, and length is the length
// of the second. The coordinator's goroutine calls addEvidence.
func addEvidence(c *coordinator, all *window, workers float64, length time.Duration, draining bool) {
	h := &c.nowHealth
	response := time.Duration(all.response.ValueAtQuantile(99))
	behind := isLateWake(time.Duration(all.lag.ValueAtQuantile(99)), response)
	wake := all.wake
	probed := c.probe.takeWindow()
	defer c.probe.giveBack(probed)
	if behind && wake.TotalCount() == 0 { // no worker waited for a due time: use the wake-ups of the probe
		wake = probed.wake
	}
	busy := h.Busy
	if c.run.feeds == nil { // otherwise each agent reports its own figures
		if wake.TotalCount() > 0 {
			h.LagP99 = time.Duration(wake.ValueAtQuantile(99))
		}
		if workers > 0 {
			busy = float64(all.busy) / (workers * float64(length))
		}
		h.Busy = min(busy, 1)
		h.Embedded = c.run.cfg.Embedded
		h.CalibratedRate, h.GeneratorShare = generatorShare(c, all)
	}
	if draining || all.requests == 0 && workers == 0 {
		return
	}
	c.measuredSeconds++
	if isLateWake(h.LagP99, response) {
		c.lateWakeSeconds++
	} else if behind {
		c.queuedSeconds++
	}
	if h.CPU >= starvedShare*h.CPUs {
		c.starvedSeconds++
	}
	if h.LagP99 > c.worstWake {
		c.worstWake, c.healthSums.WorstLagSecond = h.LagP99, c.secondIndex
	}
	s := &c.healthSums
	s.CPU += h.CPU
	s.GCCPU += h.GCCPU
	s.Steal += h.Steal
	s.MachineCPU += h.MachineCPU
	// The whole wait for an answer is counted in the second in which the answer arrived. So the
	// busy time may be longer than the second, and s.Busy may exceed 1.
	s.Busy += busy
	s.GCPause, s.RSS = max(s.GCPause, h.GCPause), max(s.RSS, h.RSS)
	s.Goroutines, s.Sockets = max(s.Goroutines, h.Goroutines), max(s.Sockets, h.Sockets)
	s.LagP99, s.GeneratorShare = max(s.LagP99, h.LagP99), max(s.GeneratorShare, h.GeneratorShare)
	s.CalibratedRate = cmp.Or(h.CalibratedRate, s.CalibratedRate)
	s.CPUs, s.Embedded = h.CPUs, h.Embedded
	s.CPUSeconds += h.CPU * length.Seconds()
}

// generatorShare returns how much of the generator's speed the running steps need. The result share
// is the sum of intended rate / calibrated rate over these steps. A closed loop has no schedule, so
// its acknowledged rate counts instead of its intended rate. The result rate is the highest rate
// that the generator can send with this mixture of steps: at this rate the share is 1. Both results
// are 0 if no running step has a calibrated rate.
func generatorShare(c *coordinator, all *window) (rate, share float64) {
	sum := 0.0
	for _, s := range c.run.steps {
		cal := c.calibrated[s]
		if end := time.Duration(s.ended.Load()); cal <= 0 || s.begin.Load() < 0 || end != 0 && end <= c.secondEnd {
			continue
		}
		want := s.rates.Intended
		if s.sched == nil {
			want = s.rates.Acked
		}
		sum += want
		share += want / cal
	}
	if share == 0 {
		return 0, 0
	}
	return sum / share, share
}
