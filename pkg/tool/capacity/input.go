package capacity

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Input is the input of a sheet. Rates are per second, shares from 0 to 1.
//
// The tags of a field are its name in a file and as a flag, its kind, its documentation, and for
// some kinds its limits. These are the kinds:
//   - rate: from 1 to maxRate
//   - known: a rate, or 0 if the rate is unknown
//   - share: from 0 to 1
//   - whole: a whole number from 1 to max
//   - number: from min to max
//   - span: a duration
type Input struct {
	Rate      float64 `key:"rate" kind:"rate" doc:"notifications per second"`
	Push      float64 `key:"push" kind:"share" doc:"share of push in the notifications"`
	Email     float64 `key:"email" kind:"share" doc:"share of email in the notifications"`
	SMS       float64 `key:"sms" kind:"share" doc:"share of SMS in the notifications"`
	Scheduled float64 `key:"scheduled" kind:"share" doc:"share of the notifications that are scheduled"`
	Fanout    float64 `key:"fanout" kind:"share" doc:"share of the notifications that come in fan-outs, which are stored by chunk"`
	Retries   float64 `key:"retries" kind:"number" min:"0" max:"100" doc:"average number of calls per notification after the first"`

	APIRate       float64 `key:"api_rate" kind:"known" doc:"notifications per second that an API server accepts in batches"`
	APIFanoutRate float64 `key:"api_fanout_rate" kind:"known" doc:"receivers per second that an API server accepts in fan-outs"`
	DeliveryRate  float64 `key:"delivery_rate" kind:"known" doc:"receivers per second that a process takes from the log to a durable outcome, without providers"`

	BrokerRate     float64 `key:"broker_rate" kind:"rate" doc:"messages per second that a broker accepts"`
	LogReplication float64 `key:"log_replication" kind:"whole" max:"9" doc:"copies of a message in the log"`

	PushWorkerRate  float64       `key:"push_worker_rate" kind:"rate" doc:"highest number of pushes per second of a worker"`
	PushLatency     time.Duration `key:"push_latency" kind:"span" doc:"answer time of the push provider"`
	PushConnections float64       `key:"push_connections" kind:"whole" max:"10e3" doc:"HTTP/2 connections of a push worker"`
	PushStreams     float64       `key:"push_streams" kind:"whole" max:"1e6" doc:"concurrent streams of a connection"`

	SMSAdmitted    float64       `key:"sms_admitted" kind:"share" doc:"share of the SMS that intake accepts; it refuses categories other than otp and alert"`
	SMSAccountRate float64       `key:"sms_account_rate" kind:"rate" doc:"messages per second that an SMS account may send"`
	SMSLatency     time.Duration `key:"sms_latency" kind:"span" doc:"answer time of the SMS provider"`
	SMSInFlight    float64       `key:"sms_in_flight" kind:"whole" max:"1e6" doc:"concurrent requests of an SMS worker"`

	MailObjective    time.Duration `key:"mail_objective" kind:"span" doc:"time within which a mail must be handed to the provider"`
	MailIPRate       float64       `key:"mail_ip_rate" kind:"rate" doc:"mails per second that an IP may send"`
	MailBatch        float64       `key:"mail_batch" kind:"whole" max:"1e6" doc:"mails per API call"`
	MailIPsPerWorker float64       `key:"mail_ips_per_worker" kind:"whole" max:"1e6" doc:"IPs that a mail worker serves"`

	DBNodeRate    float64 `key:"db_node_rate" kind:"rate" doc:"rows per second that a node of the status store writes"`
	DBReplication float64 `key:"db_replication" kind:"whole" max:"9" doc:"copies of a row in the status and the timer store"`
	Writes        float64 `key:"writes" kind:"number" min:"1" max:"1000" doc:"row writes per notification that is not in a fan-out"`
	Chunk         float64 `key:"chunk" kind:"whole" max:"1e6" doc:"receivers per chunk of a fan-out"`
	Window        float64 `key:"window" kind:"whole" max:"1e6" doc:"receivers per claim window"`

	SchedulerNodeRate float64 `key:"scheduler_node_rate" kind:"rate" doc:"rows per second that a node of the timer store writes"`
	PartitionRows     float64 `key:"partition_rows" kind:"whole" max:"1e9" doc:"rows that a partition of the timer store may hold"`
	ReleaseRate       float64 `key:"release_rate" kind:"rate" doc:"due rows per second that one owner releases"`
}

// Default returns the load and the rates of the source document: 5M notifications per second.
// Values that the document does not give are notifyd's own: SMS workers, copies in the log, sizes
// of partitions and chunks, and the rate of a release.
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

// Param is one value of an Input, with its name in a file and as a flag.
type Param struct {
	Key string // snake_case
	Doc string

	num      *float64
	dur      *time.Duration
	min, max float64 // inclusive; for a duration, in seconds
	whole    bool
}

// maxRate is the largest rate. Because of this limit and the limits of the other values, every
// count fits into 63 bits.
const maxRate = 1e12

// Params returns all values of the input. Setting a Param changes the input.
func (in *Input) Params() (list []Param) {
	v := reflect.ValueOf(in).Elem()
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		p := Param{Key: tag.Get("key"), Doc: tag.Get("doc"), min: 1, max: maxRate}
		number := func(name string, to *float64) {
			if n, err := strconv.ParseFloat(tag.Get(name), 64); err == nil { // otherwise the field has no such tag
				*to = n
			}
		}
		number("min", &p.min)
		number("max", &p.max)
		switch tag.Get("kind") {
		case "known":
			p.min, p.Doc = 0, p.Doc+"; 0: unknown"
		case "share":
			p.min, p.max = 0, 1
		case "whole":
			p.whole = true
		case "span":
			p.min, p.max = 1e-6, 7*86400
		}
		p.num, _ = v.Field(i).Addr().Interface().(*float64)
		p.dur, _ = v.Field(i).Addr().Interface().(*time.Duration)
		list = append(list, p)
	}
	return list
}

// Set parses a value that a person has written: 5M, 200K, 0.7, 70%, 50ms.
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

// String returns the value in a form that Set accepts.
func (p *Param) String() string {
	if p.dur != nil {
		return p.dur.String()
	}
	return Number(*p.num)
}

// Value returns the value as a number. A duration is returned in seconds.
func (p *Param) Value() float64 {
	if p.dur != nil {
		return p.dur.Seconds()
	}
	return *p.num
}

// scale multiplies the value by factor.
func (p *Param) scale(factor float64) {
	if p.dur != nil {
		*p.dur = time.Duration(float64(*p.dur) * factor)
		return
	}
	*p.num *= factor
}

// Check returns an error for every rule that the input breaks, with the name of the field.
func (in Input) Check() error {
	var problems []error
	for _, p := range in.Params() {
		v := p.Value()
		switch {
		case math.IsNaN(v) || v < p.min || v > p.max:
			problems = append(problems, notify.Invalid("out_of_range", p.Key, fmt.Sprintf("must be from %s to %s, not %s", p.formatBound(p.min), p.formatBound(p.max), p.String())))
		case p.whole && v != math.Trunc(v):
			problems = append(problems, notify.Invalid("out_of_range", p.Key, "must be a whole number, not "+p.String()))
		}
	}
	if sum := in.Push + in.Email + in.SMS; math.Abs(sum-1) > 1e-9 || math.IsNaN(sum) {
		problems = append(problems, notify.Invalid("bad_share", "push+email+sms", fmt.Sprintf("must sum to 1, not %s", Number(sum))))
	}
	return errors.Join(problems...)
}

func (p *Param) formatBound(v float64) string {
	if p.dur != nil {
		return time.Duration(v * float64(time.Second)).String()
	}
	return Number(v)
}
