package app

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
)

// nodeCollector reads the metrics of a node's parts at each scrape.
type nodeCollector struct{ n *Node }

// nodeDescs holds the descriptions of all metrics of nodeCollector.
var nodeDescs []*prometheus.Desc

func desc(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc("notifyd_"+name, help, labels, nil)
	nodeDescs = append(nodeDescs, d)
	return d
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
	descDeferred = desc("deferred_receivers", "Receivers that wait in the timer store for a later attempt.", "lane", "reason")
	descDeferAge = desc("deferred_oldest_seconds", "Age of the oldest request among them.", "lane", "reason")
	descCountAge = desc("deferred_count_age_seconds", "Since the deferred receivers were counted.")
	descTimers   = desc("timers_loaded", "Timers in the wheel or being published.")
	descPrefs    = desc("preferences_age_seconds", "Age of the preferences workers decide by.")
	descHeld     = desc("preferences_users", "Users whose preferences and addresses are in memory.")
	descLoad     = desc("preferences_load_seconds", "How long the latest load of the users of assigned partitions took.")
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
	descRemoval  = desc("removal_behind_seconds", "How far the clock is ahead of the time that removal goes by, over an hour; 0: removal follows the clock.")
	descAllShard = desc("timer_shards", "Timer shards there are, over all processes.")
	descTookOver = desc("timer_shards_taken_over_total", "Timer shards this process began to release.")
	descShardsGo = desc("timer_shards_lost_total", "Timer shards this process lost without giving them up.")
	descTimerErr = desc("timer_publish_failures_total", "Failed calls that should have published due timers.")
	descPaused   = desc("lane_paused", "1 while operators pause a lane, else 0.", "lane")
	descDrift    = desc("audit_drift", "What the latest audit found neither ended nor on its way, by what is wrong.", "class")
	descAudited  = desc("audit_age_seconds", "Since the latest audit began.")
	descSpillAge = desc("spill_age_seconds", "Age of the oldest of them.")

	descOverload   = desc("overload", "1 while batches and fan-outs are refused because too many come, else 0.")
	descBulkWait   = desc("bulk_wait_seconds", "How long a batch or a fan-out that came now would wait.")
	descBulkAhead  = desc("bulk_ahead_bytes", "Bytes of batches and fan-outs that were let in and are not answered.")
	descBulkAppend = desc("bulk_append_limit_bytes", "Bytes that appends of bulk lanes may have under way at once, by the latency of the log.")
)

// Describe implements prometheus.Collector.
func (c *nodeCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range nodeDescs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *nodeCollector) Collect(ch chan<- prometheus.Metric) {
	n := c.n
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	if n.embedded != nil {
		n.embedded.collect(gauge)
	}
	c.collectShared(ch, gauge)
	c.collectAdmission(gauge)
	behind := map[string]api.GroupLag{} // by group: the sums over the topics of the group
	for _, l := range n.groups.lags() {
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
		gauge(descCircuit, boolGauge(r.State == limit.Closed.String() && r.Blocked.IsZero()), r.Route)
	}
	for _, l := range notify.Lanes() {
		reasons, at, ok := n.deferred.OfLane(l)
		for reason, d := range reasons {
			gauge(descDeferred, float64(d.Receivers), l.String(), reason)
			gauge(descDeferAge, max(now.Sub(d.Oldest), 0).Seconds()*boolGauge(d.Receivers > 0), l.String(), reason)
		}
		if ok && l == notify.Lanes()[0] {
			gauge(descCountAge, now.Sub(at).Seconds())
		}
	}
	// A process reports only the work that it does. Its data about other work would be outdated.
	if n.hasTask(func(t cluster.Tasks) bool { return t.Scheduler }) {
		c.collectTimers(ch, gauge)
	}
	if q, err := n.later.queue.Depth(context.Background()); err == nil {
		gauge(descQueue, float64(q.Ready), "ready")
		gauge(descQueue, float64(q.Delayed), "delayed")
		gauge(descQueue, float64(q.InFlight), "in_flight")
		gauge(descQueue, float64(q.Dead), "dead")
		gauge(descBacklog, float64(q.Backlog))
	}
	if n.hasTask(func(t cluster.Tasks) bool { return len(t.Lanes) > 0 }) {
		gauge(descPrefs, n.prefs.Age(now).Seconds())
		gauge(descHeld, float64(n.prefs.HeldUsers()))
		gauge(descLoad, n.prefs.LastLoad().Seconds())
		gauge(descCancels, n.cancels.Age(now).Seconds())
	}
	if n.hasTask(func(t cluster.Tasks) bool { return t.Operator }) {
		if failed, err := n.feeds.OldestUnseen(context.Background()); err == nil {
			gauge(descUnseen, ageOf(failed, now))
		}
	}
	age, wait := 0.0, 0.0
	if n.archive != nil {
		s := n.archive.Status(context.Background(), now)
		age, wait = s.Age.Seconds(), s.Wait.Seconds()
	}
	gauge(descArchive, age)
	gauge(descArchWait, wait)
	_, ahead := n.removals.Ahead()
	gauge(descRemoval, ahead.Seconds())
	for _, l := range notify.Lanes() {
		gauge(descPaused, boolGauge(n.lanes.Gate(l).IsShut()), l.String())
	}
	if rep := n.auditor.Latest(); rep != nil {
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

// collectTimers collects the metrics of the timer engine.
func (c *nodeCollector) collectTimers(ch chan<- prometheus.Metric, gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	st := c.n.later.timers.Stats()
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
	if all, err := c.n.shards.Now(); err == nil {
		gauge(descAllShard, float64(all.Most()))
	}
	count(descTookOver, st.TookOver)
	count(descShardsGo, st.Lost)
	count(descTimerErr, st.PublishFailures)
}

// collect collects the metrics of the embedded engines.
func (e *embeddedEngines) collect(gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	use := e.broker.Guard().Usage()
	gauge(descLogBytes, float64(use.LogBytes))
	gauge(descLogCap, float64(use.CapBytes))
	gauge(descLogOpen, boolGauge(use.Err == nil))
	gauge(descLogFsync, use.Fsync.Seconds())
	gauge(descFree, float64(use.Free))
	consumed, lost := int64(0), int64(0)
	for _, l := range e.losses() {
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

// ageOf returns the seconds from startMs (ms since 1970) to now, or 0 if startMs is 0.
func ageOf(startMs int64, now time.Time) float64 {
	if startMs == 0 {
		return 0
	}
	return max(now.Sub(time.UnixMilli(startMs)).Seconds(), 0)
}
