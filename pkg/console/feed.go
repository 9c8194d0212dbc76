package console

import (
	"context"
	"errors"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// feed is a panel's question to the server.
type feed int

const (
	feedRates feed = iota
	feedLag
	feedDoctor
	feedCircuits
	feedTop
	feedLetters
	feedJobs
	feedForecast
	feedSchedules
	feeds // how many
)

// every is how often a feed is asked while it is to be seen: never more often
// than once a second. hidden is how often otherwise; 0: not at all. The tabs
// count what needs somebody, so a few are asked always.
var every = [feeds]struct{ seen, hidden time.Duration }{
	feedRates:     {time.Second, 0},
	feedLag:       {time.Second, 0},
	feedDoctor:    {5 * time.Second, 0},
	feedCircuits:  {time.Second, 10 * time.Second},
	feedTop:       {5 * time.Second, 15 * time.Second},
	feedLetters:   {2 * time.Second, 0},
	feedJobs:      {time.Second, 10 * time.Second},
	feedForecast:  {10 * time.Second, 0},
	feedSchedules: {5 * time.Second, 0},
}

// seenOn is which feeds a tab draws.
var seenOn = [tabs][]feed{
	tabOverview:  {feedRates, feedLag, feedDoctor, feedCircuits, feedTop, feedJobs, feedForecast},
	tabLetters:   {feedTop, feedLetters},
	tabJobs:      {feedJobs},
	tabCircuits:  {feedCircuits},
	tabSchedules: {feedForecast, feedSchedules},
}

// ease is how much longer than its last answer took a feed rests: a console
// takes a tenth of what a slow server has for it, at most.
const ease = 9

// feedState is where the asking of one feed stands.
type feedState struct {
	asked   bool // a request is under way
	gen     int  // raised when the question changes: answers to older ones are dropped
	due     time.Time
	good    time.Time // of the last answer that was one; zero: there was none
	refused error     // the last answer, if it was an error that is not about the server being away
}

// link is whether the server answers.
type link struct {
	away  time.Time // since when it does not; zero: it does
	fails int       // in a row
	next  time.Time // when it is asked again
	err   error     // the last
}

const (
	firstBackoff = time.Second
	lastBackoff  = 30 * time.Second
	refusedRest  = 30 * time.Second // after an answer that will not soon be another
)

// toAsk is which feeds to ask now. Of a server that is away only one is asked.
func toAsk(states *[feeds]feedState, l *link, t tab, now time.Time) (list []feed) {
	away := !l.away.IsZero()
	if away && now.Before(l.next) {
		return nil
	}
	for f := range feeds {
		switch s := &states[f]; {
		case s.asked && away:
			return nil // it is the one
		case s.asked, now.Before(s.due), period(f, t) == 0:
		default:
			list = append(list, f)
		}
	}
	if away && len(list) > 1 {
		list = list[:1]
	}
	return list
}

// period of a feed on a tab; 0: it is not asked.
func period(f feed, t tab) time.Duration {
	for _, s := range seenOn[t] {
		if s == f {
			return every[f].seen
		}
	}
	return every[f].hidden
}

// answered books an answer that took so long.
func answered(s *feedState, l *link, f feed, t tab, err error, took time.Duration, now time.Time) {
	s.asked = false
	rest := max(period(f, t), ease*took)
	switch {
	case err == nil:
		s.good, s.refused = now, nil
		s.due = now.Add(rest)
		*l = link{}
	case awayError(err):
		if l.away.IsZero() {
			l.away = now
		}
		s.due = now
		if now.Before(l.next) {
			return // those that were under way together count once
		}
		wait := min(firstBackoff<<min(l.fails, 10), lastBackoff)
		l.fails++
		l.err, l.next = err, now.Add(max(wait, min(notify.RetryAfterOf(err), time.Minute)))
	default: // it is there, and says no
		s.refused = err
		s.due = now.Add(max(rest, notify.RetryAfterOf(err), refusedFor(err)))
		*l = link{}
	}
}

// awayError reports whether an error means that there is no server to ask; one
// that lacks a part, or a token, is there.
func awayError(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	e, ok := errors.AsType[*notify.Error](err)
	return ok && e.Kind == notify.KindUnavailable && (e.Code == "no_answer" || e.Code == "busy" || e.Code == "draining" || e.Code == "")
}

func refusedFor(err error) time.Duration {
	switch notify.KindOf(err) {
	case notify.KindForbidden, notify.KindUnauthorized, notify.KindNotFound:
		return refusedRest
	}
	return lastBackoff / 6
}
