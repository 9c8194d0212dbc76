package store

import (
	"github.com/notifyd/notifyd/pkg/codec"
	"github.com/notifyd/notifyd/pkg/engine"
)

// TriggerVersion is the version of both parts of a trigger: its request and its progress.
const TriggerVersion = 1

// TriggerRequest packs or unpacks the fields of a trigger that swaps rarely change. An engine may
// store them in a separate row, and rewrite that row only if a swap changes them.
func TriggerRequest(c *codec.Codec, t *engine.Trigger) {
	TriggerTerms(c, t)
	c.Bytes(&t.Payload)
}

// TriggerTerms packs or unpacks the request without its payload. It packs the schedule in a loop of
// its own, because a function argument would force each Codec onto the heap.
func TriggerTerms(c *codec.Codec, t *engine.Trigger) {
	c.Str(&t.Caller)
	c.Str(&t.URL)
	codec.Num(c, &t.Form)
	c.Str(&t.Trace)
	c.Str(&t.TraceState)
	codec.Num(c, &t.Created)
	codec.Slice(c, &t.Schedule)
	for i := range t.Schedule {
		codec.Num(c, &t.Schedule[i])
	}
	codec.Num(c, &t.MaxLateness)
	codec.Num(c, &t.Late)
}

// TriggerProgress packs or unpacks the fields that swaps change. It omits version, state and time
// of the end. Engines store these three separately, so that they can compare them.
func TriggerProgress(c *codec.Codec, t *engine.Trigger) {
	codec.Num(c, &t.FireAt)
	codec.Num(c, &t.Gen)
	codec.Num(c, &t.Epoch)
	codec.Num(c, &t.Attempts)
	codec.Num(c, &t.Deferrals)
	codec.Num(c, &t.NextAt)
	codec.Num(c, &t.LeaseUntil)
	c.Str(&t.Reason)
	codec.Slice(c, &t.Log)
	for i := range t.Log {
		a := &t.Log[i]
		codec.Num(c, &a.N)
		codec.Num(c, &a.At)
		codec.Num(c, &a.Took)
		codec.Num(c, &a.Status)
		c.Str(&a.Class)
		c.Str(&a.Detail)
		c.Bytes(&a.Body)
		c.Str(&a.Address)
	}
}
