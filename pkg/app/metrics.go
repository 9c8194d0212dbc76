package app

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/intake"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/ops"
	"github.com/notifyd/notifyd/pkg/server"
	"github.com/notifyd/notifyd/pkg/stream"
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
	poison, panics, handlerFailures, resets                   *prometheus.CounterVec
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
	m.panics = counter("handler_panics_total", "Panics while handling a window.", "lane")
	m.handlerFailures = counter("handler_failures_total", "Failed calls of a group's handler.", "topic")
	m.resets = counter("log_resets_total", "Positions that were not in the log.", "topic")
	m.receiptRows = counter("receipts_total", "Delivery receipts stored.", "channel")
	m.timersReleased = prometheus.NewCounter(prometheus.CounterOpts{Name: "notifyd_timers_released_total", Help: "Timers published when due."})
	m.timerLate = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "notifyd_timer_late_seconds", Help: "Lateness of each published timer.", Buckets: seconds})
	m.registry.MustRegister(m.timersReleased, m.timerLate, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	single := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "notifyd_" + name, Help: help})
		m.registry.MustRegister(c)
		return c
	}
	m.triggersCreated = single("triggers_created_total", "Triggers made durable.")
	m.triggersEnded = counter("triggers_ended_total", "Triggers that became terminal.", "state")
	m.triggersDeferred = counter("triggers_deferred_total", "Callbacks put off without an attempt.", "cause")
	m.triggersDead = single("triggers_dead_lettered_total", "Records written to triggers-dlq.")
	m.claimsLost = single("trigger_claims_lost_total", "Claims and outcomes that met a row somebody else had changed.")
	m.triggerSwaps = single("trigger_swaps_total", "State rows of triggers swapped.")
	m.callbackSeconds = histogram("callback_seconds", "Time of one callback.", seconds, "class")
	m.triggerLate = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "notifyd_trigger_late_seconds", Help: "From a trigger's fire time to the start of its first attempt.", Buckets: seconds})
	m.registry.MustRegister(m.triggerLate)
	m.reconciles = counter("trigger_reconciles_total", "Runs of the trigger reconciler.", "result")
	m.reconcileFindings = counter("trigger_reconcile_findings_total", "What the trigger reconciler found.", "class")
	m.outcomesTold = single("outcomes_told_total", "Outcomes put into triggers to the URLs of callers that asked to be told.")
	m.outcomesRefused = counter("outcomes_told_refused_total", "Times a caller could not be told of its outcomes; given_up and undecodable: they are not told.", "code")
	m.archiveLines = counter("archive_lines_total", "Lines written to the archive.", "kind")
	m.archiveFailures = single("archive_failures_total", "Runs of the archive that ended with an error.")
	m.spansExported = single("trace_spans_exported_total", "Spans the collector took.")
	m.spansDropped = counter("trace_spans_dropped_total", "Spans the collector will never see.", "reason")
	m.storeStalled = gauge("status_store_stalled_seconds", "How long the status store has been refusing outcomes; 0: it is well.")
	m.registry.MustRegister(&nodeCollector{n}, &sharedCollector{n})
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

func (m *metrics) worker(tail *ops.Tail[api.Event], observe func(*notify.Envelope)) worker.Events {
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
		Panic:     func(l notify.Lane, _ any) { add(m.panics, 1, l.String()) },
	}
}

// publish tells whoever watches: a line per state of a window.
func publish(tail *ops.Tail[api.Event], s *worker.SettledInfo) {
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

func (m *metrics) group(log *slog.Logger) stream.GroupEvents {
	return stream.GroupEvents{
		Failed: func(tp stream.TopicPartition, err error) {
			add(m.handlerFailures, 1, tp.Topic)
			log.Error("handler failed", "topic", tp.Topic, "partition", tp.Partition, "err", err)
		},
		Reset: func(r stream.Reset) {
			add(m.resets, 1, r.TP.Topic)
			log.Error("committed position is not in the log", "topic", r.TP.Topic, "partition", r.TP.Partition,
				"committed", r.Committed, "start", r.Start, "end", r.End, "next", r.Next)
		},
		Trouble: func(err error) { log.Warn("consumer group", "err", err) },
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

// nodeCollector reads the gauges of the parts when they are asked for.
type nodeCollector struct{ n *Node }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("notifyd_"+name, help, labels, nil)
}

var (
	descLogBytes = desc("log_bytes", "Size of the embedded log on disk.")
	descLogCap   = desc("log_cap_bytes", "Size at which intake answers 503.")
	descLogOpen  = desc("log_open", "1 while the log takes more, else 0.")
	descLogFsync = desc("log_fsync_seconds", "Duration of the last fsync probe.")
	descFree     = desc("disk_free_bytes", "Room left on the log's volume.")
	descLost     = desc("log_lost_records", "Acknowledged records lost to damage of the log.", "consumed")
	descLag      = desc("group_lag_records", "Records a consumer group has not read yet.", "group")
	descFlight   = desc("group_in_flight_records", "Records read and not done.", "group")
	descCircuit  = desc("circuit_closed", "1 while calls on a route pass, else 0.", "route")
	descTimers   = desc("timers_loaded", "Timers in the wheel or being published.")
	descPrefs    = desc("preferences_age_seconds", "Age of the preferences workers decide by.")
	descHistory  = desc("history_bytes", "Size of the sealed history.")
	descTail     = desc("history_tail_receivers", "Receivers of the history that are not sealed yet.")
	descStore    = desc("store_bytes", "Size of the store on disk.")
	descSpill    = desc("spill_records", "Records that wait for the log.")
	descQueue    = desc("trigger_queue_messages", "Messages of the delay queue of triggers.", "state")
	descBacklog  = desc("trigger_backlog_messages", "Messages of the delay queue's backlog lane.")
	descShards   = desc("timer_shards_owned", "Timer shards this process releases.")
	descWater    = desc("timer_watermark_age_seconds", "How far the oldest minute that is not closed lies back.")
	descCatchUp  = desc("timers_catching_up", "Timers left of what came due while nobody released them.")
	descLateRows = desc("timer_late_rows_total", "Timers found only when their minute was closed.")
	descRehomed  = desc("timer_rehomed_rows_total", "Timers stored again because their minute was closed.")
	descDropped  = desc("timers_dropped_total", "Timers not released because their schedule was cancelled or moved.")
	descHeads    = desc("schedule_head_swaps_total", "Compare and swaps on schedules; untouched ones cost none.")
	descBeat     = desc("timer_heartbeat_age_seconds", "Since the last sign of life of the timer engine.")
	descCancels  = desc("cancellations_age_seconds", "Age of the cancellations workers decide by.")
	descUnseen   = desc("dead_letter_unseen_age_seconds", "Age of the oldest dead letter its caller's feed has not handed out; 0: there is none.")
	descArchive  = desc("archive_age_seconds", "Since the last run of the archive that reached the end; 0: there is no archive.")
	descArchWait = desc("archive_wait_seconds", "How long what has aged out is kept for the archive; 0: there is no archive.")
	descAllShard = desc("timer_shards", "Timer shards there are, over all processes.")
	descTookOver = desc("timer_shards_taken_over_total", "Timer shards this process began to release.")
	descShardsGo = desc("timer_shards_lost_total", "Timer shards this process lost without giving them up.")
	descTimerErr = desc("timer_publish_failures_total", "Failed calls that should have published due timers.")
	descPaused   = desc("lane_paused", "1 while operators pause a lane, else 0.", "lane")
	descDrift    = desc("audit_drift", "What the latest audit found neither ended nor on its way, by what is wrong.", "class")
	descAudited  = desc("audit_age_seconds", "Since the latest audit began.")
	descSpillAge = desc("spill_age_seconds", "Age of the oldest of them.")
)

// Describe implements prometheus.Collector.
func (c *nodeCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descLogBytes, descLogCap, descLogOpen, descLogFsync, descFree, descLost, descLag, descFlight, descCircuit, descTimers,
		descPrefs, descHistory, descTail, descStore, descSpill, descSpillAge,
		descQueue, descBacklog, descShards, descWater, descCatchUp, descLateRows, descRehomed, descDropped, descHeads, descBeat,
		descCancels, descUnseen, descArchive, descArchWait, descAllShard, descTookOver, descShardsGo, descTimerErr, descPaused, descDrift, descAudited,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *nodeCollector) Collect(ch chan<- prometheus.Metric) {
	n := c.n
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	truth := func(ok bool) float64 {
		if ok {
			return 1
		}
		return 0
	}
	if n.own != nil {
		n.own.collect(gauge, n.losses())
	}
	behind := map[string]Lag{} // by group, over its topics
	for _, l := range n.lags() {
		sum := behind[l.Group]
		sum.Lag, sum.InFlight = sum.Lag+l.Lag, sum.InFlight+l.InFlight
		behind[l.Group] = sum
	}
	for group, l := range behind {
		gauge(descLag, float64(l.Lag), group)
		gauge(descFlight, float64(l.InFlight), group)
	}
	now := time.Now()
	for _, r := range n.health.Circuits(now) {
		gauge(descCircuit, truth(r.State == limit.Closed.String() && r.Blocked.IsZero()), r.Route)
	}
	// A process tells of what it does: of the rest it knows nothing that is new.
	if n.does(func(t Tasks) bool { return t.Scheduler }) {
		n.collectTimers(ch, gauge)
	}
	if q, err := n.later.queue.Depth(context.Background()); err == nil {
		gauge(descQueue, float64(q.Ready), "ready")
		gauge(descQueue, float64(q.Delayed), "delayed")
		gauge(descQueue, float64(q.InFlight), "in_flight")
		gauge(descQueue, float64(q.Dead), "dead")
		gauge(descBacklog, float64(q.Backlog))
	}
	if n.does(func(t Tasks) bool { return len(t.Lanes) > 0 }) {
		gauge(descPrefs, n.prefs.Age(now).Seconds())
		gauge(descCancels, n.cancels.Age(now).Seconds())
	}
	if n.does(func(t Tasks) bool { return t.Operator }) {
		if failed, err := n.feeds.OldestUnseen(context.Background()); err == nil {
			gauge(descUnseen, ageOf(failed, now))
		}
	}
	age, wait := 0.0, 0.0
	if n.archive != nil {
		s := n.archive.Status(now)
		age, wait = s.Age.Seconds(), s.Wait.Seconds()
	}
	gauge(descArchive, age)
	gauge(descArchWait, wait)
	for l, g := range n.lanes.gates {
		gauge(descPaused, truth(g.IsShut()), l.String())
	}
	if rep := n.conserve.last.Load(); rep != nil {
		for _, class := range api.DriftClasses {
			gauge(descDrift, float64(rep.Classes[class]), class)
		}
		gauge(descAudited, now.Sub(rep.At).Seconds())
	}
	if n.st.spill == nil {
		return
	}
	if recs, _, oldest, err := n.st.spill.Stats(context.Background()); err == nil {
		gauge(descSpill, float64(recs))
		gauge(descSpillAge, ageOf(oldest, now))
	}
}

// does reports whether the process has a task; one with engines of its own has all.
func (n *Node) does(task func(Tasks) bool) bool { return n.own != nil || task(n.tasks) }

// collectTimers are the metrics of the timer engine.
func (n *Node) collectTimers(ch chan<- prometheus.Metric, gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	st := n.later.timers.Stats()
	gauge(descTimers, float64(st.Pending))
	gauge(descShards, float64(len(st.Shards)))
	water := time.Duration(0)
	for _, s := range st.Shards {
		water = max(water, s.WatermarkAge)
	}
	for _, s := range st.Others {
		water = max(water, s.WatermarkAge)
	}
	gauge(descWater, water.Seconds())
	gauge(descCatchUp, float64(st.Backlog.Left))
	gauge(descBeat, st.HeartbeatAge.Seconds())
	count := func(d *prometheus.Desc, v uint64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	count(descLateRows, st.LateRows)
	count(descRehomed, st.Rehomed)
	count(descDropped, st.Dropped)
	count(descHeads, st.HeadSwaps)
	gauge(descAllShard, float64(n.cfg.Timers.Shards))
	count(descTookOver, st.TookOver)
	count(descShardsGo, st.Lost)
	count(descTimerErr, st.PublishFailures)
}

// collect are the gauges of engines that belong to this process.
func (e *embedded) collect(gauge func(d *prometheus.Desc, v float64, labels ...string), losses []loss) {
	use := e.broker.Guard().Usage()
	gauge(descLogBytes, float64(use.LogBytes))
	gauge(descLogCap, float64(use.CapBytes))
	open := 0.0
	if use.Err == nil {
		open = 1
	}
	gauge(descLogOpen, open)
	gauge(descLogFsync, use.Fsync.Seconds())
	gauge(descFree, float64(use.Free))
	consumed, lost := int64(0), int64(0)
	for _, l := range losses {
		consumed += l.consumed()
		lost += l.Records() - l.consumed()
	}
	gauge(descLost, float64(consumed), "yes")
	gauge(descLost, float64(lost), "no")
	h := e.history.Stats()
	gauge(descHistory, float64(h.Bytes))
	gauge(descTail, float64(h.Tail))
	gauge(descStore, float64(e.store.Metrics().DiskBytes))
}

// ageOf is how many seconds lie between a moment (ms since 1970) and now; 0
// without a moment.
func ageOf(at int64, now time.Time) float64 {
	if at == 0 {
		return 0
	}
	return max(now.Sub(time.UnixMilli(at)).Seconds(), 0)
}
