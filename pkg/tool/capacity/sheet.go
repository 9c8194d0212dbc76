package capacity

import (
	"fmt"
	"math"
	"time"

	"github.com/notifyd/notifyd/pkg/term"
)

// Line describes one kind of part of the system, and says how many such parts a load needs.
type Line struct {
	Key          string `json:"key"`
	Name         string `json:"name"`
	Count        int64  `json:"count"` // calculated as in the design document; 0: unknown, or none is needed
	How          string `json:"how"`
	Sustained    int64  `json:"sustained"` // count that is needed if the load lasts
	SustainedHow string `json:"sustained_how,omitempty"`

	// HoldsTo is the highest rate of notifications, in the same mix, for which the number Count of
	// this part is permanently enough. 0: this part does not limit the rate.
	HoldsTo float64 `json:"holds_to,omitempty"`
	// OneLost is the same rate as HoldsTo, but for one part fewer, because one has failed.
	OneLost float64 `json:"one_lost,omitempty"`
}

// Sheet lists what a load needs.
type Sheet struct {
	Lines       []Line   `json:"lines"`
	Limits      []Limit  `json:"limits"`       // lines whose Count is too low
	Chunks      []Saving `json:"chunks"`       // nodes that are saved by rows per chunk
	Breaks      []Break  `json:"breaks"`       // sorted by the load at which parts break
	Sensitivity []Change `json:"sensitivity"`  // effect of parameters that get 10% worse
	First       string   `json:"breaks_first"` // the first of Breaks as text
}

// Compute checks an input and computes its sheet.
func Compute(input Input) (Sheet, error) {
	if err := input.Check(); err != nil {
		return Sheet{}, err
	}
	var s Sheet
	s.Lines = input.lines()
	s.Limits = input.limits(s.Lines)
	s.Chunks = input.savings()
	s.Breaks = breaks(input.Rate, s.Lines)
	s.Sensitivity = input.sensitivity(s.Lines)
	s.First = firstBreakText(input.Rate, s.Breaks)
	return s, nil
}

// Line returns the line with this key, or nil.
func (s *Sheet) Line(key string) *Line { return lineOf(s.Lines, key) }

func lineOf(lines []Line, key string) *Line {
	for i := range lines {
		if lines[i].Key == key {
			return &lines[i]
		}
	}
	return nil
}

// The loads of the parts, in calls per second.

func (in *Input) calls(share float64) float64 { return in.Rate * share * (1 + in.Retries) }

func (in *Input) mailCalls() float64 { return in.calls(in.Email) }

func (in *Input) smsCalls() float64 { return in.calls(in.SMS * in.SMSAdmitted) }

// records returns how many messages per second the log gets. A fan-out gives one message per chunk.
func (in *Input) records() float64 { return in.Rate * in.recordsPerNotification() * (1 + in.Retries) }

// recordsPerNotification returns how many log records a notification needs. A notification of a
// fan-out needs only a fraction of a record, because a chunk is one record.
func (in *Input) recordsPerNotification() float64 { return (1 - in.Fanout) + in.Fanout/in.Chunk }

// rows returns how many rows per second the status store writes. The parameter fanout is the share
// of fan-outs. A chunk has one claim row per window and one outcome row. A retry has its own rows.
func (in *Input) rows(fanout float64) float64 {
	chunk := (math.Ceil(in.Chunk/in.Window) + 1) / in.Chunk
	return in.Rate * (1 + in.Retries) * ((1-fanout)*in.Writes + fanout*math.Min(chunk, in.Writes))
}

func (in *Input) pushWorker() (each float64, how string) {
	each, how = in.PushWorkerRate, "a worker's rate"
	if streams := in.PushConnections * in.PushStreams / in.PushLatency.Seconds(); streams < each {
		each, how = streams, fmt.Sprintf("%s connections x %s streams / %s", Number(in.PushConnections), Number(in.PushStreams), in.PushLatency)
	}
	return in.capByDelivery(each, how)
}

func (in *Input) smsWorker() (each float64, how string) {
	return in.capByDelivery(in.SMSInFlight/in.SMSLatency.Seconds(), fmt.Sprintf("%s at once / %s", Number(in.SMSInFlight), in.SMSLatency))
}

// capByDelivery limits a worker's rate to the rate at which a process can deliver.
func (in *Input) capByDelivery(each float64, how string) (float64, string) {
	if in.DeliveryRate > 0 && in.DeliveryRate < each {
		return in.DeliveryRate, "a process's deliveries"
	}
	return each, how
}

// lines returns the lines in the order in which a notification passes the parts.
func (in *Input) lines() []Line {
	var out []Line
	// addPart adds a line for a part of the system. The parameter demand is the rate that the load
	// needs, and the parameter each is the highest rate of one such part.
	addPart := func(key, name string, demand, each float64, how string) *Line {
		l := Line{Key: key, Name: name, Count: ceil(demand / each), How: fmt.Sprintf("%s/s / %s/s (%s)", Number(demand), Number(each), how)}
		l.Sustained = l.Count
		if demand > 0 {
			l.HoldsTo = in.Rate * float64(l.Count) * each / demand
			l.OneLost = in.Rate * float64(l.Count-1) * each / demand
		}
		out = append(out, l)
		return &out[len(out)-1]
	}
	addCount := func(key, name string, count int64, how string) *Line {
		out = append(out, Line{Key: key, Name: name, Count: count, Sustained: count, How: how})
		return &out[len(out)-1]
	}

	in.api(addPart, addCount)
	brokers := addPart("brokers", "log brokers", in.records(), in.BrokerRate, "a broker's messages")
	brokers.Sustained = ceil(in.records() * in.LogReplication / in.BrokerRate)
	brokers.SustainedHow = fmt.Sprintf("each message is stored %s times", Number(in.LogReplication))
	brokers.HoldsTo, brokers.OneLost = brokers.HoldsTo/in.LogReplication, brokers.OneLost/in.LogReplication

	each, how := in.pushWorker()
	push := *addPart("push_workers", "push workers", in.calls(in.Push), each, how)
	addCount("push_connections", "push connections", times(push.Count, in.PushConnections), fmt.Sprintf("%s workers x %s", term.Count(push.Count), Number(in.PushConnections)))
	each, how = in.smsWorker()
	sms := *addPart("sms_workers", "SMS workers", in.smsCalls(), each, how)
	addPart("sms_accounts", "SMS accounts", in.smsCalls(), in.SMSAccountRate, "an account's messages")
	mail := in.addMail(addPart, addCount)

	addCount("partitions_push", "partitions, push", push.Count, "one a worker")
	addCount("partitions_sms", "partitions, SMS", sms.Count, "one a worker")
	partitions := addCount("partitions_email", "partitions, email", mail.Count, "one a worker")
	partitions.Sustained = mail.Sustained

	in.addDatabase(addPart, addCount)
	in.addScheduler(addPart, addCount)
	return out
}

// An addPartFunc adds a line whose count is the parameter demand divided by the parameter each,
// rounded up. An addCountFunc adds a line with a given count.
type (
	addPartFunc  func(key, name string, demand, each float64, how string) *Line
	addCountFunc func(key, name string, count int64, how string) *Line
)

func (in *Input) api(addPart addPartFunc, addCount addCountFunc) {
	fan := in.Rate * in.Fanout
	switch {
	case in.APIRate == 0:
		addCount("api_servers", "API servers", 0, "as many as it takes; api_rate is not known")
	case fan == 0:
		addPart("api_servers", "API servers", in.Rate, in.APIRate, "a server's notifications")
	default:
		by := in.APIFanoutRate
		if by == 0 {
			by = in.APIRate
		}
		addPart("api_servers", "API servers", in.Rate, in.Rate/((in.Rate-fan)/in.APIRate+fan/by), "a server's mix of fan-outs and others")
	}
}

// addMail adds the lines for mail and returns the line of the mail workers. The count is calculated
// as in the design document: the mails of one second are sent within the mail objective. That is
// right for a single burst only.
func (in *Input) addMail(addPart addPartFunc, addCount addCountFunc) Line {
	spread := in.mailCalls() / in.MailObjective.Seconds()
	ips := addPart("mail_ips", "mail IPs", spread, in.MailIPRate, "an IP's mails")
	ips.How = fmt.Sprintf("%s mails / %s = %s/s / %s/s (an IP's mails)", Number(in.mailCalls()), brief(in.MailObjective), Number(spread), Number(in.MailIPRate))
	ips.Sustained = ceil(in.mailCalls() / in.MailIPRate)
	ips.SustainedHow = fmt.Sprintf("%s mails/s / %s/s", Number(in.mailCalls()), Number(in.MailIPRate))
	ips.HoldsTo, ips.OneLost = ips.HoldsTo/in.MailObjective.Seconds(), ips.OneLost/in.MailObjective.Seconds()
	l := *ips

	calls := addCount("mail_calls", "mail API calls a second", ceil(spread/in.MailBatch), fmt.Sprintf("%s/s / %s a call", Number(spread), Number(in.MailBatch)))
	calls.Sustained = ceil(in.mailCalls() / in.MailBatch)
	workers := addCount("mail_workers", "mail workers", ceil(float64(l.Count)/in.MailIPsPerWorker), fmt.Sprintf("%s IPs / %s a worker", term.Count(l.Count), Number(in.MailIPsPerWorker)))
	workers.Sustained = ceil(float64(l.Sustained) / in.MailIPsPerWorker)
	return *workers
}

func (in *Input) addDatabase(addPart addPartFunc, addCount addCountFunc) {
	rows := in.rows(in.Fanout)
	shards := addPart("db_shards", "status shards", rows, in.DBNodeRate, "a node's rows")
	shards.OneLost = shards.HoldsTo // if one node fails, the other replicas of its shard do its work
	nodes := *shards
	addCount("db_nodes", "status nodes", times(nodes.Count, in.DBReplication), fmt.Sprintf("%s shards x %s replicas", term.Count(nodes.Count), Number(in.DBReplication)))
}

// addScheduler adds the lines of the scheduler. The design document has one partition per minute
// and one leader, and it counts a row only once, although every replica stores the row.
func (in *Input) addScheduler(addPart addPartFunc, addCount addCountFunc) {
	rows := in.Rate * in.Scheduled * in.recordsPerNotification()
	how := fmt.Sprintf("%s/s x %s", Number(in.Rate), Number(in.Scheduled))
	if in.Fanout > 0 {
		how += ", a row a chunk of fan-outs"
	}
	addCount("scheduled_rows", "scheduled rows a second", ceil(rows), how)
	nodes := addPart("scheduler_nodes", "scheduler nodes", rows, in.SchedulerNodeRate, "a node's rows")
	nodes.Sustained = times(ceil(rows/in.SchedulerNodeRate), in.DBReplication)
	nodes.SustainedHow = fmt.Sprintf("each row is stored %s times", Number(in.DBReplication))
	nodes.HoldsTo, nodes.OneLost = nodes.HoldsTo/in.DBReplication, nodes.OneLost/in.DBReplication

	some := int64(0)
	if rows > 0 {
		some = 1
	}
	shards := addCount("timer_shards", "partitions of a minute", some, "one a minute")
	shards.Sustained = ceil(rows * 60 / in.PartitionRows)
	shards.SustainedHow = fmt.Sprintf("%s rows a minute / %s a partition", Number(rows*60), Number(in.PartitionRows))
	owners := addCount("release_owners", "owners that release", some, "one leader")
	owners.Sustained = ceil(rows / in.ReleaseRate)
	owners.SustainedHow = fmt.Sprintf("%s/s / %s/s (an owner's releases)", Number(rows), Number(in.ReleaseRate))
	if rows > 0 {
		owners.HoldsTo = in.Rate * in.ReleaseRate / rows
	}
}

// brief formats a duration without zero units: 2m0s gives 120s, 1h0m0s gives 1h.
func brief(d time.Duration) string {
	switch {
	case d >= time.Hour && d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute && d%time.Second == 0:
		return fmt.Sprintf("%ds", d/time.Second)
	}
	return d.String()
}
