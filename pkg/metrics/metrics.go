// Package metrics holds the Prometheus metrics of a process. The other packages report events by
// calling functions that this package gives to them (event functions), and these functions count.
// The package also computes the rates of the last minutes.
//
// metrics.go declares every metric that is counted when something happens, and makes the event
// functions for the intake, the API, the workers and the other parts. rates.go takes samples of the
// counters, so that an operator without Prometheus sees the rates. Start with Metrics and New.
package metrics

import (
	"log/slog"
	"reflect"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/intake"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/server"
	"github.com/notifyd/notifyd/pkg/timer"
	"github.com/notifyd/notifyd/pkg/trigger"
	"github.com/notifyd/notifyd/pkg/worker"
)

// Metrics turns events of the parts of the process into Prometheus metrics. The tags of a field
// define its metric: the name after "notifyd_", the labels and the help text. The pages
// docs/metrics-*.md list the same names with their meanings. A test compares the pages with the
// registry. The number of values of each label is bounded: no label holds an id, a user or a
// caller.
type Metrics struct {
	Registry *prometheus.Registry

	Accepted          *prometheus.CounterVec   `metric:"accepted_receivers_total" labels:"channel category" help:"Receivers made durable by intake."`
	Rejected          *prometheus.CounterVec   `metric:"rejected_receivers_total" labels:"code" help:"Receivers and batch items refused by intake."`
	Refused           *prometheus.CounterVec   `metric:"refused_requests_total" labels:"code" help:"Whole requests that the intake refused or that failed in the intake."`
	Replayed          *prometheus.CounterVec   `metric:"replayed_requests_total" labels:"how" help:"Requests answered again from their idempotency key."`
	Unguarded         *prometheus.CounterVec   `metric:"unguarded_requests_total" labels:"route" help:"Requests accepted although their idempotency key could not be looked up."`
	Spilled           *prometheus.CounterVec   `metric:"spilled_records_total" help:"Records put into the spill buffer while the log was away."`
	Requests          *prometheus.CounterVec   `metric:"http_requests_total" labels:"route method status" help:"Requests answered by the API."`
	RequestSeconds    *prometheus.HistogramVec `metric:"http_request_seconds" labels:"route" help:"Time from the first byte of a request to the end of its answer."`
	InFlight          prometheus.Gauge         `metric:"http_in_flight" help:"Requests under way."`
	TurnedAway        *prometheus.CounterVec   `metric:"http_turned_away_total" labels:"reason" help:"Requests turned away before their handler."`
	Outcomes          *prometheus.CounterVec   `metric:"outcomes_total" labels:"lane state" help:"Outcomes of receivers."`
	Codes             *prometheus.CounterVec   `metric:"outcome_codes_total" labels:"lane code" help:"Outcomes of receivers that carry a code."`
	CallSeconds       *prometheus.HistogramVec `metric:"provider_call_seconds" labels:"lane" help:"Time of one claim window at the provider."`
	AgeSeconds        *prometheus.HistogramVec `metric:"acceptance_to_call_seconds" labels:"lane category" help:"Time from acceptance to the provider call."`
	OutcomeSeconds    *prometheus.HistogramVec `metric:"acceptance_to_outcome_seconds" labels:"lane" help:"Time from acceptance to the durable outcome of a first attempt's envelope."`
	Resumed           *prometheus.CounterVec   `metric:"resumed_receivers_total" labels:"lane" help:"Receivers found started without an outcome after a crash."`
	Duplicates        *prometheus.CounterVec   `metric:"duplicate_receivers_total" labels:"lane" help:"Receivers dropped because their envelope was finished before or is in work already."`
	NewEnvelopes      *prometheus.CounterVec   `metric:"new_envelopes_total" labels:"lane" help:"Envelopes for which no outcome row was read, because they cannot have a row."`
	Parked            *prometheus.CounterVec   `metric:"parked_receivers_total" labels:"lane" help:"Receivers put into the timer store."`
	Poison            *prometheus.CounterVec   `metric:"poison_records_total" labels:"topic" help:"Records put into the poison topic because they cannot be decoded."`
	Damaged           *prometheus.CounterVec   `metric:"damaged_outcome_rows_total" labels:"lane" help:"Outcome rows put into the poison topic because they cannot be decoded."`
	Panics            *prometheus.CounterVec   `metric:"handler_panics_total" labels:"lane" help:"Panics while handling a window."`
	HandlerFailures   *prometheus.CounterVec   `metric:"handler_failures_total" labels:"topic" help:"Failed calls of a group's handler."`
	Resets            *prometheus.CounterVec   `metric:"log_resets_total" labels:"topic" help:"Committed positions of consumer groups that were not in the log."`
	ReceiptRows       *prometheus.CounterVec   `metric:"receipts_total" labels:"channel" help:"Delivery receipts stored."`
	TimersReleased    prometheus.Counter       `metric:"timers_released_total" help:"Timers published when due."`
	TimerLate         prometheus.Histogram     `metric:"timer_late_seconds" help:"Lateness of each published timer."`
	TriggersCreated   prometheus.Counter       `metric:"triggers_created_total" help:"Triggers made durable."`
	TriggersEnded     *prometheus.CounterVec   `metric:"triggers_ended_total" labels:"state" help:"Triggers that became terminal."`
	TriggersDeferred  *prometheus.CounterVec   `metric:"triggers_deferred_total" labels:"cause" help:"Callbacks put off without an attempt."`
	TriggersDead      prometheus.Counter       `metric:"triggers_dead_lettered_total" help:"Records written to triggers-dlq."`
	ClaimsLost        prometheus.Counter       `metric:"trigger_claims_lost_total" help:"Claims and outcomes not stored because another process had changed the row."`
	TriggerSwaps      prometheus.Counter       `metric:"trigger_swaps_total" help:"State rows of triggers swapped."`
	CallbackSeconds   *prometheus.HistogramVec `metric:"callback_seconds" labels:"class" help:"Time of one callback."`
	TriggerLate       prometheus.Histogram     `metric:"trigger_late_seconds" help:"Time from a trigger's fire time to the start of its first attempt."`
	Reconciles        *prometheus.CounterVec   `metric:"trigger_reconciles_total" labels:"result" help:"Runs of the trigger reconciler."`
	ReconcileFindings *prometheus.CounterVec   `metric:"trigger_reconcile_findings_total" labels:"class" help:"Findings of the trigger reconciler."`
	OutcomesTold      prometheus.Counter       `metric:"outcomes_told_total" help:"Outcomes put into triggers to the outcomes URLs of callers."`
	OutcomesRefused   *prometheus.CounterVec   `metric:"outcomes_told_refused_total" labels:"code" help:"Times that no trigger could be made for outcomes of a caller. Codes given_up and undecodable: the outcomes are dropped. Other codes: it is tried again."`
	ArchiveLines      *prometheus.CounterVec   `metric:"archive_lines_total" labels:"kind" help:"Lines written to the archive."`
	ArchiveFailures   prometheus.Counter       `metric:"archive_failures_total" help:"Runs of the archive that ended with an error."`
	SpansExported     prometheus.Counter       `metric:"trace_spans_exported_total" help:"Spans the collector took."`
	SpansDropped      *prometheus.CounterVec   `metric:"trace_spans_dropped_total" labels:"reason" help:"Spans that were dropped before the collector took them."`
	StoreStalled      prometheus.Gauge         `metric:"status_store_stalled_seconds" help:"How long the status store has been refusing outcomes; 0: it accepts them."`
}

// seconds are the bucket bounds of every histogram, in seconds.
var seconds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}

// New creates and registers the metrics of a process. It panics if a field's tags are wrong.
func New() *Metrics {
	m := &Metrics{Registry: prometheus.NewRegistry()}
	m.Registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	v := reflect.ValueOf(m).Elem()
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		if name := tag.Get("metric"); name != "" {
			metric := newMetric(v.Field(i).Addr().Interface(), "notifyd_"+name, tag.Get("help"), strings.Fields(tag.Get("labels")))
			m.Registry.MustRegister(metric)
		}
	}
	return m
}

// newMetric creates the metric for a field of Metrics and stores it there. The parameter field
// points to that field, whose type decides the kind of the metric.
func newMetric(field any, name, help string, labels []string) prometheus.Collector {
	counter := prometheus.CounterOpts{Name: name, Help: help}
	histogram := prometheus.HistogramOpts{Name: name, Help: help, Buckets: seconds}
	switch f := field.(type) {
	case **prometheus.CounterVec:
		*f = prometheus.NewCounterVec(counter, labels)
		return *f
	case **prometheus.HistogramVec:
		*f = prometheus.NewHistogramVec(histogram, labels)
		return *f
	case *prometheus.Counter:
		*f = prometheus.NewCounter(counter)
		return *f
	case *prometheus.Histogram:
		*f = prometheus.NewHistogram(histogram)
		return *f
	case *prometheus.Gauge:
		*f = prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		return *f
	}
	panic("metrics: newMetric does not know the type of the field for " + name)
}

// Add adds n to the counter with these label values.
func Add(c *prometheus.CounterVec, n int, labels ...string) {
	c.WithLabelValues(labels...).Add(float64(n))
}

// Intake returns the event functions with which the intake counts.
func (m *Metrics) Intake() intake.Events {
	return intake.Events{
		Accepted: func(ch notify.Channel, cat notify.Category, _ string, n int) {
			Add(m.Accepted, n, ch.String(), cat.String())
		},
		Rejected:  func(_, code string, n int) { Add(m.Rejected, n, code) },
		Refused:   func(_, code string) { Add(m.Refused, 1, code) },
		Replayed:  func(string) { Add(m.Replayed, 1, "answer") },
		TakenOver: func(string) { Add(m.Replayed, 1, "taken_over") },
		Spilled:   func(n int) { Add(m.Spilled, n) },
	}
}

// HTTP returns the hooks with which the API counts.
func (m *Metrics) HTTP() server.Hooks {
	return server.Hooks{
		Request: func(route, method string, status int, took time.Duration, _, _ int64) {
			m.Requests.WithLabelValues(route, method, statusText(status)).Inc()
			m.RequestSeconds.WithLabelValues(route).Observe(took.Seconds())
		},
		Unguarded: func(name string) { Add(m.Unguarded, 1, name) },
		InFlight:  func(d int) { m.InFlight.Add(float64(d)) },
		Refused:   func(reason string) { Add(m.TurnedAway, 1, reason) },
	}
}

// statusTexts holds the texts "000" to "599", so that the status label of a request needs no
// allocation.
var statusTexts = func() (t [600]string) {
	for i := range t {
		t[i] = string([]byte{byte('0' + i/100), byte('0' + i/10%10), byte('0' + i%10)})
	}
	return t
}()

func statusText(code int) string {
	if code < 0 || code >= len(statusTexts) {
		return "other"
	}
	return statusTexts[code]
}

// Worker returns the event functions with which workers count. While the tail has watchers, the
// function Settled also publishes the outcomes of each window of receivers to the tail. The function
// Finished also passes each finished envelope to the function observe.
func (m *Metrics) Worker(tail *deadletter.Tail, observe func(*notify.Envelope)) worker.Events {
	return worker.Events{
		Finished: func(l notify.Lane, e *notify.Envelope) {
			if !e.Derived() {
				m.OutcomeSeconds.WithLabelValues(l.String()).Observe(time.Since(time.UnixMilli(e.Accepted)).Seconds())
			}
			observe(e)
		},
		Settled: func(s worker.SettledInfo) {
			lane := s.Lane.String()
			for state, n := range s.States {
				if n > 0 {
					Add(m.Outcomes, n, lane, notify.State(state).String())
				}
			}
			for code, n := range s.Codes {
				Add(m.Codes, n, lane, code)
			}
			if s.Called > 0 {
				m.CallSeconds.WithLabelValues(lane).Observe(s.Called.Seconds())
				if !s.Envelope.Derived() {
					m.AgeSeconds.WithLabelValues(lane, s.Envelope.Category.String()).Observe(s.Age.Seconds())
				}
			}
			if tail.Watching() {
				publishSettled(tail, &s)
			}
		},
		Resumed:   func(l notify.Lane, n int) { Add(m.Resumed, n, l.String()) },
		New:       func(l notify.Lane, n int) { Add(m.NewEnvelopes, n, l.String()) },
		Duplicate: func(l notify.Lane, n int) { Add(m.Duplicates, n, l.String()) },
		Parked:    func(l notify.Lane, n int) { Add(m.Parked, n, l.String()) },
		Poison:    func(topic string) { Add(m.Poison, 1, topic) },
		Damaged:   func(l notify.Lane) { Add(m.Damaged, 1, l.String()) },
		Panic:     func(l notify.Lane, _ any) { Add(m.Panics, 1, l.String()) },
	}
}

// publishSettled publishes the outcomes of a window of receivers to the given tail: one event for
// each state that occurs.
func publishSettled(tail *deadletter.Tail, s *worker.SettledInfo) {
	e := s.Envelope
	for state, n := range s.States {
		if n == 0 {
			continue
		}
		ev := api.Event{
			Type: api.EventOutcome, At: time.Now().UTC(), Caller: e.Caller, Channel: e.Channel.String(), Category: e.Category.String(),
			Status: notify.State(state).String(), Attempt: int(e.Attempt), Receivers: n,
			NotificationID: notify.ID{Base: e.Chunk.Base}.String(),
		}
		if len(s.Codes) == 1 {
			for code := range s.Codes {
				ev.Code = code
			}
		}
		tail.Publish(&ev)
	}
}

// Group returns the event functions with which consumer groups count and log.
func (m *Metrics) Group(logger *slog.Logger) log.GroupEvents {
	return log.GroupEvents{
		Failed: func(tp log.TopicPartition, err error) {
			Add(m.HandlerFailures, 1, tp.Topic)
			logger.Error("the handler of a partition failed", "topic", tp.Topic, "partition", tp.Partition, "err", err)
		},
		Held: func(tp log.TopicPartition, cause error) {
			logger.Error("a partition has a record of a newer release and stops until a process of that release takes the partition over; logged once", "topic", tp.Topic, "partition", tp.Partition, "err", cause)
		},
		Reset: func(r log.Reset) {
			Add(m.Resets, 1, r.TP.Topic)
			logger.Error("the committed position of a partition is not in the log; the group continues at the first record of the partition", "topic", r.TP.Topic, "partition", r.TP.Partition,
				"committed", r.Committed, "start", r.Start, "end", r.End)
		},
		Trouble: func(err error) { logger.Warn("a consumer group got an error and continues", "err", err) },
	}
}

// Released counts the timers ts and measures how late each timer was. The parameter published is
// the time at which these timers were published.
func (m *Metrics) Released(_ timer.Lane, ts []engine.Timer, published time.Time) {
	m.TimersReleased.Add(float64(len(ts)))
	for i := range ts {
		m.TimerLate.Observe(published.Sub(time.UnixMilli(ts[i].FireAt)).Seconds())
	}
}

// Triggers returns the event functions that count callbacks. The caller is not a label, because the
// number of callers is unbounded.
func (m *Metrics) Triggers() trigger.Events {
	return trigger.Events{
		Created: func(_ string, n int) { m.TriggersCreated.Add(float64(n)) },
		Ended:   func(_ string, s engine.TriggerState, _ string) { Add(m.TriggersEnded, 1, trigger.StateName(s)) },
		Attempt: func(_, class string, took time.Duration) {
			m.CallbackSeconds.WithLabelValues(class).Observe(took.Seconds())
		},
		Late:         func(_ string, late time.Duration) { m.TriggerLate.Observe(late.Seconds()) },
		Deferred:     func(cause string, n int) { Add(m.TriggersDeferred, n, cause) },
		ClaimLost:    func(n int) { m.ClaimsLost.Add(float64(n)) },
		Swapped:      func(n int) { m.TriggerSwaps.Add(float64(n)) },
		DeadLettered: func(n int) { m.TriggersDead.Add(float64(n)) },
	}
}

// Reconciled counts one run of the trigger reconciler. The map found holds the number of findings
// of each class.
func (m *Metrics) Reconciled(found map[string]int, err error) {
	if err != nil {
		Add(m.Reconciles, 1, "failed")
		return
	}
	Add(m.Reconciles, 1, "ok")
	for class, n := range found {
		Add(m.ReconcileFindings, n, class)
	}
}

// Stalled sets the metric that shows for how long the status store has refused outcomes. This time,
// d, is 0 while the store accepts outcomes.
func (m *Metrics) Stalled(d time.Duration) { m.StoreStalled.Set(d.Seconds()) }

// ReceiptsStored counts n stored rows of receipts.
func (m *Metrics) ReceiptsStored(ch notify.Channel, n int) { Add(m.ReceiptRows, n, ch.String()) }
