package capacity

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Input is what a sheet is computed from. Rates are a second. Shares are from
// 0 to 1. Of the rates of parts, 0 means that nobody knows it, where Params
// allows 0.
type Input struct {
	Rate      float64 // notifications accepted
	Push      float64 // share of the load
	Email     float64
	SMS       float64
	Scheduled float64 // share that is held until later
	Fanout    float64 // share that comes in fan-outs: one content, many receivers
	Retries   float64 // calls a notification beyond the first, on average

	APIRate       float64 // notifications an API server takes one by one or in batches
	APIFanoutRate float64 // receivers an API server takes in fan-outs
	DeliveryRate  float64 // receivers a process brings from the log to a durable outcome, providers aside

	BrokerRate     float64 // messages a broker takes
	LogReplication float64 // copies of a message

	PushWorkerRate  float64
	PushLatency     time.Duration
	PushConnections float64 // HTTP/2 connections of a worker
	PushStreams     float64 // streams of a connection

	SMSAdmitted    float64 // share of SMS that intake lets through
	SMSAccountRate float64
	SMSLatency     time.Duration
	SMSInFlight    float64 // requests at once of a worker

	MailObjective    time.Duration // within which a mail is handed over
	MailIPRate       float64       // mails an IP may send
	MailBatch        float64       // mails of an API call
	MailIPsPerWorker float64

	DBNodeRate    float64 // rows a node of the status store writes
	DBReplication float64
	Writes        float64 // row writes of a notification that is a chunk of its own
	Chunk         float64 // receivers of a chunk of a fan-out
	Window        float64 // receivers of a claim window

	SchedulerNodeRate float64 // rows a node of the timer store writes
	PartitionRows     float64 // rows a partition of the timer store may hold
	ReleaseRate       float64 // due rows one owner releases
}

// Default is the load and the rates of the source document: 5M notifications a
// second. What it leaves open (SMS workers, copies in the log, sizes of
// partitions and chunks, the pace of a release) is notifyd's own.
func Default() Input {
	return Input{
		Rate: 5e6, Push: 0.7, Email: 0.2, SMS: 0.1, Scheduled: 0.2,
		BrokerRate: 500e3, LogReplication: 3,
		PushWorkerRate: 200e3, PushLatency: 50 * time.Millisecond, PushConnections: 10, PushStreams: 1000,
		SMSAdmitted: 1, SMSAccountRate: 1000, SMSLatency: 120 * time.Millisecond, SMSInFlight: 5000,
		MailObjective: 2 * time.Minute, MailIPRate: 100, MailBatch: 1000, MailIPsPerWorker: 1,
		DBNodeRate: 100e3, DBReplication: 3, Writes: 2, Chunk: 1000, Window: 1000,
		SchedulerNodeRate: 100e3, PartitionRows: 100e3, ReleaseRate: 50e3,
	}
}

// Param is one value of an Input, by the name it has in a file and as a flag.
type Param struct {
	Key string // snake_case
	Doc string

	num      *float64
	dur      *time.Duration
	min, max float64 // inclusive; of a duration in seconds
	whole    bool
}

// most is the largest of any rate. With the bounds of the others, every count
// fits into 63 bits.
const most = 1e12

// Params lists every value of in; setting one changes in.
func (in *Input) Params() []Param {
	rate := func(key string, v *float64, doc string) Param {
		return Param{Key: key, Doc: doc, num: v, min: 1, max: most}
	}
	maybe := func(key string, v *float64, doc string) Param {
		return Param{Key: key, Doc: doc + "; 0: not known", num: v, min: 0, max: most}
	}
	share := func(key string, v *float64, doc string) Param {
		return Param{Key: key, Doc: doc, num: v, min: 0, max: 1}
	}
	whole := func(key string, v *float64, max float64, doc string) Param {
		return Param{Key: key, Doc: doc, num: v, min: 1, max: max, whole: true}
	}
	span := func(key string, v *time.Duration, doc string) Param {
		return Param{Key: key, Doc: doc, dur: v, min: 1e-6, max: 7 * 86400}
	}
	return []Param{
		rate("rate", &in.Rate, "notifications a second"),
		share("push", &in.Push, "share of push"),
		share("email", &in.Email, "share of email"),
		share("sms", &in.SMS, "share of SMS"),
		share("scheduled", &in.Scheduled, "share that is scheduled for later"),
		share("fanout", &in.Fanout, "share that comes in fan-outs, stored by chunk"),
		{Key: "retries", Doc: "calls a notification beyond the first, on average", num: &in.Retries, max: 100},
		maybe("api_rate", &in.APIRate, "notifications a second an API server takes, in batches"),
		maybe("api_fanout_rate", &in.APIFanoutRate, "receivers a second an API server takes in fan-outs"),
		maybe("delivery_rate", &in.DeliveryRate, "receivers a second a process brings from the log to a durable outcome, providers aside"),
		rate("broker_rate", &in.BrokerRate, "messages a second a broker takes"),
		whole("log_replication", &in.LogReplication, 9, "copies of a message in the log"),
		rate("push_worker_rate", &in.PushWorkerRate, "pushes a second a worker makes at most"),
		span("push_latency", &in.PushLatency, "answer time of the push provider"),
		whole("push_connections", &in.PushConnections, 10e3, "HTTP/2 connections of a push worker"),
		whole("push_streams", &in.PushStreams, 1e6, "streams at once of a connection"),
		share("sms_admitted", &in.SMSAdmitted, "share of SMS that intake lets through (otp and alert)"),
		rate("sms_account_rate", &in.SMSAccountRate, "messages a second an SMS account may send"),
		span("sms_latency", &in.SMSLatency, "answer time of the SMS provider"),
		whole("sms_in_flight", &in.SMSInFlight, 1e6, "requests at once of an SMS worker"),
		span("mail_objective", &in.MailObjective, "time within which a mail is handed over"),
		rate("mail_ip_rate", &in.MailIPRate, "mails a second an IP may send"),
		whole("mail_batch", &in.MailBatch, 1e6, "mails of one API call"),
		whole("mail_ips_per_worker", &in.MailIPsPerWorker, 1e6, "IPs a mail worker feeds"),
		rate("db_node_rate", &in.DBNodeRate, "rows a second a node of the status store writes"),
		whole("db_replication", &in.DBReplication, 9, "copies of a row, in the status and the timer store"),
		{Key: "writes", Doc: "row writes of a notification that is not in a fan-out", num: &in.Writes, min: 1, max: 1000},
		whole("chunk", &in.Chunk, 1e6, "receivers of a chunk of a fan-out"),
		whole("window", &in.Window, 1e6, "receivers of a claim window"),
		rate("scheduler_node_rate", &in.SchedulerNodeRate, "rows a second a node of the timer store writes"),
		whole("partition_rows", &in.PartitionRows, 1e9, "rows a partition of the timer store may hold"),
		rate("release_rate", &in.ReleaseRate, "due rows a second one owner releases"),
	}
}

// Set gives the parameter a value as people write it: 5M, 200K, 0.7, 70%, 50ms.
func (p *Param) Set(text string) error {
	if p.dur != nil {
		d, err := time.ParseDuration(text)
		if err != nil {
			return notify.Invalid("bad_duration", p.Key, fmt.Sprintf("%q is not a duration such as 50ms or 2m", text))
		}
		*p.dur = d
		return nil
	}
	v, err := ParseNumber(text)
	if err != nil {
		return notify.Invalid("bad_number", p.Key, fmt.Sprintf("%q is not a number such as 5M, 200K, 0.7 or 70%%", text))
	}
	*p.num = v
	return nil
}

// String is the value as Set takes it.
func (p *Param) String() string {
	if p.dur != nil {
		return p.dur.String()
	}
	return Number(*p.num)
}

// Value is the value as a number: of a duration its seconds.
func (p *Param) Value() float64 {
	if p.dur != nil {
		return p.dur.Seconds()
	}
	return *p.num
}

// scale multiplies the value.
func (p *Param) scale(by float64) {
	if p.dur != nil {
		*p.dur = time.Duration(float64(*p.dur) * by)
		return
	}
	*p.num *= by
}

// Check reports every rule that in breaks, each with its field.
func (in Input) Check() error {
	var problems []error
	for _, p := range in.Params() {
		v := p.Value()
		switch {
		case math.IsNaN(v) || v < p.min || v > p.max:
			problems = append(problems, notify.Invalid("out_of_range", p.Key, fmt.Sprintf("must be from %s to %s, not %s", p.bound(p.min), p.bound(p.max), p.String())))
		case p.whole && v != math.Trunc(v):
			problems = append(problems, notify.Invalid("out_of_range", p.Key, "must be a whole number, not "+p.String()))
		}
	}
	if sum := in.Push + in.Email + in.SMS; math.Abs(sum-1) > 1e-9 || math.IsNaN(sum) {
		problems = append(problems, notify.Invalid("bad_share", "push+email+sms", fmt.Sprintf("must sum to 1, not %s", Number(sum))))
	}
	return errors.Join(problems...)
}

func (p *Param) bound(v float64) string {
	if p.dur != nil {
		return time.Duration(v * float64(time.Second)).String()
	}
	return Number(v)
}
