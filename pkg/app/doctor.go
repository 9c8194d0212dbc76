package app

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log/embedded"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/worker"
)

// doctor collects findings about everything that can be wrong with a process.
type doctor struct {
	n *Node
	engine.Findings
}

// views answers operators' requests about this process.
type views struct{ *Node }

// doctor answers GET /v1/ops/doctor.
func (n views) doctor(ctx context.Context) (any, error) {
	d := &doctor{n: n.Node}
	d.lookAtAll(ctx)
	return d.Findings, nil
}

// setUsed sets the field Used of the last finding to used/total, the share of a limited resource,
// such as a disk, that is in use. If total is 0, it does nothing.
func (d *doctor) setUsed(used, total float64) {
	if total > 0 {
		share := used / total
		d.Findings[len(d.Findings)-1].Used = &share
	}
}

// circuitText describes the circuit of a provider: its state, since when, why, and the time until the
// next try.
func circuitText(c *worker.Circuit, now time.Time) string {
	text := c.State
	if !c.Blocked.IsZero() && c.State == "closed" {
		text = "throttled"
	}
	if !c.Since.IsZero() {
		text += " since " + c.Since.UTC().Format(time.RFC3339)
	}
	if why := strings.Trim(c.Reason+", "+c.Code, ", "); why != "" {
		text += ": " + why
	}
	if c.RetryAt.After(now) {
		text += "; next try in " + c.RetryAt.Sub(now).Round(time.Second).String()
	}
	return text
}

func (d *doctor) lookAtAll(ctx context.Context) {
	n := d.n
	if n.embedded != nil {
		d.lookAtOwn()
	} else {
		d.lookAtServers(ctx)
	}
	d.lookAtProcesses(n.cards.All(ctx))
	if n.archive != nil {
		s := n.archive.Status(ctx, time.Now())
		bad, level := archiveLevel(s)
		d.Add("archive", bad, level,
			"make archive.dir writable, make room on its volume, or make the bucket reachable; data that has aged out is kept for archive.wait, and is then removed without being archived",
			"%d files in %s, complete up to %s ago%s", s.Files, archivePlace(&n.cfg), s.Age.Round(time.Second), errSuffix(s.Err))
	}
	for _, l := range notify.Lanes() {
		since, by, reason, paused := n.lanes.Paused(l)
		if paused {
			d.Add("lane "+l.String(), true, "warn",
				"ask the operator who paused the lane whether it may continue, then notifyctl lane resume LANE",
				"paused since %s by %s%s; notifyctl lane resume %s", since.Format(time.RFC3339), by, colonReason(reason), l)
		}
	}
	for _, ch := range notify.Channels {
		_, ok := n.provs.byChannel[ch]
		d.Add("provider "+ch.String(), !ok, "warn",
			"configure the provider in the section providers, if notifications of this channel are to be sent",
			"configured: %v", ok)
	}
	d.lookAtSecrets(ctx)
	d.lookAtSpill(ctx)
	lags := n.groups.lags()
	for i := range lags {
		l := &lags[i]
		d.Add("lag "+lagName(l, lags), l.Lag > 1_000_000, "warn",
			"look at the circuits and at the processor: more records arrive than the workers handle",
			"%d records behind, %d in flight", l.Lag, l.InFlight)
	}
}

// lookAtSelf adds findings about this process only. It sends no request to a server.
func (d *doctor) lookAtSelf() {
	n := d.n
	d.lookAtAdmission()
	if n.embedded != nil || len(n.tasks.Lanes) > 0 {
		d.Add("preferences", !n.prefs.Fresh(time.Now()), "fail",
			"look at the store and at the load: bulk lanes make no calls until the snapshot is fresh",
			"%s", n.preferencesText())
		for _, c := range n.health.Circuits(time.Now()) {
			d.Add("circuit "+c.Route, c.State != "closed" || !c.Blocked.IsZero(), "warn",
				"notifyctl explain CODE says what the code means; if the reason is config, correct the provider's credentials; otherwise the circuit closes by itself",
				"%s", circuitText(&c, time.Now()))
		}
	}
	if n.embedded == nil {
		off := n.clock.Offset()
		d.Add("clock", off.Abs() > cluster.MaxClockOffset, "fail",
			"let NTP or chrony set this machine's clock, then wait a few seconds",
			"this machine's clock is %s off from the servers' clocks; above %s this process owns no timers, makes no callbacks, and answers 503 to what is due later and to cancels of schedules", off.Round(time.Millisecond), cluster.MaxClockOffset)
	}
	if part, ahead := n.removals.Ahead(); ahead > 0 {
		d.Add("removal", true, "warn",
			"compare this machine's clock with another clock; if this clock is wrong, correct it before the removal of old data catches up; after a long stop do nothing: the removal has caught up six days later",
			"the clock is %s ahead of the time that the removal of old data uses (%s): the clock jumped, or notifyd was down", ahead.Round(time.Second), part)
	}
	for _, what := range n.groups.heldPartitions() {
		d.Add("newer", true, "fail",
			"upgrade this process: a process of the newer release continues at the record where this process stopped",
			"%s", what)
	}
}

// lookAtSpill checks the spill buffer. While the log is unavailable, the spill buffer stores otp and
// alert.
func (d *doctor) lookAtSpill(ctx context.Context) {
	waiting, text := true, "there is no spill buffer, so otp and alert also get 503 while the log is unavailable"
	if d.n.st.spill != nil {
		recs, bytes, oldest, err := d.n.st.spill.Stats(ctx)
		if err != nil {
			return
		}
		waiting, text = recs > 0, fmt.Sprintf("%d records, %d bytes wait for the log%s", recs, bytes, oldestText(oldest))
	}
	d.Add("spill", waiting, "warn",
		"do nothing if the buffer shrinks: it drains the otp and alert that were accepted while the log was unavailable; otherwise look at the log",
		"%s", text)
}

// lookAtOwn checks the embedded engines.
func (d *doctor) lookAtOwn() {
	n := d.n
	use := n.embedded.broker.Guard().Usage()
	d.Add("log", use.Err != nil, "fail",
		"look at the log's volume and at the log of notifyd, then restart: intake is closed until then",
		"%d of %d MiB, fsync %s%s", use.LogBytes>>20, use.CapBytes>>20, use.Fsync.Round(10*time.Microsecond), errSuffix(use.Err))
	d.setUsed(float64(use.LogBytes), float64(use.CapBytes))
	d.Add("log size", use.LogBytes > use.CapBytes*3/4, "warn",
		"find the consumer group that makes no progress (notifyctl lag), or raise log.cap_mib; at the cap intake answers 503",
		"%.0f%% of the cap is used; a record is trimmed when its group has committed it and the history has sealed it", 100*float64(use.LogBytes)/float64(use.CapBytes))
	losses := n.embedded.losses()
	damage := func(what any) {
		d.Add("log damage", true, "fail",
			"look for faults of the disk, then deal with the lost records: the history and the outcomes of the range show what was sent",
			"%s", what)
	}
	for _, l := range losses {
		damage(l)
	}
	for _, t := range n.embedded.broker.Truncated() {
		damage(t)
	}
	for _, t := range n.embedded.broker.Torn() {
		d.Add("log tail", false, "", "", "%s/%d: a crash cut the write of offset %d short; it was not acknowledged", t.Topic, t.Partition, t.Offset)
	}
	settle := "" // says how an operator ends the report of losses
	if len(losses) > 0 {
		settle = "; when they are dealt with, remove " + filepath.Join(n.cfg.DataDir, "log", embedded.LossesFile) + " and restart"
	}
	d.Add("log segments", len(losses) > 0, "fail",
		"deal with each range named above; the detail says how to end the report",
		"%d ranges of acknowledged records are lost to damage%s", len(losses), settle)
	d.Add("positions", len(n.embedded.lostGroupPositions) > 0, "fail",
		"if more than log/groups.log was removed, restore the data folder from a backup; otherwise do nothing: the next start finds the positions that are kept from now on",
		"%s", n.embedded.positionsText())
	d.Add("log durability", !n.cfg.Log.Sync, "warn",
		"set log.sync: true, unless losing acknowledged records at a power cut is acceptable",
		"fsync before an acknowledgement: %v", n.cfg.Log.Sync)
	err := n.embedded.store.Err()
	d.Add("store", err != nil, "fail",
		"look at the store's volume, then restart; if the disk has a fault, restore a backup",
		"pebble%s", errSuffix(err))
	if disk, err := n.embedded.store.DiskUsage(); err == nil {
		bad, level := diskLevel(disk.Available, n.cfg.Log.MinFreeMiB)
		d.Add("disk", bad, level,
			"make room on the volume of data_dir: at log.min_free_mib intake answers 503",
			"%d MiB free of %d; intake stops at %d", disk.Available>>20, disk.Total>>20, n.cfg.Log.MinFreeMiB)
		d.setUsed(float64(disk.Total)-float64(disk.Available), float64(disk.Total))
	}
	damaged := n.embedded.history.Damaged()
	d.Add("history", len(damaged) > 0, "fail",
		"for analysis, keep the files that the log of notifyd names; restore them from a backup; ids in other files can still be read",
		"%d segments, %d damaged files", n.embedded.history.Stats().Segments, len(damaged))
}

// diskLevel returns how serious it is that the disk has only freeBytes bytes of free space. Below
// the configured minimum, intake has stopped. Below 1 GiB, or below twice the minimum, intake will
// stop soon.
func diskLevel(freeBytes uint64, minFreeMiB int) (bad bool, level string) {
	least := uint64(minFreeMiB) << 20
	switch {
	case freeBytes < least:
		return true, "fail"
	case freeBytes < max(1<<30, 2*least):
		return true, "warn"
	}
	return false, ""
}

func errSuffix(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

func oldestText(ms int64) string {
	if ms == 0 {
		return ""
	}
	return ", oldest " + time.Since(time.UnixMilli(ms)).Round(time.Second).String()
}

// colonReason returns ": " followed by the reason. If reason is empty, it returns "".
func colonReason(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

// lag answers GET /v1/ops/lag.
func (n views) lag(ctx context.Context) (any, error) {
	ls := n.groups.lags()
	if n.cards.Beats != nil {
		addMembers(ls, n.cards.All(ctx))
	}
	for i := range ls {
		l := &ls[i]
		l.LanePaused = slices.ContainsFunc(notify.Lanes(), func(lane notify.Lane) bool {
			return (l.Group == lane.Group() || l.Group == lane.RetryGroup()) && n.lanes.Gate(lane).IsShut()
		})
		if deferred := n.deferred.OfTopic(l.Topic); deferred != nil {
			l.Deferred = make([]api.Deferred, len(deferred))
			for k, d := range deferred {
				l.Deferred[k] = api.Deferred(d)
			}
		}
	}
	return ls, nil
}
