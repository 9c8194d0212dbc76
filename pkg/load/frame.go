package load

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Frame describes what an agent did in one second of a run. The controller adds the frame to its
// run, see Remote. All counts are of this second and of the segment that the agent runs.
type Frame struct {
	At       time.Duration `json:"at_ns"`    // end of the second, since the run's start
	Health   Health        `json:"health"`   // health of the agent's process
	Evidence Evidence      `json:"evidence"` // evidence of the agent's run so far
	Steps    []StepFrame   `json:"steps,omitempty"`
	Promises []byte        `json:"promises,omitempty"` // acknowledged messages, see promises.takeEncoded
}

// StepFrame holds the figures of one step of one phase in one second. Its histograms are texts that
// EncodeHistogram made. The sum of the histograms of all agents is the histogram that a single
// generator would have recorded.
type StepFrame struct {
	Step     int                `json:"step"` // index among the steps of all phases
	Requests int64              `json:"requests"`
	Sent     int64              `json:"sent"`
	Acked    int64              `json:"acked"`
	Rejected int64              `json:"rejected,omitempty"`
	Failed   int64              `json:"failed,omitempty"`
	Busy     time.Duration      `json:"busy_ns"` // same as window.busy
	Own      time.Duration      `json:"own_ns"`  // same as window.own
	Lag      string             `json:"lag,omitempty"`
	Service  string             `json:"service,omitempty"`
	Response string             `json:"response,omitempty"`
	Heat     [HeatBuckets]int64 `json:"heat"`
	Errors   []ErrorCount       `json:"errors,omitempty"`
	Ended    time.Duration      `json:"ended_ns,omitempty"` // since the run's start; 0: the step has not ended
}

// frameOf describes the second that ends now. The coordinator calls it at the end of endSecond,
// before it resets the counts of that second. It returns an error if a histogram cannot be
// encoded.
func frameOf(c *coordinator, now time.Duration) (*Frame, error) {
	f := &Frame{At: now, Health: c.nowHealth, Evidence: c.gatherEvidence(false), Promises: c.run.promised.takeEncoded(c.run.steps)}
	for i, s := range c.run.steps {
		d, ended := s.lastSecond, time.Duration(s.ended.Load())
		if d.requests == 0 && ended == 0 {
			continue
		}
		one := StepFrame{
			Step: i, Requests: d.requests, Sent: d.sent, Acked: d.acked, Rejected: d.rejected, Failed: d.failed,
			Busy: d.busy, Own: d.own, Heat: d.heat, Ended: ended,
		}
		for _, e := range d.errs {
			one.Errors = append(one.Errors, *e)
		}
		for _, h := range []struct {
			to   *string
			from *hdrhistogram.Histogram
		}{{&one.Lag, d.lag}, {&one.Service, d.service}, {&one.Response, d.response}} {
			var err error
			if *h.to, err = EncodeHistogram(h.from); err != nil {
				return nil, err
			}
		}
		f.Steps = append(f.Steps, one)
	}
	return f, nil
}

// window converts the frame to a window, the form in which a recorder keeps its counts. It returns
// an error of notify.KindInvalid if a histogram is damaged.
func (f *StepFrame) window() (*window, error) {
	w := &window{
		tally: tally{requests: f.Requests, sent: f.Sent, acked: f.Acked, rejected: f.Rejected, failed: f.Failed},
		wake:  NewHistogram(), busy: f.Busy, own: f.Own, heat: f.Heat, errs: map[errKey]*ErrorCount{},
	}
	for _, e := range f.Errors {
		w.errs[errKey{e.Class, e.Code}] = &e
	}
	for _, h := range []struct {
		to   **hdrhistogram.Histogram
		from string
	}{{&w.lag, f.Lag}, {&w.service, f.Service}, {&w.response, f.Response}} {
		var err error
		if *h.to, err = decodeOwn(h.from); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// The kinds of promises in a frame. An encoded promise begins with one number: index of its step *
// promisedKinds + kind.
const (
	promisedSingle = iota
	promisedFan
	promisedOther
	promisedKinds
)

// takeEncoded removes the promises that were added since its last call, and returns them encoded.
// An agent does not keep promises, because the controller asks the ledger for their arrivals.
func (p *promises) takeEncoded(steps []*stepRun) []byte {
	p.mu.Lock()
	open, others := p.open, p.others
	p.open, p.others = nil, nil
	p.mu.Unlock()
	if len(open)+len(others) == 0 {
		return nil
	}
	index := map[*stepRun]uint64{}
	for i, s := range steps {
		index[s] = uint64(i)
	}
	b := make([]byte, 0, 28*len(open))
	head := func(kind uint64, d *dueMoment) {
		b = binary.AppendUvarint(b, index[d.step]*promisedKinds+kind)
		b = binary.AppendVarint(b, int64(d.intended))
		b = binary.AppendVarint(b, d.scheduledAt)
	}
	for base, one := range open {
		if one.count == 0 {
			head(promisedSingle, &one.dueMoment)
			b = append(b, base[:]...)
			continue
		}
		head(promisedFan, &one.dueMoment)
		b = append(b, base[:]...)
		b = binary.AppendUvarint(b, uint64(one.count))
		b = binary.AppendUvarint(b, uint64(one.rejected))
	}
	for i := range others {
		head(promisedOther, &others[i].dueMoment)
		b = binary.AppendUvarint(b, uint64(len(others[i].id)))
		b = append(b, others[i].id...)
	}
	return b
}

// addEncoded adds the promises that b encodes. In the agent's process, takeEncoded returned b. If b
// is damaged, addEncoded adds no promise and returns an error of notify.KindInvalid.
func (p *promises) addEncoded(b []byte, steps []*stepRun) error {
	var (
		open    = map[notify.Base]promise{}
		others  []otherPromise
		n       int64
		damaged bool
	)
	number := func() uint64 {
		v, size := binary.Uvarint(b)
		damaged = damaged || size <= 0
		b = b[max(size, 0):]
		return v
	}
	signed := func() int64 {
		v, size := binary.Varint(b)
		damaged = damaged || size <= 0
		b = b[max(size, 0):]
		return v
	}
	text := func(size uint64) []byte {
		if damaged = damaged || size > uint64(len(b)); damaged {
			return nil
		}
		t := b[:size]
		b = b[size:]
		return t
	}
	for len(b) > 0 && !damaged {
		kind := number()
		step := kind / promisedKinds
		d := dueMoment{intended: time.Duration(signed()), scheduledAt: signed()}
		if damaged = damaged || step >= uint64(len(steps)); damaged {
			break
		}
		d.step = steps[step]
		var base notify.Base
		one := promise{dueMoment: d}
		switch kind % promisedKinds {
		case promisedSingle:
			copy(base[:], text(uint64(len(base))))
			n++
		case promisedFan:
			copy(base[:], text(uint64(len(base))))
			one.count, one.rejected = uint32(number()), uint32(number())
			damaged = damaged || one.rejected > one.count || one.count == 0
			n += int64(one.count) - int64(one.rejected)
		case promisedOther:
			others, n = append(others, otherPromise{string(text(number())), d}), n+1
			continue
		}
		_, twice := open[base]
		damaged = damaged || twice
		open[base] = one
	}
	if damaged {
		return notify.Invalid("bad_frame", "promises", fmt.Sprintf("the data is damaged %d bytes before its end", len(b)))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.messages += n
	p.others = append(p.others, others...)
	for base, one := range open {
		p.addPromise(base, one)
	}
	return nil
}
