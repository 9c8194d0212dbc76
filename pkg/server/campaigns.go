package server

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/schedule"
)

// CampaignHolds keeps which campaigns are paused or have a rate.
type CampaignHolds interface {
	// Get returns a campaign's hold; ok is false if nothing holds it back.
	Get(id string) (h api.CampaignHold, ok bool)
	// Set changes a campaign's hold in the name of by, and returns it, zero when it was the last one
	// that held it back. The change is durable when Set returns nil.
	Set(ctx context.Context, id, by string, to api.CampaignChange) (api.CampaignHold, error)
}

// Receivers a second of a campaign.
const (
	minCampaignRate = 0.1
	maxCampaignRate = 10_000_000
)

// listCampaigns lists a caller's campaigns, or for operators those of any caller.
func listCampaigns(x *exchange) (out api.CampaignPage, err error) {
	limit, caller := x.query.number("limit", 100), x.listedCaller()
	bound := []string{"campaigns", caller, x.id.Caller}
	place, err := x.place(bound)
	if err != nil {
		return out, err
	}
	var after engine.Campaign
	if len(place) > 8 { // sealed, so it is a place or, for the first page, nothing
		after = engine.Campaign{ID: string(place[8:]), Created: int64(binary.BigEndian.Uint64(place))}
	}
	cs, err := x.srv.deps.Campaigns.List(x.r.Context(), caller, after, limit)
	out.Items = mapped(cs, func(c *engine.Campaign) api.Campaign {
		return api.Campaign{
			CampaignID: c.ID, Caller: c.Caller, CreatedAt: moment(c.Created), Parts: c.Parts, Accepted: c.Accepted, Rejected: c.Rejected,
			Hold: holdOf(x, c.ID),
		}
	})
	if len(cs) == limit {
		last := &cs[limit-1]
		out.Cursor = x.srv.cursors.seal(append(binary.BigEndian.AppendUint64(nil, uint64(last.Created)), last.ID...), bound...)
	}
	return out, err
}

// holdOf returns what holds a campaign back; nil: nothing.
func holdOf(x *exchange, id string) *api.CampaignHold {
	if h, ok := x.srv.deps.CampaignHolds.Get(id); ok {
		return &h
	}
	return nil
}

// findCampaign returns a campaign that x may see.
func findCampaign(x *exchange) (engine.Campaign, error) {
	id := x.r.PathValue("id")
	if !campaignID(id) {
		return engine.Campaign{}, notify.NotFound("campaign")
	}
	c, ok, err := x.srv.deps.Campaigns.Get(x.r.Context(), id)
	if err == nil && (!ok || !x.sees(c.Caller)) {
		err = notify.NotFound("campaign")
	}
	return c, err
}

func getCampaign(x *exchange) (out api.Summary, err error) {
	c, err := findCampaign(x)
	if err != nil {
		return out, err
	}
	out = api.Summary{
		CampaignID: c.ID, Caller: c.Caller, CreatedAt: moment(c.Created),
		Parts: c.Parts, Accepted: c.Accepted, Rejected: c.Rejected, Hold: holdOf(x, c.ID),
	}
	if err := addCancel(x, &out, c.ID); err != nil {
		return out, err
	}
	err = summarise(x, &out, slices.Clip(c.Bases))
	return out, err
}

// setCampaign pauses a campaign, lets it go on, or changes its rate.
func setCampaign(x *exchange, in api.CampaignChange) (hold api.CampaignHold, err error) {
	switch {
	case in.Paused == nil && in.Rate == nil:
		return hold, notify.Invalid("required", "paused", "paused or rate says what to change")
	case in.Rate != nil && *in.Rate != 0 && !(*in.Rate >= minCampaignRate && *in.Rate <= maxCampaignRate):
		return hold, notify.Invalid("out_of_range", "rate", "0 for no limit, or 0.1 to 10,000,000 receivers a second")
	case len(in.Reason) > maxRemark:
		return hold, notify.Invalid("too_long", "reason", "at most 512 bytes")
	}
	c, err := findCampaign(x)
	if err != nil {
		return hold, err
	}
	x.of(c.Caller)
	if err := x.record(); err != nil {
		return hold, err
	}
	return x.srv.deps.CampaignHolds.Set(x.r.Context(), c.ID, x.id.Caller, in)
}

// cancelCampaign stops what has not started of a campaign, and its later parts.
func cancelCampaign(x *exchange) error {
	c, err := findCampaign(x)
	if err != nil {
		return err
	}
	x.of(c.Caller)
	if err := storeCancel(x, c.ID, c.Caller, func() error { return nil }); err != nil {
		return err
	}
	cancelParts(x, c.Bases)
	return nil
}

// tally counts receivers by state, walking requests receiver by receiver.
type tally struct {
	status engine.Status
	left   int64                                    // receivers still to count
	waits  func(notify.Base) (schedule.View, error) // of a request that history does not know
	counts [notify.States]int64
	done   int64

	chunk notify.Chunk
	rows  []notify.Row // of chunk; nil: none was read yet
}

var errEnough = errors.New("enough counted")

// place is where counting goes on: in which base, behind how many receivers.
type place struct {
	base int
	skip int64
}

// count counts the receivers of bases from place on; complete is false when it
// stopped for having counted enough, at next.
func (t *tally) count(ctx context.Context, h history.Reader, bases []notify.Base, from place) (next place, complete bool, err error) {
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
		if t.chunk, t.rows = f.Envelope.Chunk, rows; rows == nil {
			t.rows = []notify.Row{}
		}
	}
	t.counts[notify.StateOf(t.rows, f.ID.Index, f.Pos)]++
	t.done++
	t.left--
	return nil
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
	err := summarise(x, &out, []notify.Base{first.ID.Base})
	return out, err
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
