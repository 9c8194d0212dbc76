package app

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/log/embedded"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/outcomehook"
	"github.com/notifyd/notifyd/pkg/trigger"
	"github.com/notifyd/notifyd/pkg/worker"
)

// Finding is one thing the doctor looked at.
type Finding struct {
	Check  string `json:"check"`
	Level  string `json:"level"` // "ok", "warn" or "fail"
	Detail string `json:"detail"`
	Repair string `json:"repair,omitempty"` // what to do; of level ok: nothing

	Used *float64 `json:"used,omitempty"` // of what there is, 0 to 1; nil: nothing that fills
}

// repairs say what to do about a finding that is not ok, by the check or, where
// the check names a thing besides, by its first word.
var repairs = map[string]string{
	"log":            "look at the log's volume and at the log of notifyd, then restart: intake is closed until then",
	"log size":       "find who does not get on (notifyctl lag), or raise log.cap_mib; at the cap intake answers 503",
	"log damage":     "look for faults of the disk; deal with what was lost: history and outcomes of the range tell what was sent",
	"log segments":   "deal with each range named above; the detail says how the report ends",
	"positions":      "restore the data folder from a backup if more than log/groups.log was removed; else nothing: the next start finds the positions that are kept from now on",
	"log durability": "set log.sync: true, unless losing acknowledged records at a power cut is acceptable",
	"store":          "look at the store's volume, then restart; with a fault of the disk restore a backup",
	"lane":           "find out from who paused it whether it may go on, then notifyctl lane resume LANE",
	"disk":           "make room on the volume of data_dir: at log.min_free_mib intake answers 503",
	"history":        "keep the files named in the log of notifyd for a look, and restore them from a backup; other ids answer on",
	"archive":        "make archive.dir writable, or room on its volume, or the bucket reachable: what has aged out is kept for archive.wait and then removed unarchived",
	"preferences":    "look at the store and at the load: bulk lanes stand until the snapshot is fresh",
	"circuit":        "notifyctl explain CODE says what the code means; config: correct the provider's credentials; else it closes by itself",
	"provider":       "configure the provider (providers), if notifications of the channel are meant to go out",
	"spill":          "nothing if it shrinks: otp and alert that came while the log was away are being drained; else look at the log",
	"clock":          "let NTP or chrony set this machine's clock, then wait a few seconds",
	"removal":        "compare this machine's clock with another one: if it is wrong, set it right before removal catches up; after a long stop do nothing, removal has caught up six days later",
	"newer":          "upgrade this process: one of the newer release goes on where it stands",
	"lag":            "look at the circuits and at the processor: more load comes than workers take",
}

// repair of a check; empty: nobody wrote one down.
func repair(check string) string {
	if r, ok := repairs[check]; ok {
		return r
	}
	word, _, _ := strings.Cut(check, " ")
	return repairs[word]
}

// circuitText says of a provider's circuit since when, why and until when it holds
// calls back.
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

// doctor looks at everything that can be wrong with this process.
func (n *Node) doctor(ctx context.Context) (any, error) {
	var fs findings
	add := fs.add
	used := func(part, of float64) { // says how full what was added last is
		if of > 0 {
			share := part / of
			fs[len(fs)-1].Used = &share
		}
	}
	if n.own != nil {
		n.doctorOwn(add, used)
	} else {
		n.doctorServers(ctx, &fs)
	}
	if n.archive != nil {
		s := n.archive.Status(time.Now())
		bad, level := archiveLevel(s)
		add("archive", bad, level, "%d files in %s, complete up to %s ago%s", s.Files, archivePlace(&n.cfg), s.Age.Round(time.Second), suffix(s.Err))
	}
	if age := n.prefs.Age(time.Now()); n.own != nil || len(n.tasks.Lanes) > 0 {
		add("preferences", !n.prefs.Fresh(time.Now()), "fail", "snapshot is %s old", age.Round(time.Millisecond))
	}
	for _, c := range n.health.Circuits(time.Now()) {
		add("circuit "+c.Route, c.State != "closed" || !c.Blocked.IsZero(), "warn", "%s", circuitText(&c, time.Now()))
	}
	for _, l := range notify.Lanes() {
		since, by, reason, paused := n.lanes.Paused(l)
		if paused {
			add("lane "+l.String(), true, "warn", "paused since %s by %s%s; notifyctl lane resume %s", since.Format(time.RFC3339), by, colon(reason), l)
		}
	}
	for _, ch := range notify.Channels {
		_, ok := n.provs.byChannel[ch]
		add("provider "+ch.String(), !ok, "warn", "configured: %v", ok)
	}
	if part, ahead := n.removals.Ahead(); ahead > 0 {
		add("removal", true, "warn", "the clock is %s ahead of the time that removal goes by (%s): it jumped, or notifyd was down", ahead.Round(time.Second), part)
	}
	n.doctorSecrets(ctx, &fs)
	if n.st.spill == nil {
		add("spill", true, "warn", "there is none: otp and alert get 503 too while the log is away")
	} else if recs, bytes, oldest, err := n.st.spill.Stats(ctx); err == nil {
		add("spill", recs > 0, "warn", "%d records, %d bytes wait for the log%s", recs, bytes, since(oldest))
	}
	for _, what := range n.heldPartitions() {
		add("newer", true, "fail", "%s", what)
	}
	lags := n.lags()
	for i := range lags {
		l := &lags[i]
		add("lag "+l.among(lags), l.Lag > 1_000_000, "warn", "%d records behind, %d in flight", l.Lag, l.InFlight)
	}
	return []Finding(fs), nil
}

// doctorOwn looks at engines that belong to this process. add tells of one thing,
// used how full it is.
func (n *Node) doctorOwn(add adder, used func(part, of float64)) {
	use := n.own.broker.Guard().Usage()
	add("log", use.Err != nil, "fail", "%d of %d MiB, fsync %s%s", use.LogBytes>>20, use.CapBytes>>20, use.Fsync.Round(10*time.Microsecond), suffix(use.Err))
	used(float64(use.LogBytes), float64(use.CapBytes))
	add("log size", use.LogBytes > use.CapBytes*3/4, "warn", "%.0f%% of the cap; trimmed behind sealed history and outcomes", 100*float64(use.LogBytes)/float64(use.CapBytes))
	losses := n.losses()
	for _, l := range losses {
		add("log damage", true, "fail", "%s", l)
	}
	for _, t := range n.own.broker.Truncated() {
		add("log damage", true, "fail", "%s", t)
	}
	for _, t := range n.own.broker.Torn() {
		add("log tail", false, "", "%s/%d: a crash cut the write of offset %d short; it was not acknowledged", t.Topic, t.Partition, t.Offset)
	}
	add("log segments", len(losses) > 0, "fail", "%d ranges of acknowledged records are lost to damage%s", len(losses), n.settle(len(losses)))
	add("positions", len(n.posLost) > 0, "fail", "%s", n.positionsText())
	add("log durability", !n.cfg.Log.Sync, "warn", "fsync before an acknowledgement: %v", n.cfg.Log.Sync)
	err := n.own.store.Err()
	add("store", err != nil, "fail", "pebble%s", suffix(err))
	if d, err := n.own.store.DiskUsage(); err == nil {
		bad, level := diskLevel(d.Available, n.cfg.Log.MinFreeMiB)
		add("disk", bad, level, "%d MiB free of %d; intake stops at %d", d.Available>>20, d.Total>>20, n.cfg.Log.MinFreeMiB)
		used(float64(d.Total)-float64(d.Available), float64(d.Total))
	}
	damaged := n.own.history.Damaged()
	add("history", len(damaged) > 0, "fail", "%d segments, %d damaged files", n.own.history.Stats().Segments, len(damaged))
}

// heldPartitions says of each partition that stands at a record of a newer release
// where and why.
func (n *Node) heldPartitions() (out []string) {
	for i, g := range n.groups {
		for _, p := range g.Stats().Partitions {
			if p.Held != nil {
				out = append(out, fmt.Sprintf("%s of %s stands: %v", p.TP, n.groupNames[i], p.Held))
			}
		}
	}
	slices.Sort(out)
	return out
}

// adder takes what a look found: of what, whether that is bad, how bad ("warn"
// or "fail"), and what was seen.
type adder func(check string, bad bool, level, format string, args ...any)

// findings are what a doctor's look has found so far.
type findings []Finding

func (fs *findings) add(check string, bad bool, level, format string, args ...any) {
	f := Finding{Check: check, Level: "ok", Detail: fmt.Sprintf(format, args...)}
	if bad {
		f.Level, f.Repair = level, repair(check)
	}
	*fs = append(*fs, f)
}

// told adds what an engine found, which says itself what to do.
func (fs *findings) told(check, level, detail, repair string) {
	if level == "ok" {
		repair = ""
	}
	*fs = append(*fs, Finding{Check: check, Level: level, Detail: detail, Repair: repair})
}

// among is the name of a lag in a list: its group, and the topic where the group
// reads more than one.
func (l *Lag) among(all []Lag) string {
	if slices.ContainsFunc(all, func(o Lag) bool { return o.Group == l.Group && o.Topic != l.Topic }) {
		return l.Group + " " + l.Topic
	}
	return l.Group
}

// diskLevel says how bad it is that so many bytes are free: below what intake
// needs it is broken, below 1 GiB or twice that it soon will be.
func diskLevel(free uint64, minFreeMiB int) (bad bool, level string) {
	least := uint64(minFreeMiB) << 20
	switch {
	case free < least:
		return true, "fail"
	case free < max(1<<30, 2*least):
		return true, "warn"
	}
	return false, ""
}

// loss is a loss of the log with what it means.
type loss struct {
	embedded.Loss
	group string // that consumes the topic; empty: none of ours
	first bool   // of first attempts, which history keeps
}

// losses of the log, and who had read what.
func (n *Node) losses() (out []loss) {
	if n.own == nil {
		return nil
	}
	for _, l := range n.own.broker.Losses() {
		out = append(out, loss{l, n.groupOf(l.Topic), slices.Contains(notify.FirstTopics(), l.Topic)})
	}
	return out
}

// groupOf is the consumer group of a topic.
func (n *Node) groupOf(topic string) string {
	for _, l := range notify.Lanes() {
		switch topic {
		case l.Topic():
			return l.Group()
		case l.DLQTopic():
			return l.RetryGroup()
		}
	}
	switch topic {
	case notify.TopicFailed, trigger.TopicDLQ:
		return deadletter.DeadLetterGroup
	case notify.TopicOutcomes:
		return outcomehook.FollowGroup
	}
	return ""
}

// consumed is how many of the records had been done and committed.
func (l *loss) consumed() int64 { return l.Below(l.Committed[l.group]) }

func (l loss) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s/%d: acknowledged records %d to %d (%d) are damaged and gone", l.Topic, l.Partition, l.From, l.To-1, l.Records())
	if l.group != "" {
		done := l.consumed()
		fmt.Fprintf(&b, ": %d consumed before (%s had committed %d), %d lost for good", done, l.group, l.Committed[l.group], l.Records()-done)
	}
	if missing := l.Records() - l.Below(l.Kept); l.first && missing > 0 {
		fmt.Fprintf(&b, "; %d not in the history", missing)
	}
	fmt.Fprintf(&b, "; found %s", l.Found.Format(time.RFC3339))
	if l.File != "" {
		fmt.Fprintf(&b, ", their bytes are in %s", l.File)
	}
	return b.String()
}

// positionsText says what is known of where the consumer groups stood.
func (n *Node) positionsText() string {
	if len(n.posLost) == 0 {
		return "of all consumer groups are there"
	}
	return fmt.Sprintf("positions lost: log/groups.log was removed or emptied before this start. %s. "+
		"What is still in the log was read again; what had been done was not done again", strings.Join(n.posLost, ", "))
}

// settle says how the report of losses ends.
func (n *Node) settle(losses int) string {
	if losses == 0 {
		return ""
	}
	return "; when they are dealt with, remove " + filepath.Join(n.cfg.DataDir, "log", embedded.LossesFile) + " and restart"
}

func suffix(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

func since(ms int64) string {
	if ms == 0 {
		return ""
	}
	return ", oldest " + time.Since(time.UnixMilli(ms)).Round(time.Second).String()
}

// Lag is how far a consumer group is behind.
type Lag struct {
	Group    string `json:"group"`
	Topic    string `json:"topic"`
	Lag      int64  `json:"lag"`       // records not read yet
	InFlight int    `json:"in_flight"` // records read and not done
	Paused   int    `json:"paused"`    // partitions over their cap
	// LanePaused: operators have paused the group's lane.
	LanePaused bool `json:"lane_paused,omitempty"`
	// Deferred is what waits in the timer store to come to Topic again, the
	// largest first; nil: this process has not counted it.
	Deferred []worker.Deferred `json:"deferred"`
}

// colon puts a reason behind a sentence, if there is one.
func colon(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

// pausedGroup reports whether the lane of a consumer group is paused.
func (n *Node) pausedGroup(group string) bool {
	for _, l := range notify.Lanes() {
		if group == l.Group() || group == l.RetryGroup() {
			return n.lanes.Gate(l).IsShut()
		}
	}
	return false
}

func (n *Node) lags() []Lag {
	if n.own == nil {
		return n.sharedLags()
	}
	var out []Lag
	for i, g := range n.groups {
		from := len(out)
		for _, p := range g.Stats().Partitions {
			k := slices.IndexFunc(out[from:], func(l Lag) bool { return l.Topic == p.TP.Topic })
			if k < 0 { // of a group that reads more than one topic, each by itself
				k = len(out) - from
				out = append(out, Lag{Group: n.groupNames[i], Topic: p.TP.Topic})
			}
			l := &out[from+k]
			l.Lag += max(p.Lag(), 0) // below 0: its end is not known yet
			l.InFlight += p.InFlight
			if p.Paused {
				l.Paused++
			}
		}
		if len(out) == from {
			out = append(out, Lag{Group: n.groupNames[i]}) // nothing is assigned yet
		}
	}
	return out
}

func (n *Node) lag(context.Context) (any, error) {
	ls := n.lags()
	for i := range ls {
		ls[i].LanePaused = n.pausedGroup(ls[i].Group)
		ls[i].Deferred = n.deferred.OfTopic(ls[i].Topic)
	}
	return ls, nil
}

// Idle reports whether nothing waits to be handled: every group of this process was
// assigned its topics, read and finished them, and no timer is due within the horizon.
func (n *Node) Idle() bool { return allDone(n.lags()) && n.later.timers.Pending() == 0 }

// allDone reports whether nothing of lags waits; a group that was assigned no topic
// yet has not looked.
func allDone(lags []Lag) bool {
	return !slices.ContainsFunc(lags, func(l Lag) bool { return l.Topic == "" || l.Lag > 0 || l.InFlight > 0 })
}
