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

// CampaignHolds stores which campaigns are paused or have a rate.
type CampaignHolds interface {
	// Get returns the hold of a campaign. The result ok is false if the campaign has no hold.
	Get(id string) (h api.CampaignHold, ok bool)
	// Set changes the hold of a campaign and returns the new hold. actor is the name of the
	// operator or caller that makes the change. A zero hold means that the campaign is no longer
	// held. When Set returns nil, the change is durable.
	Set(ctx context.Context, id, actor string, change api.CampaignChange) (api.CampaignHold, error)
}

// Limits of a campaign's rate, in receivers per second.
const (
	minCampaignRate = 0.1
	maxCampaignRate = 10_000_000
)

// listCampaigns lists the caller's campaigns. An operator gets the campaigns of the caller that the
// query names, or of all callers.
func listCampaigns(x *exchange) (out api.CampaignPage, err error) {
	limit, caller := x.query.number("limit", 100), x.listedCaller()
	bound := []string{"campaigns", caller, x.id.Caller}
	place, err := x.cursorPosition(bound)
	if err != nil {
		return out, err
	}
	var after engine.Campaign
	if len(place) > 8 { // the first page has no position; the seal proves that any other position is valid
		after = engine.Campaign{ID: string(place[8:]), Created: int64(binary.BigEndian.Uint64(place))}
	}
	cs, err := x.srv.deps.Campaigns.List(x.r.Context(), caller, after, limit)
	out.Items = mapSlice(cs, func(c *engine.Campaign) api.Campaign {
		return api.Campaign{
			CampaignID: c.ID, Caller: c.Caller, CreatedAt: timeOf(c.Created), Parts: c.Parts, Accepted: c.Accepted, Rejected: c.Rejected,
			Hold: holdOf(x, c.ID),
		}
	})
	if len(cs) == limit {
		last := &cs[limit-1]
		out.Cursor = x.srv.cursors.sealCursor(append(binary.BigEndian.AppendUint64(nil, uint64(last.Created)), last.ID...), bound...)
	}
	return out, err
}

// holdOf returns the hold of a campaign, or nil if it has none.
func holdOf(x *exchange, id string) *api.CampaignHold {
	if h, ok := x.srv.deps.CampaignHolds.Get(id); ok {
		return &h
	}
	return nil
}

// findCampaign returns the campaign in the path if the request may see it.
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
		CampaignID: c.ID, Caller: c.Caller, CreatedAt: timeOf(c.Created),
		Parts: c.Parts, Accepted: c.Accepted, Rejected: c.Rejected, Hold: holdOf(x, c.ID),
	}
	if err := noteCancellation(x, &out, c.ID); err != nil {
		return out, err
	}
	err = countPage(x, &out, slices.Clip(c.Bases))
	return out, err
}

// setCampaign pauses or resumes a campaign, or changes its rate.
func setCampaign(x *exchange, in api.CampaignChange) (hold api.CampaignHold, err error) {
	switch {
	case in.Paused == nil && in.Rate == nil:
		return hold, notify.Invalid("required", "paused", `the body must have "paused" or "rate"`)
	case in.Rate != nil && *in.Rate != 0 && !(*in.Rate >= minCampaignRate && *in.Rate <= maxCampaignRate):
		return hold, notify.Invalid("out_of_range", "rate", "must be 0 for no limit, or 0.1 to 10,000,000 receivers a second")
	case len(in.Reason) > maxRemark:
		return hold, notify.Invalid("too_long", "reason", remarkTooLong(in.Reason))
	}
	c, err := findCampaign(x)
	if err != nil {
		return hold, err
	}
	x.auditIfForeign(c.Caller)
	if err := x.recordAct(); err != nil {
		return hold, err
	}
	return x.srv.deps.CampaignHolds.Set(x.r.Context(), c.ID, x.id.Caller, in)
}

// cancelCampaign cancels all calls of a campaign that have not started. Later parts of the campaign
// are cancelled too.
func cancelCampaign(x *exchange) error {
	c, err := findCampaign(x)
	if err != nil {
		return err
	}
	x.auditIfForeign(c.Caller)
	if err := storeCancel(x, c.ID, c.Caller, func() error { return nil }); err != nil {
		return err
	}
	cancelScheduledParts(x, c.Bases)
	return nil
}

// tally counts receivers by state. It reads the receivers of each request one by one.
type tally struct {
	status       engine.Status
	remaining    int64                                    // receivers that may still be counted
	findSchedule func(notify.Base) (schedule.View, error) // for a request that is not in the history
	counts       [notify.States]int64
	counted      int64

	chunk notify.Chunk
	rows  []notify.Row // rows of this chunk; nil: not read yet
}

var errCountedEnough = errors.New("enough counted")

// countPosition is where counting continues. The field base is the index of a request in the list
// of requests, and skip is how many of its receivers were already counted.
type countPosition struct {
	base int
	skip int64
}

// count counts the receivers of the requests in bases, beginning at the position start. It stops
// after t.remaining receivers. If there are more receivers, the result complete is false, and next
// is the position of the first receiver that was not counted.
func (t *tally) count(ctx context.Context, h history.Reader, bases []notify.Base, start countPosition) (next countPosition, complete bool, err error) {
	for i := start.base; i < len(bases); i++ {
		skip := int64(0)
		if i == start.base {
			skip = start.skip
		}
		seen := int64(0)
		err := h.Each(ctx, bases[i], func(f *engine.Found) error {
			if seen++; seen <= skip {
				return nil
			}
			if t.remaining == 0 {
				return errCountedEnough
			}
			return t.countReceiver(ctx, f)
		})
		switch {
		case errors.Is(err, errCountedEnough):
			return countPosition{i, seen - 1}, false, nil
		case err != nil && !isMissing(err):
			return countPosition{}, false, err
		case seen == 0 && t.findSchedule != nil:
			// The history does not have the request: the request is not released yet, or was
			// cancelled before its time. So all its receivers have the same state.
			v, err := t.findSchedule(bases[i])
			if err == nil {
				t.counts[waitingState(&v)] += int64(v.Accepted)
				t.counted += int64(v.Accepted)
				t.remaining = max(t.remaining-int64(v.Accepted), 0)
			} else if notify.KindOf(err) != notify.KindNotFound {
				return countPosition{}, false, err
			}
		}
	}
	return countPosition{}, true, nil
}

func (t *tally) countReceiver(ctx context.Context, f *engine.Found) error {
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
	t.counted++
	t.remaining--
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

// countPage counts by state the receivers of the page that the query asks for, and stores the
// counts in summary. Receivers that summary.Accepted includes but the history does not have are
// shown as pending.
func countPage(x *exchange, summary *api.Summary, bases []notify.Base) error {
	limit, most := x.query.number("limit", x.srv.cfg.CountLimit), 10*x.srv.cfg.CountLimit
	if limit < 1 || limit > most {
		return notify.Invalid("out_of_range", "limit", "must be a number from 1 to "+strconv.Itoa(most))
	}
	from, err := parseCountPosition(x.query.text("after"), len(bases))
	if err != nil {
		return err
	}
	waits := func(base notify.Base) (schedule.View, error) { return findSchedule(x, base) }
	t := tally{status: x.srv.deps.Status, remaining: int64(limit), findSchedule: waits}
	next, complete, err := t.count(x.r.Context(), x.srv.deps.History, bases, from)
	if err != nil {
		return err
	}
	summary.Counted, summary.Counts, summary.Complete = t.counted, t.byName(), complete
	if from == (countPosition{}) && summary.Accepted > 0 {
		left := summary.Accepted - t.counted
		summary.Pending = &left
	}
	if !complete {
		summary.Next = strconv.Itoa(next.base) + "." + strconv.FormatInt(next.skip, 10)
	}
	return nil
}

func parseCountPosition(s string, bases int) (p countPosition, err error) {
	if s == "" {
		return countPosition{}, nil
	}
	base, skip, ok := strings.Cut(s, ".")
	b, err1 := strconv.Atoi(base)
	n, err2 := strconv.ParseInt(skip, 10, 64)
	if !ok || err1 != nil || err2 != nil || b < 0 || b >= bases || n < 0 {
		return p, notify.Invalid("bad_cursor", "after", `must be the value "next" of an earlier page`)
	}
	return countPosition{b, n}, nil
}

// fanoutSummary returns the summary of a whole fan-out request.
func fanoutSummary(x *exchange, first *engine.Found) (api.Summary, error) {
	e := &first.Envelope
	out := api.Summary{
		NotificationID: notify.ID{Base: first.ID.Base}.String(), CampaignID: e.Campaign, Caller: e.Caller,
		Channel: e.Channel.String(), Category: e.Category.String(), CreatedAt: timeOf(e.Accepted),
		ScheduledAt: optionalTimeOf(e.NotBefore), Accepted: int64(e.Total), TraceID: notify.TraceID(e.Trace),
	}
	if err := noteCancellation(x, &out, out.NotificationID, e.Campaign); err != nil {
		return out, err
	}
	err := countPage(x, &out, []notify.Base{first.ID.Base})
	return out, err
}

// noteCancellation stores in summary the time at which the request was cancelled. The parameter
// scopes contains the ids under which the request may have been cancelled, such as its campaign. If
// there are several cancellations, the time of the earliest counts.
func noteCancellation(x *exchange, summary *api.Summary, scopes ...string) error {
	for _, scope := range scopes {
		if scope == "" {
			continue
		}
		c, ok, err := x.srv.deps.Cancels.Get(x.r.Context(), scope)
		if err != nil {
			return err
		}
		if ok && (summary.CancelledAt == nil || timeOf(c.At).Before(*summary.CancelledAt)) {
			summary.CancelledAt = optionalTimeOf(c.At)
		}
	}
	return nil
}
