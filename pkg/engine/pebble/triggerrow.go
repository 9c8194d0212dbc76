package pebble

import (
	"encoding/binary"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// triggerRowVersion is what appendTrigger writes; a reader refuses a higher one.
const triggerRowVersion = 1

func triggerKey(id string) []byte { return key(tTrigger, id) }

// triggerHeader is what a swap has to know of the row it replaces. It begins the
// value, so that the rest is not taken apart.
type triggerHeader struct {
	version uint64
	state   engine.TriggerState
	ended   int64
	caller  string
}

func headerOf(t *engine.Trigger) triggerHeader {
	return triggerHeader{t.Version, t.State, t.Ended, t.Caller}
}

func (h *triggerHeader) terminal() bool {
	switch h.state {
	case engine.TriggerFired, engine.TriggerFailed, engine.TriggerCancelled, engine.TriggerExpired:
		return true
	}
	return false
}

// appendListKey is the prefix of a list: of a state and caller.
func appendListKey(b []byte, state engine.TriggerState, caller string) []byte {
	return appendStr(append(b, tTriggerList, byte(state)), caller)
}

func (h *triggerHeader) listKey(id string) []byte {
	return append(appendListKey(make([]byte, 0, 4+len(h.caller)+len(id)), h.state, h.caller), id...)
}

func (h *triggerHeader) endedKey(id string) []byte {
	return append(appendInt(append(make([]byte, 0, 9+len(id)), tTriggerEnded), h.ended), id...)
}

func readTriggerHeader(d *reader, h *triggerHeader) bool {
	if v := d.byte(); v == 0 || v > triggerRowVersion {
		return false
	}
	h.version, h.state = d.uint(), engine.TriggerState(d.byte())
	h.ended, h.caller = d.int(), d.string()
	return !d.bad
}

// appendTrigger packs everything of t but its id, with a version of its own.
func appendTrigger(b []byte, t *engine.Trigger, version uint64) []byte {
	b = append(b, triggerRowVersion)
	b = binary.AppendUvarint(b, version)
	b = append(b, byte(t.State))
	b = appendInt64(b, t.Ended)
	b = appendLen(b, t.Caller)

	b = appendLen(b, t.URL)
	b = appendBytes(b, t.Payload)
	b = appendInt64(b, t.Created)
	b = appendInt64(b, t.FireAt)
	b = binary.AppendUvarint(b, uint64(len(t.Schedule)))
	for _, d := range t.Schedule {
		b = appendInt64(b, int64(d))
	}
	b = appendInt64(b, int64(t.MaxLateness))
	b = append(b, byte(t.Late))
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

// readTrigger reads a row, whose value t keeps.
func readTrigger(id string, v []byte, t *engine.Trigger) error {
	d := reader{b: v}
	var h triggerHeader
	if !readTriggerHeader(&d, &h) {
		return corrupt("trigger", []byte(id))
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
	if !d.done() {
		return corrupt("trigger", []byte(id))
	}
	return nil
}
