package store

import (
	"github.com/notifyd/notifyd/pkg/codec"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
)

// Tables of triggers.
var (
	tableTriggers     = rows.Part{Table: 'G'} // id: trigger
	tableTriggerHeads = rows.Part{Table: 'B'} // id: head of a large trigger, once it was swapped
	tableTriggerList  = rows.Part{Table: 'L'} // state (a byte), str caller, id: -; IN_FLIGHT among PENDING
	tableTriggerEnds  = rows.Part{Table: 'E'} // ended, id: - of terminal ones
	tableFlights      = rows.Part{Table: 'K'} // seq: ids that one swap claimed
)

// A whole row of a trigger holds everything and is written anew by each swap. Of a
// split one, which is large, the request (what nothing changes: URL, payload, terms) is
// written once, and the head is written beside it, in a row of its own, from the first
// swap on: with a payload of 4 KB a trigger's life (BenchmarkTriggerLife) costs 62 to 67
// us of processor instead of 88 to 106, on a busy machine. A small row is cheaper
// to rewrite than to read in two parts.

// splitFrom is the size of URL and payload, in bytes, from which a row is split.
const splitFrom = 512

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
}

func (h *triggerHeader) fields(c *codec.Codec) {
	c.Uint(&h.version)
	codec.Num(c, &h.state)
	codec.Num(c, &h.ended)
	c.Str(&h.caller)
	c.Bool(&h.split)
	if h.split {
		c.Fixed(&h.request)
	}
}

func headerOf(t *engine.Trigger) triggerHeader {
	return triggerHeader{version: t.Version, state: t.State, ended: t.Ended, caller: t.Caller}
}

// digestOf is of everything a head does not hold. The payload is digested where it lies.
func digestOf(t *engine.Trigger) uint64 {
	c := codec.Packer(make([]byte, 0, 512), TriggerVersion)
	TriggerTerms(&c, t)
	h := notify.ColumnDigest(c.Packed())
	return h ^ notify.ColumnDigest(t.Payload)*0x9e3779b97f4a7c15 ^ uint64(len(t.Payload))
}

// appendListKey is the prefix of a list: of a state and caller.
func appendListKey(b []byte, state engine.TriggerState, caller string) []byte {
	return appendStr(append(b, byte(state)), caller)
}

// list is the state under which a trigger is listed.
func (h *triggerHeader) list() engine.TriggerState {
	if h.state == engine.TriggerInFlight {
		return engine.TriggerPending // flights knows which
	}
	return h.state
}

func (h *triggerHeader) sameList(o *triggerHeader) bool {
	return h.list() == o.list() && h.caller == o.caller
}

func (h *triggerHeader) listKey(id string) []byte {
	return append(appendListKey(make([]byte, 0, 3+len(h.caller)+len(id)), h.list(), h.caller), id...)
}

func (h *triggerHeader) endedKey(id string) []byte {
	return append(appendOrdered(make([]byte, 0, 8+len(id)), h.ended), id...)
}

// appendTrigger packs everything of t but its id, under a header; of a head only what
// changes in the life of a split row.
func appendTrigger(b []byte, t *engine.Trigger, h *triggerHeader, head bool) []byte {
	c := codec.Packer(b, TriggerVersion)
	h.fields(&c)
	if !head {
		TriggerRequest(&c, t)
	}
	TriggerProgress(&c, t)
	return c.Packed()
}

// readHeader reads the header of a row, or of a head.
func readHeader(id string, v []byte) (h triggerHeader, err error) {
	c := codec.Unpacker(v, TriggerVersion)
	if h.fields(&c); h.version == 0 { // what is damaged reads as zero
		return h, notify.Unread("store", "trigger "+id, v, TriggerVersion)
	}
	return h, nil
}

// readTrigger reads a row, or a head over the row it belongs to, and returns its header.
func readTrigger(id string, v []byte, t *engine.Trigger, head bool) (h triggerHeader, err error) {
	c := codec.Unpacker(v, TriggerVersion)
	h.fields(&c)
	if !head {
		TriggerRequest(&c, t)
	}
	TriggerProgress(&c, t)
	if !c.Whole() || head && !h.split {
		return h, notify.Unread("store", "trigger "+id, v, TriggerVersion)
	}
	t.ID, t.Version, t.State, t.Ended, t.Caller = id, h.version, h.state, h.ended, h.caller
	return h, nil
}
