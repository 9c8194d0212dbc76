package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/simulator"
)

// Shards is one ledger of one or more simulators, which share the work of the providers. It adds the
// counts of the simulators. An id that arrived at two simulators is a duplicate and counts once. A
// fault begins and ends at all simulators.
type Shards struct {
	list []*Simulators

	cursorMu sync.Mutex // guards the cursors of the simulators

	mu       sync.Mutex
	repeated int64 // ids that arrived at two simulators, found by listMissing so far
	examples []string
}

// MostShards is the highest number of simulators that one ledger can have.
const MostShards = 64

// NewShards returns one ledger made of the simulators in list: at least one and at most MostShards.
func NewShards(list ...*Simulators) *Shards { return &Shards{list: list[:min(len(list), MostShards)]} }

func (s *Shards) markStart(ctx context.Context) error {
	return s.each(func(l *Simulators) error { return l.markStart(ctx) })
}

func (s *Shards) each(f func(l *Simulators) error) error {
	for _, l := range s.list {
		if err := f(l); err != nil {
			return s.nameSimulator(l, err)
		}
	}
	return nil
}

// nameSimulator adds the URL of the simulator to an error, if the ledger has several simulators.
func (s *Shards) nameSimulator(l *Simulators, err error) error {
	if err == nil || len(s.list) < 2 {
		return err
	}
	return fmt.Errorf("%s: %w", l.URL, err)
}

func (s *Shards) countArrivals(ctx context.Context, final bool) (all arrivalCounts, err error) {
	err = s.each(func(l *Simulators) error {
		c, err := l.countArrivals(ctx, final)
		all.ids += c.ids
		all.duplicates += c.duplicates
		all.reordered += c.reordered
		return err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	all.ids -= s.repeated
	all.duplicates += s.repeated
	all.examples = append([]string(nil), s.examples...)
	return all, err
}

func (s *Shards) joinArrivals(ctx context.Context, p *promises, f onArrival) error {
	s.cursorMu.Lock()
	defer s.cursorMu.Unlock()
	for i, l := range s.list {
		for more := true; more; {
			rows, err := l.readArrivals(ctx, strconv.FormatInt(l.cursor, 10))
			if err != nil {
				return s.nameSimulator(l, err)
			}
			list := make([]arrival, 0, len(rows))
			for _, a := range rows {
				list = append(list, arrival{base: a.Base, at: a.At.UnixNano(), n: a.N, ledger: uint8(i)})
			}
			if err := p.join(list, f); err != nil {
				return err
			}
			more = len(rows) > 0
		}
	}
	return nil
}

func (s *Shards) joinTriggerCalls(ctx context.Context, p *promises, f onArrival) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.others) == 0 {
		return nil
	}
	dues := make(map[string]*dueMoment, len(p.others))
	for i := range p.others {
		dues[p.others[i].id] = &p.others[i].dueMoment
	}
	return s.each(func(l *Simulators) error {
		return l.eachCall(ctx, func(id string, at time.Time) {
			if d := dues[id]; d != nil {
				delete(dues, id) // count only the first call
				f(d, at, 1)
			}
		})
	})
}

func (s *Shards) listMissing(ctx context.Context, p *promises, most int) (delivered int64, ids []string, err error) {
	delivered, repeated, examples := p.countJoined()
	var failed error
	err = p.eachUnfinished(func(b notify.Base, one *promise) bool {
		if one.count == 0 {
			ids = append(ids, (notify.ID{Base: b}).String()) // the next line removes this id if there are too many
			ids = ids[:min(len(ids), most)]
			return len(ids) < most || len(s.list) > 1
		}
		if len(ids) == most && !one.cameAtSeveral() {
			return len(s.list) > 1
		}
		var bits []byte
		var twice int64
		if bits, twice, failed = s.receiverBits(ctx, b, one, func(i uint32) {
			if len(examples) < 10 {
				examples = append(examples, notify.ID{Base: b, Index: i, FanOut: true}.String())
			}
		}); failed != nil {
			return false
		}
		repeated += twice
		delivered -= twice
		for i := uint32(0); i < one.count && len(ids) < most; i++ {
			if bits[i/8]>>(i%8)&1 == 0 {
				ids = append(ids, notify.ID{Base: b, Index: i, FanOut: true}.String())
			}
		}
		return len(ids) < most || len(s.list) > 1
	})
	if err = cmp.Or(failed, err); err != nil {
		return delivered, ids, err
	}
	s.mu.Lock()
	s.repeated, s.examples = repeated, examples
	s.mu.Unlock()
	return s.missingTriggers(ctx, p, most, delivered, ids)
}

// receiverBits asks the simulators that got messages of a fan-out which receivers arrived. The
// result arrived has a bit for each receiver, which is 1 if the receiver arrived. The result
// repeated is the number of receivers that arrived at two simulators; receiverBits calls onRepeat
// with the index of each of them.
func (s *Shards) receiverBits(ctx context.Context, b notify.Base, one *promise, onRepeat func(i uint32)) (arrived []byte, repeated int64, err error) {
	arrived = make([]byte, (one.count+7)/8)
	for i, l := range s.list {
		if one.ledgers>>i&1 == 0 {
			continue
		}
		var out simulator.BaseReport
		if err := l.Call(ctx, http.MethodGet, fmt.Sprintf("/ledger/base?base=%s&expected=%d&bits=true", b, one.count), nil, &out); err != nil {
			return nil, 0, s.nameSimulator(l, err)
		}
		if len(out.Bits) != len(arrived) {
			return nil, 0, s.nameSimulator(l, badAnswer(nil))
		}
		for j := range arrived {
			for both := arrived[j] & out.Bits[j]; both != 0; both &= both - 1 {
				repeated++
				onRepeat(uint32(8*j + bits.TrailingZeros8(both)))
			}
			arrived[j] |= out.Bits[j]
		}
	}
	return arrived, repeated, nil
}

// missingTriggers adds the triggers to the results of listMissing.
func (s *Shards) missingTriggers(ctx context.Context, p *promises, most int, delivered int64, ids []string) (int64, []string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.others) == 0 {
		return delivered, ids, nil
	}
	taken := map[string]bool{}
	if err := s.each(func(l *Simulators) error { return l.eachCall(ctx, func(id string, _ time.Time) { taken[id] = true }) }); err != nil {
		return delivered, ids, err
	}
	for _, o := range p.others {
		if taken[o.id] {
			delivered++
		} else if len(ids) < most {
			ids = append(ids, o.id)
		}
	}
	return delivered, ids, nil
}

// Begin implements FaultControl. It begins the fault at all simulators. If it cannot begin the
// fault at one of them, it ends the fault at the others and returns the error.
func (s *Shards) Begin(ctx context.Context, f *FaultSpec) (func(context.Context) error, error) {
	var ends []func(context.Context) error
	end := func(ctx context.Context) (err error) {
		for _, f := range ends {
			err = errors.Join(err, f(ctx))
		}
		return err
	}
	err := s.each(func(l *Simulators) error {
		one, err := l.Begin(ctx, f)
		if err == nil {
			ends = append(ends, one)
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(err, end(context.WithoutCancel(ctx)))
	}
	return end, nil
}

// Callback returns the URL that triggers can call: the URL of the first simulator.
func (s *Shards) Callback(ctx context.Context) (string, error) { return s.list[0].Callback(ctx) }

// ParseSimulators parses the control URLs of up to MostShards simulators, separated by commas. It
// returns an error of notify.KindInvalid if a URL is wrong or is named twice.
func ParseSimulators(text string, client *http.Client) (list []*Simulators, err error) {
	for one := range strings.SplitSeq(text, ",") {
		one = strings.TrimSuffix(strings.TrimSpace(one), "/")
		u, err := url.Parse(one)
		switch {
		case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
			return nil, notify.Invalid("bad_url", "simulators", fmt.Sprintf("%q is not an http or https URL; separate several URLs by commas", one))
		case slices.ContainsFunc(list, func(l *Simulators) bool { return l.URL == one }):
			return nil, notify.Invalid("bad_url", "simulators", fmt.Sprintf("%s is named twice, so its messages would count twice", one))
		case len(list) == MostShards:
			return nil, notify.Invalid("bad_url", "simulators", fmt.Sprintf("names more than %d simulators, which is the maximum", MostShards))
		}
		list = append(list, &Simulators{URL: one, Client: client})
	}
	return list, nil
}
