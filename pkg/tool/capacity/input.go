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

// Input is what a sheet is computed from. Rates are a second. Shares are from 0 to 1.
//
// The tags of a field are its name in a file and as a flag, its kind, its documentation,
// and for some kinds its bounds: a rate is 1 to most, known a rate or 0 where nobody
// knows it, a share 0 to 1, whole a whole number from 1 to max, number from min to max.
type Input struct {
	Rate      float64 `key:"rate" kind:"rate" doc:"notifications a second"`
	Push      float64 `key:"push" kind:"share" doc:"share of push"`
	Email     float64 `key:"email" kind:"share" doc:"share of email"`
	SMS       float64 `key:"sms" kind:"share" doc:"share of SMS"`
	Scheduled float64 `key:"scheduled" kind:"share" doc:"share that is scheduled for later"`
	Fanout    float64 `key:"fanout" kind:"share" doc:"share that comes in fan-outs, stored by chunk"`
	Retries   float64 `key:"retries" kind:"number" min:"0" max:"100" doc:"calls a notification beyond the first, on average"`

	APIRate       float64 `key:"api_rate" kind:"known" doc:"notifications a second an API server takes, in batches"`
	APIFanoutRate float64 `key:"api_fanout_rate" kind:"known" doc:"receivers a second an API server takes in fan-outs"`
	DeliveryRate  float64 `key:"delivery_rate" kind:"known" doc:"receivers a second a process brings from the log to a durable outcome, providers aside"`

	BrokerRate     float64 `key:"broker_rate" kind:"rate" doc:"messages a second a broker takes"`
	LogReplication float64 `key:"log_replication" kind:"whole" max:"9" doc:"copies of a message in the log"`

	PushWorkerRate  float64       `key:"push_worker_rate" kind:"rate" doc:"pushes a second a worker makes at most"`
	PushLatency     time.Duration `key:"push_latency" kind:"span" doc:"answer time of the push provider"`
	PushConnections float64       `key:"push_connections" kind:"whole" max:"10e3" doc:"HTTP/2 connections of a push worker"`
	PushStreams     float64       `key:"push_streams" kind:"whole" max:"1e6" doc:"streams at once of a connection"`

	SMSAdmitted    float64       `key:"sms_admitted" kind:"share" doc:"share of SMS that intake lets through (otp and alert)"`
	SMSAccountRate float64       `key:"sms_account_rate" kind:"rate" doc:"messages a second an SMS account may send"`
	SMSLatency     time.Duration `key:"sms_latency" kind:"span" doc:"answer time of the SMS provider"`
	SMSInFlight    float64       `key:"sms_in_flight" kind:"whole" max:"1e6" doc:"requests at once of an SMS worker"`

	MailObjective    time.Duration `key:"mail_objective" kind:"span" doc:"time within which a mail is handed over"`
	MailIPRate       float64       `key:"mail_ip_rate" kind:"rate" doc:"mails a second an IP may send"`
	MailBatch        float64       `key:"mail_batch" kind:"whole" max:"1e6" doc:"mails of one API call"`
	MailIPsPerWorker float64       `key:"mail_ips_per_worker" kind:"whole" max:"1e6" doc:"IPs a mail worker feeds"`

	DBNodeRate    float64 `key:"db_node_rate" kind:"rate" doc:"rows a second a node of the status store writes"`
	DBReplication float64 `key:"db_replication" kind:"whole" max:"9" doc:"copies of a row, in the status and the timer store"`
	Writes        float64 `key:"writes" kind:"number" min:"1" max:"1000" doc:"row writes of a notification that is not in a fan-out"`
	Chunk         float64 `key:"chunk" kind:"whole" max:"1e6" doc:"receivers of a chunk of a fan-out"`
	Window        float64 `key:"window" kind:"whole" max:"1e6" doc:"receivers of a claim window"`

	SchedulerNodeRate float64 `key:"scheduler_node_rate" kind:"rate" doc:"rows a second a node of the timer store writes"`
	PartitionRows     float64 `key:"partition_rows" kind:"whole" max:"1e9" doc:"rows a partition of the timer store may hold"`
	ReleaseRate       float64 `key:"release_rate" kind:"rate" doc:"due rows a second one owner releases"`
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
func (in *Input) Params() (list []Param) {
	v := reflect.ValueOf(in).Elem()
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		p := Param{Key: tag.Get("key"), Doc: tag.Get("doc"), min: 1, max: most}
		number := func(name string, to *float64) {
			if n, err := strconv.ParseFloat(tag.Get(name), 64); err == nil { // else it has none
				*to = n
			}
		}
		number("min", &p.min)
		number("max", &p.max)
		switch tag.Get("kind") {
		case "known":
			p.min, p.Doc = 0, p.Doc+"; 0: not known"
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
