package load

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Frame is what an agent did in one second of a run, for the controller's Run.Feed. All
// counts are of that second, and of the agent's own segment.
type Frame struct {
	At       time.Duration `json:"at_ns"`    // end of the second, since the run's start
	Health   Health        `json:"health"`   // of the agent's process
	Evidence Evidence      `json:"evidence"` // of the agent's run so far
	Steps    []StepFrame   `json:"steps,omitempty"`
	Promises []byte        `json:"promises,omitempty"` // what was acknowledged, see promises.take
}

// StepFrame is one step of one phase in one second. The histograms are encoded as
// EncodeHistogram does, so that adding them gives the counts of one generator.
type StepFrame struct {
	Step     int                `json:"step"` // index among the steps of all phases
	Requests int64              `json:"requests"`
	Sent     int64              `json:"sent"`
	Acked    int64              `json:"acked"`
	Rejected int64              `json:"rejected,omitempty"`
	Failed   int64              `json:"failed,omitempty"`
	Busy     time.Duration      `json:"busy_ns"`
	Own      time.Duration      `json:"own_ns"`
	Lag      string             `json:"lag,omitempty"`
	Service  string             `json:"service,omitempty"`
	Response string             `json:"response,omitempty"`
	Heat     [HeatBuckets]int64 `json:"heat"`
	Errors   []ErrorCount       `json:"errors,omitempty"`
	Ended    time.Duration      `json:"ended_ns,omitempty"` // since the run's start; 0: the step goes on
}

// frameOf describes the second that ends now. The coordinator calls it at the end of
// rotate, while the steps' windows of the second are still there.
func frameOf(c *coordinator, now time.Duration) (*Frame, error) {
	f := &Frame{At: now, Health: c.nowHealth, Evidence: c.gather(false), Promises: c.run.promised.take(c.run.steps)}
	for i, s := range c.run.steps {
		d, ended := s.second, time.Duration(s.ended.Load())
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

// window is what the step's frame says, as a recorder keeps it.
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

// Kinds of promises in a frame, in the low bits of each one's first number. The rest of
// that number is the index of its step.
const (
	promisedSingle = iota
	promisedFan
	promisedOther
	promisedKinds
)

// take returns the promises since the last call, encoded, and forgets them: an agent
// keeps none, for the controller asks the ledger.
func (p *promises) take(steps []*stepRun) []byte {
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
	head := func(kind uint64, d *due) {
		b = binary.AppendUvarint(b, index[d.step]*promisedKinds+kind)
		b = binary.AppendVarint(b, int64(d.intended))
		b = binary.AppendVarint(b, d.at)
	}
	for base, one := range open {
		if one.count == 0 {
			head(promisedSingle, &one.due)
			b = append(b, base[:]...)
			continue
		}
		head(promisedFan, &one.due)
		b = append(b, base[:]...)
		b = binary.AppendUvarint(b, uint64(one.count))
		b = binary.AppendUvarint(b, uint64(one.rejected))
	}
	for i := range others {
		head(promisedOther, &others[i].due)
		b = binary.AppendUvarint(b, uint64(len(others[i].id)))
		b = append(b, others[i].id...)
	}
	return b
}

// put adds what take returned elsewhere, all of it or, with an error, nothing.
func (p *promises) put(b []byte, steps []*stepRun) error {
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
		d := due{intended: time.Duration(signed()), at: signed()}
		if damaged = damaged || step >= uint64(len(steps)); damaged {
			break
		}
		d.step = steps[step]
		var base notify.Base
		one := promise{due: d}
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
		return notify.Invalid("bad_frame", "promises", fmt.Sprintf("are damaged, %d bytes before their end", len(b)))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n += n
	p.others = append(p.others, others...)
	for base, one := range open {
		p.promise(base, one)
	}
	return nil
}
