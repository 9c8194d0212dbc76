package app

import (
	"log/slog"
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

// metrics turns what the stages report into Prometheus metrics. Their names
// and meanings stand in docs/metrics.md, which a test holds against this
// registry. Labels are bounded: no ids, no users, no callers.
type metrics struct {
	registry *prometheus.Registry

	accepted, rejected, refused, replayed, unguarded, spilled *prometheus.CounterVec
	requests                                                  *prometheus.CounterVec
	requestSeconds                                            *prometheus.HistogramVec
	inFlight                                                  prometheus.Gauge
	turnedAway                                                *prometheus.CounterVec
	outcomes, codes                                           *prometheus.CounterVec
	callSeconds, ageSeconds, outcomeSeconds                   *prometheus.HistogramVec
	resumed, duplicates, parked                               *prometheus.CounterVec
	poison, damaged, panics, handlerFailures, resets          *prometheus.CounterVec
	timersReleased                                            prometheus.Counter
	timerLate                                                 prometheus.Histogram
	storeStalled                                              prometheus.Gauge
	receiptRows                                               *prometheus.CounterVec
	triggersEnded, triggersDeferred                           *prometheus.CounterVec
	triggersCreated, triggersDead                             prometheus.Counter
	claimsLost, triggerSwaps                                  prometheus.Counter
	callbackSeconds                                           *prometheus.HistogramVec
	triggerLate                                               prometheus.Histogram
	reconciles, reconcileFindings                             *prometheus.CounterVec
	outcomesTold                                              prometheus.Counter
	outcomesRefused                                           *prometheus.CounterVec
	archiveLines                                              *prometheus.CounterVec
	archiveFailures                                           prometheus.Counter
	spansExported                                             prometheus.Counter
	spansDropped                                              *prometheus.CounterVec
}

func newMetrics(n *Node) *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "notifyd_" + name, Help: help}, labels)
		m.registry.MustRegister(c)
		return c
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "notifyd_" + name, Help: help, Buckets: buckets}, labels)
		m.registry.MustRegister(h)
		return h
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "notifyd_" + name, Help: help})
		m.registry.MustRegister(g)
		return g
	}
	seconds := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}
	m.accepted = counter("accepted_receivers_total", "Receivers made durable by intake.", "channel", "category")
	m.rejected = counter("rejected_receivers_total", "Receivers and batch items refused by intake.", "code")
	m.refused = counter("refused_requests_total", "Whole requests refused or failed at intake.", "code")
	m.replayed = counter("replayed_requests_total", "Requests answered again from their idempotency key.", "how")
	m.unguarded = counter("unguarded_requests_total", "Requests taken without their idempotency key, which could not be looked up.", "route")
	m.spilled = counter("spilled_records_total", "Records put into the spill buffer while the log was away.")
	m.requests = counter("http_requests_total", "Requests answered by the API.", "route", "method", "status")
	m.requestSeconds = histogram("http_request_seconds", "Time from the first byte of a request to the end of its answer.", seconds, "route")
	m.inFlight = gauge("http_in_flight", "Requests under way.")
	m.turnedAway = counter("http_turned_away_total", "Requests turned away before their handler.", "reason")
	m.outcomes = counter("outcomes_total", "Outcomes of receivers.", "lane", "state")
	m.codes = counter("outcome_codes_total", "Outcomes of receivers that carry a code.", "lane", "code")
	m.callSeconds = histogram("provider_call_seconds", "Time of one claim window at the provider.", seconds, "lane")
	m.ageSeconds = histogram("acceptance_to_call_seconds", "Time from acceptance to the provider call.", seconds, "lane", "category")
	m.outcomeSeconds = histogram("acceptance_to_outcome_seconds", "Time from acceptance to the durable outcome of a first attempt's envelope.", seconds, "lane")
	m.resumed = counter("resumed_receivers_total", "Receivers found started without an outcome after a crash.", "lane")
	m.duplicates = counter("duplicate_receivers_total", "Receivers of envelopes that had been finished before, dropped.", "lane")
	m.parked = counter("parked_receivers_total", "Receivers put into the timer store.", "lane")
	m.poison = counter("poison_records_total", "Undecodable records put aside.", "topic")
	m.damaged = counter("damaged_outcome_rows_total", "Undecodable outcome rows put aside.", "lane")
	m.panics = counter("handler_panics_total", "Panics while handling a window.", "lane")
	m.handlerFailures = counter("handler_failures_total", "Failed calls of a group's handler.", "topic")
	m.resets = counter("log_resets_total", "Positions that were not in the log.", "topic")
	m.receiptRows = counter("receipts_total", "Delivery receipts stored.", "channel")
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	single := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "notifyd_" + name, Help: help})
		m.registry.MustRegister(c)
		return c
	}
	lateness := func(name, help string) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "notifyd_" + name, Help: help, Buckets: seconds})
		m.registry.MustRegister(h)
		return h
	}
	m.timersReleased = single("timers_released_total", "Timers published when due.")
	m.timerLate = lateness("timer_late_seconds", "Lateness of each published timer.")
	m.triggersCreated = single("triggers_created_total", "Triggers made durable.")
	m.triggersEnded = counter("triggers_ended_total", "Triggers that became terminal.", "state")
	m.triggersDeferred = counter("triggers_deferred_total", "Callbacks put off without an attempt.", "cause")
	m.triggersDead = single("triggers_dead_lettered_total", "Records written to triggers-dlq.")
	m.claimsLost = single("trigger_claims_lost_total", "Claims and outcomes that met a row somebody else had changed.")
	m.triggerSwaps = single("trigger_swaps_total", "State rows of triggers swapped.")
	m.callbackSeconds = histogram("callback_seconds", "Time of one callback.", seconds, "class")
	m.triggerLate = lateness("trigger_late_seconds", "From a trigger's fire time to the start of its first attempt.")
	m.reconciles = counter("trigger_reconciles_total", "Runs of the trigger reconciler.", "result")
	m.reconcileFindings = counter("trigger_reconcile_findings_total", "What the trigger reconciler found.", "class")
	m.outcomesTold = single("outcomes_told_total", "Outcomes put into triggers to the URLs of callers that asked to be told.")
	m.outcomesRefused = counter("outcomes_told_refused_total", "Times a caller could not be told of its outcomes; given_up and undecodable: they are not told.", "code")
	m.archiveLines = counter("archive_lines_total", "Lines written to the archive.", "kind")
	m.archiveFailures = single("archive_failures_total", "Runs of the archive that ended with an error.")
	m.spansExported = single("trace_spans_exported_total", "Spans the collector took.")
	m.spansDropped = counter("trace_spans_dropped_total", "Spans the collector will never see.", "reason")
	m.storeStalled = gauge("status_store_stalled_seconds", "How long the status store has been refusing outcomes; 0: it is well.")
	m.registry.MustRegister(&nodeCollector{n})
	return m
}

func add(c *prometheus.CounterVec, n int, labels ...string) {
	c.WithLabelValues(labels...).Add(float64(n))
}

func (m *metrics) intake() intake.Events {
	return intake.Events{
		Accepted: func(ch notify.Channel, cat notify.Category, _ string, n int) {
			add(m.accepted, n, ch.String(), cat.String())
		},
		Rejected:  func(_, code string, n int) { add(m.rejected, n, code) },
		Refused:   func(_, code string) { add(m.refused, 1, code) },
		Replayed:  func(string) { add(m.replayed, 1, "answer") },
		TakenOver: func(string) { add(m.replayed, 1, "taken_over") },
		Spilled:   func(n int) { add(m.spilled, n) },
	}
}

func (m *metrics) http() server.Hooks {
	return server.Hooks{
		Request: func(route, method string, status int, took time.Duration, _, _ int64) {
			m.requests.WithLabelValues(route, method, statusText(status)).Inc()
			m.requestSeconds.WithLabelValues(route).Observe(took.Seconds())
		},
		Unguarded: func(name string) { add(m.unguarded, 1, name) },
		InFlight:  func(d int) { m.inFlight.Add(float64(d)) },
		Refused:   func(reason string) { add(m.turnedAway, 1, reason) },
	}
}

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

func (m *metrics) worker(tail *deadletter.Tail[api.Event], observe func(*notify.Envelope)) worker.Events {
	return worker.Events{
		Finished: func(l notify.Lane, e *notify.Envelope) {
			if !e.Derived() {
				m.outcomeSeconds.WithLabelValues(l.String()).Observe(time.Since(time.UnixMilli(e.Accepted)).Seconds())
			}
			observe(e)
		},
		Settled: func(s worker.SettledInfo) {
			lane := s.Lane.String()
			for state, n := range s.States {
				if n > 0 {
					add(m.outcomes, n, lane, notify.State(state).String())
				}
			}
			for code, n := range s.Codes {
				add(m.codes, n, lane, code)
			}
			if s.Called > 0 {
				m.callSeconds.WithLabelValues(lane).Observe(s.Called.Seconds())
				if !s.Envelope.Derived() {
					m.ageSeconds.WithLabelValues(lane, s.Envelope.Category.String()).Observe(s.Age.Seconds())
				}
			}
			if tail.Watching() {
				publish(tail, &s)
			}
		},
		Resumed:   func(l notify.Lane, n int) { add(m.resumed, n, l.String()) },
		Duplicate: func(l notify.Lane, n int) { add(m.duplicates, n, l.String()) },
		Parked:    func(l notify.Lane, n int) { add(m.parked, n, l.String()) },
		Poison:    func(topic string) { add(m.poison, 1, topic) },
		Damaged:   func(l notify.Lane) { add(m.damaged, 1, l.String()) },
		Panic:     func(l notify.Lane, _ any) { add(m.panics, 1, l.String()) },
	}
}

// publish tells whoever watches: a line per state of a window.
func publish(tail *deadletter.Tail[api.Event], s *worker.SettledInfo) {
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
		tail.Publish(e.Caller, ev)
	}
}

func (m *metrics) group(logger *slog.Logger) log.GroupEvents {
	return log.GroupEvents{
		Failed: func(tp log.TopicPartition, err error) {
			add(m.handlerFailures, 1, tp.Topic)
			logger.Error("handler failed", "topic", tp.Topic, "partition", tp.Partition, "err", err)
		},
		Held: func(tp log.TopicPartition, cause error) {
			logger.Error("a partition stands until a process of a newer release takes it over; told once", "topic", tp.Topic, "partition", tp.Partition, "err", cause)
		},
		Reset: func(r log.Reset) {
			add(m.resets, 1, r.TP.Topic)
			logger.Error("committed position is not in the log", "topic", r.TP.Topic, "partition", r.TP.Partition,
				"committed", r.Committed, "start", r.Start, "end", r.End, "next", r.Next)
		},
		Trouble: func(err error) { logger.Warn("consumer group", "err", err) },
	}
}

func (m *metrics) released(_ timer.Lane, ts []engine.Timer, at time.Time) {
	m.timersReleased.Add(float64(len(ts)))
	for i := range ts {
		m.timerLate.Observe(at.Sub(time.UnixMilli(ts[i].FireAt)).Seconds())
	}
}

// triggers counts what becomes of callbacks. Callers are no labels: there may be
// many, and metrics name none.
func (m *metrics) triggers() trigger.Events {
	return trigger.Events{
		Created: func(_ string, n int) { m.triggersCreated.Add(float64(n)) },
		Ended:   func(_ string, s engine.TriggerState, _ string) { add(m.triggersEnded, 1, trigger.StateName(s)) },
		Attempt: func(_, class string, took time.Duration) {
			m.callbackSeconds.WithLabelValues(class).Observe(took.Seconds())
		},
		Late:         func(_ string, late time.Duration) { m.triggerLate.Observe(late.Seconds()) },
		Deferred:     func(cause string, n int) { add(m.triggersDeferred, n, cause) },
		ClaimLost:    func(n int) { m.claimsLost.Add(float64(n)) },
		Swapped:      func(n int) { m.triggerSwaps.Add(float64(n)) },
		DeadLettered: func(n int) { m.triggersDead.Add(float64(n)) },
	}
}

// reconciled counts what a run of the trigger reconciler found, by class.
func (m *metrics) reconciled(found map[string]int, err error) {
	if err != nil {
		add(m.reconciles, 1, "failed")
		return
	}
	add(m.reconciles, 1, "ok")
	for class, n := range found {
		add(m.reconcileFindings, n, class)
	}
}

func (m *metrics) stalled(d time.Duration) { m.storeStalled.Set(d.Seconds()) }

func (m *metrics) receipts(ch notify.Channel, n int) { add(m.receiptRows, n, ch.String()) }
