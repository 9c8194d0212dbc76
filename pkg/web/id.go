package web

import (
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// find redirects to the page of the id or user in the query.
func (p *Page) find(v *visit) error {
	s := strings.TrimSpace(v.r.URL.Query().Get("q"))
	switch {
	case s == "":
		return v.goTo(Prefix)
	case strings.HasPrefix(s, "job_"):
		return v.goTo(Prefix + "jobs/" + url.PathEscape(s))
	case strings.HasPrefix(s, "ntf_"), strings.HasPrefix(s, "trg_"), strings.HasPrefix(s, "cmp_"):
		return v.goTo(Prefix + "id/" + url.PathEscape(s))
	}
	return v.goTo(Prefix + "users/" + url.PathEscape(s))
}

// idBody is the body of the page of an id. Exactly one of the fields Timeline, Summary and Trigger
// is set.
type idBody struct {
	ID       string
	Timeline *api.Timeline
	Story    []storyEvent
	Summary  *api.Summary
	Trigger  *api.TriggerStatus
	Letter   *api.DeadLetter // set if the notification or trigger failed and has a dead letter
}

// storyEvent is an event with the time since the previous event.
type storyEvent struct {
	api.TimelineEvent
	After string
}

func storyOf(events []api.TimelineEvent) (out []storyEvent) {
	var before *time.Time
	for _, e := range events {
		m := storyEvent{TimelineEvent: e}
		if e.At != nil {
			if before != nil && !e.At.Before(*before) {
				m.After = "+" + span(e.At.Sub(*before))
			}
			before = e.At
		}
		out = append(out, m)
	}
	return out
}

// First returns the id of the first receiver of a fan-out.
func (b *idBody) First() string { return b.ID + "-0" }

func (p *Page) id(v *visit) error {
	b := idBody{ID: v.r.PathValue("id")}
	var err error
	switch {
	case strings.HasPrefix(b.ID, "cmp_"):
		err = storeInto(&b.Summary)(v.client.Campaign(v.ctx, b.ID, api.Page{}))
	case strings.HasPrefix(b.ID, "trg_"):
		err = storeInto(&b.Trigger)(v.client.TriggerStatus(v.ctx, b.ID))
		if err == nil && b.Trigger.Status == "FAILED" {
			b.loadLetter(v)
		}
	default:
		err = storeInto(&b.Timeline)(v.client.Timeline(v.ctx, b.ID))
		if e, ok := errors.AsType[*notify.Error](err); ok && e.Code == "index_missing" {
			err = storeInto(&b.Summary)(v.client.Summary(v.ctx, b.ID, api.Page{}))
		}
		if err == nil && b.Timeline != nil {
			b.Story = storyOf(b.Timeline.Events)
			if b.Timeline.Status.Status == "FAILED" {
				b.loadLetter(v)
			}
		}
	}
	if err != nil {
		return err
	}
	return v.show("id", b.ID, &b)
}

// loadLetter loads the dead letter. If the dead letter is not indexed yet or was already removed,
// Letter stays nil.
func (b *idBody) loadLetter(v *visit) {
	if d, err := v.client.DeadLetter(v.ctx, b.ID); err == nil {
		b.Letter = &d
	}
}

// storeInto returns a function that stores a result in *target, unless there is an error.
func storeInto[T any](target **T) func(T, error) error {
	return func(v T, err error) error {
		if err == nil {
			*target = &v
		}
		return err
	}
}

// chart is the drawing of the forecast of the next hour.
type chart struct {
	api.Forecast
	Peak int64
	Bars []bar
	Rows []forecastRow
}

// bar is one channel's part of a minute's column, in units of the drawing.
type bar struct {
	What                string
	X, Y, Width, Height float64
}

type forecastRow struct {
	Minute time.Time
	By     map[string]int64
	Sum    int64
}

// Size of a drawing, in its own units. The page scales it.
const (
	chartWidth  = 600.0
	chartHeight = 80.0
)

// whats lists the kinds of work that can become due, in stacking order from bottom to top.
var whats = []string{"push", "sms", "email", "trigger"}

func (p *Page) forecastOf(v *visit) (c chart, err error) {
	if c.Forecast, err = v.client.Forecast(v.ctx, time.Time{}, time.Time{}); err != nil {
		return c, err
	}
	for _, m := range c.Minutes {
		if n := len(c.Rows); n == 0 || !c.Rows[n-1].Minute.Equal(m.Minute) {
			c.Rows = append(c.Rows, forecastRow{Minute: m.Minute, By: map[string]int64{}})
		}
		r := &c.Rows[len(c.Rows)-1]
		r.By[m.What] += m.Count
		r.Sum += m.Count
		c.Peak = max(c.Peak, r.Sum)
	}
	minutes := max(1, c.To.Sub(c.From.Truncate(time.Minute)).Minutes())
	width := chartWidth / minutes
	for _, r := range c.Rows {
		y := chartHeight
		x := r.Minute.Sub(c.From.Truncate(time.Minute)).Minutes() * width
		for _, w := range whats {
			if n := r.By[w]; n > 0 {
				h := max(1, chartHeight*float64(n)/float64(c.Peak))
				y -= h
				c.Bars = append(c.Bars, bar{w, x, y, max(1, width-1), h})
			}
		}
	}
	return c, nil
}

func (p *Page) forecast(v *visit) error {
	c, err := p.forecastOf(v)
	if err != nil {
		return err
	}
	return v.show("forecast", "Due in the next hour", &c)
}

// Line returns the points of a polyline for the series of rates. The parameter kind is "accepted"
// or "ended".
func (b *overviewBody) Line(kind string) string {
	series := b.Rates.V.Series
	top := b.SeriesPeak()
	if len(series) < 2 || top == 0 {
		return ""
	}
	var s strings.Builder
	for i, pt := range series {
		v := pt.Accepted
		if kind == "ended" {
			v = pt.Ended
		}
		// The latest point is at the right edge, even for a short series.
		x := chartWidth - float64(len(series)-1-i)*chartWidth/60
		s.WriteString(number(x) + "," + strconv.FormatFloat(chartHeight-2-(chartHeight-4)*v/top, 'f', 1, 64) + " ")
	}
	return strings.TrimSpace(s.String())
}

// SeriesPeak returns the highest rate of the series.
func (b *overviewBody) SeriesPeak() (top float64) {
	for _, pt := range b.Rates.V.Series {
		top = max(top, pt.Accepted, pt.Ended)
	}
	return top
}

// Order returns the stacking order of the bars.
func (c chart) Order() []string { return slices.Clone(whats) }
