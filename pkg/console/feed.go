package console

import (
	"context"
	"errors"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// feed is the request that provides the data of a panel.
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
	feeds // number of feeds
)

// pollInterval contains the time between two requests of a feed. The field seen applies while the feed
// is visible, and is at least a second. The field hidden applies while the feed is not visible; if it
// is 0, the feed is then not requested. Hidden feeds are requested only for the counts in the tab line.
var pollInterval = [feeds]struct{ seen, hidden time.Duration }{
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

// feedsOfTab lists the feeds that each tab shows.
var feedsOfTab = [tabs][]feed{
	tabOverview:  {feedRates, feedLag, feedDoctor, feedCircuits, feedTop, feedJobs, feedForecast},
	tabLetters:   {feedTop, feedLetters},
	tabJobs:      {feedJobs},
	tabCircuits:  {feedCircuits},
	tabSchedules: {feedForecast, feedSchedules},
}

// A feed waits at least restFactor times the duration of its last request before its next request.
// So a slow server spends at most a tenth of its time on the requests of a feed.
const restFactor = 9

// feedState is the state of one feed.
type feedState struct {
	underWay   bool // a request is in flight
	generation int  // raised when the request changes: answers to older requests are dropped
	due        time.Time
	lastAnswer time.Time // time of the last good answer; zero: no good answer yet
	refused    error     // error of the last answer; nil if the answer was good
}

// serverLink says whether the server answers.
type serverLink struct {
	awaySince time.Time // since when the server has not answered; zero: it answers
	failures  int       // consecutive failures
	nextTry   time.Time // time of the next try
	lastErr   error     // the last error
}

const (
	firstBackoff = time.Second
	lastBackoff  = 30 * time.Second
	refusedRest  = 30 * time.Second // rest after an error that will not go away soon
)

// feedsToPoll returns the feeds to request now. While the server does not answer, it returns at
// most one feed.
func feedsToPoll(states *[feeds]feedState, l *serverLink, t tab, now time.Time) (list []feed) {
	away := !l.awaySince.IsZero()
	if away && now.Before(l.nextTry) {
		return nil
	}
	for f := range feeds {
		switch s := &states[f]; {
		case s.underWay && away:
			return nil // one request is already in flight
		case s.underWay, now.Before(s.due), pollPeriod(f, t) == 0:
		default:
			list = append(list, f)
		}
	}
	if away && len(list) > 1 {
		list = list[:1]
	}
	return list
}

// pollPeriod returns the poll interval of a feed on a tab. 0 means that the feed is not requested.
func pollPeriod(f feed, t tab) time.Duration {
	for _, s := range feedsOfTab[t] {
		if s == f {
			return pollInterval[f].seen
		}
	}
	return pollInterval[f].hidden
}

// recordAnswer records an answer to a feed and sets the time of its next request.
func recordAnswer(s *feedState, l *serverLink, f feed, t tab, err error, took time.Duration, now time.Time) {
	s.underWay = false
	rest := max(pollPeriod(f, t), restFactor*took)
	switch {
	case err == nil:
		s.lastAnswer, s.refused = now, nil
		s.due = now.Add(rest)
		*l = serverLink{}
	case isAwayError(err):
		if l.awaySince.IsZero() {
			l.awaySince = now
		}
		s.due = now
		if now.Before(l.nextTry) {
			return // requests that failed at the same time count as one failure
		}
		wait := min(firstBackoff<<min(l.failures, 10), lastBackoff)
		l.failures++
		l.lastErr, l.nextTry = err, now.Add(max(wait, min(notify.RetryAfterOf(err), time.Minute)))
	default: // the server answered with an error
		s.refused = err
		s.due = now.Add(max(rest, notify.RetryAfterOf(err), refusedFor(err)))
		*l = serverLink{}
	}
}

// isAwayError reports whether an error means that the server does not answer. The errors of a server
// that runs without the requested function, or that refuses the token, are answers.
func isAwayError(err error) bool {
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
