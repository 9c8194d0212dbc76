package pebble

import (
	"encoding/binary"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Versions of a trigger's row; a reader refuses a higher one. A whole row holds
// everything and is written anew by each swap. Of a split one, which is large,
// the request (what nothing changes: URL, payload, terms) is written once, and
// the head is written beside it, in a row of its own, from the first swap on:
// with a payload of 4 KB a trigger's life (BenchmarkTriggerLife) costs 62 to 67
// us of processor instead of 88 to 106, on a busy machine. A small row is cheaper
// to rewrite than to read in two parts.
//
// triggerTraced is added to either where the request came with a trace context,
// which then stands behind its terms; a row without one reads as it ever did.
const (
	triggerWhole  = 1
	triggerSplit  = 2
	triggerTraced = 2

	triggerHeadVersion = 1
)

// splitFrom is the size of URL and payload, in bytes, from which a row is split.
const splitFrom = 512

func triggerHeadKey(id string) []byte { return key(tTriggerHead, id) }

func triggerKey(id string) []byte { return key(tTrigger, id) }

// triggerHeader is what a swap has to know of the row it replaces. It begins the
// value, so that the rest is not taken apart.
type triggerHeader struct {
	version uint64
	state   engine.TriggerState
	ended   int64
	caller  string
	// split: the request lies apart, and this is its digest. A swap that changes
	// the request too rewrites it.
	split   bool
	request uint64
	traced  bool // of a row, not of a head
}

func headerOf(t *engine.Trigger) triggerHeader {
	return triggerHeader{version: t.Version, state: t.State, ended: t.Ended, caller: t.Caller}
}

// digestOf is of everything a head does not hold.
func digestOf(t *engine.Trigger) uint64 {
	var small [128]byte
	b := appendLen(small[:0], t.URL)
	b = appendInt64(b, t.Created)
	b = appendTerms(b, t)
	if t.Trace != "" {
		b = appendLen(appendLen(b, t.Trace), t.TraceState)
	}
	h := notify.ColumnDigest(b)
	return h ^ notify.ColumnDigest(t.Payload)*0x9e3779b97f4a7c15 ^ uint64(len(t.Payload))
}

// appendListKey is the prefix of a list: of a state and caller.
func appendListKey(b []byte, state engine.TriggerState, caller string) []byte {
	return appendStr(append(b, tTriggerList, byte(state)), caller)
}

func (h *triggerHeader) listKey(id string) []byte {
	list := h.state
	if list == engine.TriggerInFlight {
		list = engine.TriggerPending // flights knows which
	}
	return append(appendListKey(make([]byte, 0, 4+len(h.caller)+len(id)), list, h.caller), id...)
}

func (h *triggerHeader) endedKey(id string) []byte {
	return append(appendInt(append(make([]byte, 0, 9+len(id)), tTriggerEnded), h.ended), id...)
}

func readTriggerHeader(d *reader, h *triggerHeader) bool {
	v := d.byte()
	if v == 0 || v > triggerSplit+triggerTraced {
		return false
	}
	if h.traced = v > triggerSplit; h.traced {
		v -= triggerTraced
	}
	h.split = v == triggerSplit
	h.version, h.state = d.uint(), engine.TriggerState(d.byte())
	h.ended, h.caller = d.int(), d.string()
	if h.split {
		h.request = d.u64()
	}
	return !d.bad
}

// appendTrigger packs everything of t but its id, under a header.
func appendTrigger(b []byte, t *engine.Trigger, h *triggerHeader) []byte {
	v := byte(triggerWhole)
	if h.split {
		v = triggerSplit
	}
	if t.Trace != "" {
		v += triggerTraced
	}
	b = appendTriggerHeader(b, v, h)
	b = appendLen(b, t.URL)
	b = appendBytes(b, t.Payload)
	b = appendInt64(b, t.Created)
	b = appendInt64(b, t.FireAt)
	b = appendTerms(b, t)
	if t.Trace != "" {
		b = appendLen(appendLen(b, t.Trace), t.TraceState)
	}
	return appendTriggerState(b, t)
}

// appendTriggerHead packs what changes in the life of a split row.
func appendTriggerHead(b []byte, t *engine.Trigger, h *triggerHeader) []byte {
	b = appendTriggerHeader(append(b, triggerHeadVersion), triggerSplit, h)
	b = appendInt64(b, t.FireAt)
	return appendTriggerState(b, t)
}

func appendTriggerHeader(b []byte, v byte, h *triggerHeader) []byte {
	b = append(b, v)
	b = binary.AppendUvarint(b, h.version)
	b = append(b, byte(h.state))
	b = appendInt64(b, h.ended)
	b = appendLen(b, h.caller)
	if h.split {
		b = binary.LittleEndian.AppendUint64(b, h.request)
	}
	return b
}

func appendTerms(b []byte, t *engine.Trigger) []byte {
	b = binary.AppendUvarint(b, uint64(len(t.Schedule)))
	for _, d := range t.Schedule {
		b = appendInt64(b, int64(d))
	}
	b = appendInt64(b, int64(t.MaxLateness))
	return append(b, byte(t.Late), byte(t.Form))
}

func appendTriggerState(b []byte, t *engine.Trigger) []byte {
	b = binary.AppendUvarint(b, uint64(t.Gen))
	b = binary.AppendUvarint(b, uint64(t.Epoch))
	b = appendInt64(b, int64(t.Attempts))
	b = appendInt64(b, int64(t.Deferrals))
	b = appendInt64(b, t.NextAt)
	b = appendInt64(b, t.LeaseUntil)
	b = appendLen(b, t.Reason)
	b = binary.AppendUvarint(b, uint64(len(t.Log)))
	for i := range t.Log {
		a := &t.Log[i]
		b = appendInt64(b, int64(a.N))
		b = appendInt64(b, a.At)
		b = appendInt64(b, int64(a.Took))
		b = appendInt64(b, int64(a.Status))
		b = appendLen(b, a.Class)
		b = appendLen(b, a.Detail)
		b = appendBytes(b, a.Body)
		b = appendLen(b, a.Address)
	}
	return b
}

// readTrigger reads a row, whose value t keeps, and returns its header.
func readTrigger(id string, v []byte, t *engine.Trigger) (h triggerHeader, err error) {
	d := reader{b: v}
	if !readTriggerHeader(&d, &h) {
		return h, unread("trigger", []byte(id), v, triggerSplit+triggerTraced)
	}
	t.ID, t.Version, t.State, t.Ended, t.Caller = id, h.version, h.state, h.ended, h.caller
	t.URL, t.Payload = d.string(), d.bytes()
	t.Created, t.FireAt = d.int(), d.int()
	if n := d.count(1); n > 0 {
		t.Schedule = make([]time.Duration, n)
		for i := range t.Schedule {
			t.Schedule[i] = time.Duration(d.int())
		}
	}
	t.MaxLateness, t.Late = time.Duration(d.int()), engine.LatePolicy(d.byte())
	t.Form = engine.PayloadForm(d.byte())
	if h.traced {
		t.Trace, t.TraceState = d.string(), d.string()
	}
	readTriggerState(&d, t)
	if !d.done() {
		return h, corrupt("trigger", []byte(id))
	}
	return h, nil
}

// readTriggerHead reads a head over the row it belongs to.
func readTriggerHead(id string, v []byte, t *engine.Trigger) (h triggerHeader, err error) {
	d := reader{b: v}
	if d.byte() != triggerHeadVersion || !readTriggerHeader(&d, &h) || !h.split {
		return h, unread("trigger's head", []byte(id), v, triggerHeadVersion)
	}
	t.Version, t.State, t.Ended, t.Caller = h.version, h.state, h.ended, h.caller
	t.FireAt = d.int()
	t.Log = nil
	readTriggerState(&d, t)
	if !d.done() {
		return h, corrupt("trigger's head", []byte(id))
	}
	return h, nil
}

func readTriggerState(d *reader, t *engine.Trigger) {
	t.Gen, t.Epoch = uint32(d.uint()), uint32(d.uint())
	t.Attempts, t.Deferrals = int(d.int()), int(d.int())
	t.NextAt, t.LeaseUntil = d.int(), d.int()
	t.Reason = d.string()
	if n := d.count(8); n > 0 {
		t.Log = make([]engine.Attempt, n)
		for i := range t.Log {
			a := &t.Log[i]
			a.N, a.At, a.Took, a.Status = int(d.int()), d.int(), time.Duration(d.int()), int(d.int())
			a.Class, a.Detail, a.Body, a.Address = d.string(), d.string(), d.bytes(), d.string()
		}
	}
}
