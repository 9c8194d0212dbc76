package server

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/schedule"
)

// tally counts receivers by state, walking requests receiver by receiver. Most
// of them have the default outcome of their chunk and nothing else, which
// costs a few nanoseconds; only the others are folded.
type tally struct {
	status engine.Status
	left   int64                                    // receivers still to count
	waits  func(notify.Base) (schedule.View, error) // of a request that history does not know
	counts [notify.States]int64
	done   int64

	chunk   notify.Chunk
	rows    []notify.Row
	plain   *notify.Row     // the original's row when positions without exception are settled by it alone
	special map[uint32]bool // request indexes other rows speak of
}

var errEnough = errors.New("enough counted")

// place is where counting goes on: in which base, behind how many receivers.
type place struct {
	base int
	skip int64
}

// count counts the receivers of bases from place on; complete is false when it
// stopped for having counted enough, at next.
func (t *tally) count(ctx context.Context, h engine.History, bases []notify.Base, from place) (next place, complete bool, err error) {
	for i := from.base; i < len(bases); i++ {
		skip := int64(0)
		if i == from.base {
			skip = from.skip
		}
		seen := int64(0)
		err := h.Each(ctx, bases[i], func(f *engine.Found) error {
			if seen++; seen <= skip {
				return nil
			}
			if t.left == 0 {
				return errEnough
			}
			return t.add(ctx, f)
		})
		switch {
		case errors.Is(err, errEnough):
			return place{i, seen - 1}, false, nil
		case err != nil && !missing(err):
			return place{}, false, err
		case seen == 0 && t.waits != nil:
			// It waits for its time, or was cancelled before: one thing, whole.
			v, err := t.waits(bases[i])
			if err == nil {
				t.counts[waitingState(&v)] += int64(v.Accepted)
				t.done += int64(v.Accepted)
				t.left = max(t.left-int64(v.Accepted), 0)
			} else if notify.KindOf(err) != notify.KindNotFound {
				return place{}, false, err
			}
		}
	}
	return place{}, true, nil
}

func (t *tally) add(ctx context.Context, f *engine.Found) error {
	if t.rows == nil || f.Envelope.Chunk != t.chunk {
		rows, err := t.status.Chunk(ctx, f.Envelope.Chunk)
		if err != nil {
			return err
		}
		t.enter(f.Envelope.Chunk, rows)
	}
	t.counts[t.state(f.ID.Index, f.Pos)]++
	t.done++
	t.left--
	return nil
}

// enter prepares the rows of the next chunk.
func (t *tally) enter(c notify.Chunk, rows []notify.Row) {
	if rows == nil {
		rows = []notify.Row{}
	}
	t.chunk, t.rows, t.plain, t.special = c, rows, nil, nil
	for i := range rows {
		r := &rows[i]
		switch {
		case r.Key.Kind == notify.RowReceipt:
			t.mark(r.Key.First)
		case r.Index != nil:
			for _, index := range r.Index {
				t.mark(index)
			}
		case t.plain == nil:
			t.plain = r
		default: // two rows speak of every position
			t.plain = nil
			t.special = nil
			return
		}
	}
}

func (t *tally) mark(index uint32) {
	if t.special == nil {
		t.special = map[uint32]bool{}
	}
	t.special[index] = true
}

// state is notify.Fold with a short cut.
func (t *tally) state(index, pos uint32) notify.State {
	switch {
	case len(t.rows) == 0:
		return notify.Accepted
	case t.plain == nil || pos >= t.plain.Count || t.special[index]:
		return notify.Fold(t.rows, index, pos).State
	case !settled(t.plain, pos):
		if _, ok := t.plain.Waits(pos); ok {
			return notify.Deferred
		}
		return notify.Accepted
	case len(t.plain.At(pos)) > 0:
		return notify.Fold(t.rows, index, pos).State
	}
	return t.plain.Default.State
}

func (t *tally) byName() map[string]int {
	out := map[string]int{}
	for s, n := range t.counts {
		if n > 0 {
			out[notify.State(s).String()] = int(n)
		}
	}
	return out
}

// summarise fills in the counts of a page that the query asks for. What was
// accepted does not come from what is counted: each part of a fan-out names the
// whole, so that a part that is missing is missed.
func summarise(x *exchange, out *api.Summary, bases []notify.Base) error {
	limit, most := x.query.number("limit", x.srv.cfg.CountLimit), 10*x.srv.cfg.CountLimit
	if limit < 1 || limit > most {
		return notify.Invalid("out_of_range", "limit", "must be a number from 1 to "+strconv.Itoa(most))
	}
	from, err := parsePlace(x.query.text("after"), len(bases))
	if err != nil {
		return err
	}
	waits := func(base notify.Base) (schedule.View, error) { return findSchedule(x, base) }
	t := tally{status: x.srv.deps.Status, left: int64(limit), waits: waits}
	next, complete, err := t.count(x.r.Context(), x.srv.deps.History, bases, from)
	if err != nil {
		return err
	}
	out.Counted, out.Counts, out.Complete = t.done, t.byName(), complete
	if from == (place{}) && out.Accepted > 0 {
		left := out.Accepted - t.done
		out.Pending = &left
	}
	if !complete {
		out.Next = strconv.Itoa(next.base) + "." + strconv.FormatInt(next.skip, 10)
	}
	return nil
}

func parsePlace(s string, bases int) (p place, err error) {
	if s == "" {
		return place{}, nil
	}
	base, skip, ok := strings.Cut(s, ".")
	b, err1 := strconv.Atoi(base)
	n, err2 := strconv.ParseInt(skip, 10, 64)
	if !ok || err1 != nil || err2 != nil || b < 0 || b >= bases || n < 0 {
		return p, notify.Invalid("bad_cursor", "after", "not the next of a page before")
	}
	return place{b, n}, nil
}

// fanoutSummary answers for a fan-out request as a whole.
func fanoutSummary(x *exchange, first *engine.Found) (api.Summary, error) {
	e := &first.Envelope
	out := api.Summary{
		NotificationID: notify.ID{Base: first.ID.Base}.String(), CampaignID: e.Campaign, Caller: e.Caller,
		Channel: e.Channel.String(), Category: e.Category.String(), CreatedAt: moment(e.Accepted),
		ScheduledAt: moments(e.NotBefore), Accepted: int64(e.Total), TraceID: notify.TraceID(e.Trace),
	}
	if err := addCancel(x, &out, out.NotificationID, e.Campaign); err != nil {
		return out, err
	}
	return out, summarise(x, &out, []notify.Base{first.ID.Base})
}

// addCancel notes the earliest cancellation of these scopes.
func addCancel(x *exchange, out *api.Summary, scopes ...string) error {
	for _, scope := range scopes {
		if scope == "" {
			continue
		}
		c, ok, err := x.srv.deps.Cancels.Get(x.r.Context(), scope)
		if err != nil {
			return err
		}
		if ok && (out.CancelledAt == nil || moment(c.At).Before(*out.CancelledAt)) {
			out.CancelledAt = moments(c.At)
		}
	}
	return nil
}
