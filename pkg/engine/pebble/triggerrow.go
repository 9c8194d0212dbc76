package pebble

import (
	"github.com/notifyd/notifyd/pkg/codec"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/store"
)

// A whole row of a trigger holds everything and is written anew by each swap. Of a
// split one, which is large, the request (what nothing changes: URL, payload, terms) is
// written once, and the head is written beside it, in a row of its own, from the first
// swap on: with a payload of 4 KB a trigger's life (BenchmarkTriggerLife) costs 62 to 67
// us of processor instead of 88 to 106, on a busy machine. A small row is cheaper
// to rewrite than to read in two parts.

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
	c := codec.Packer(make([]byte, 0, 512), store.TriggerVersion)
	store.TriggerTerms(&c, t)
	h := notify.ColumnDigest(c.Packed())
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

// appendTrigger packs everything of t but its id, under a header; of a head only what
// changes in the life of a split row.
func appendTrigger(b []byte, t *engine.Trigger, h *triggerHeader, head bool) []byte {
	c := codec.Packer(b, store.TriggerVersion)
	h.fields(&c)
	if !head {
		store.TriggerRequest(&c, t)
	}
	store.TriggerProgress(&c, t)
	return c.Packed()
}

// readTrigger reads a row, or a head over the row it belongs to, and returns its header.
func readTrigger(id string, v []byte, t *engine.Trigger, head bool) (h triggerHeader, err error) {
	c := codec.Unpacker(v, store.TriggerVersion)
	h.fields(&c)
	if !head {
		store.TriggerRequest(&c, t)
	}
	store.TriggerProgress(&c, t)
	if !c.Whole() || head && !h.split {
		return h, notify.Unread("store", "trigger "+id, v, store.TriggerVersion)
	}
	t.ID, t.Version, t.State, t.Ended, t.Caller = id, h.version, h.state, h.ended, h.caller
	return h, nil
}
