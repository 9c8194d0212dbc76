package store

import (
	"github.com/notifyd/notifyd/pkg/codec"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
)

// The tables of triggers, in the form that store.go explains.
var (
	tableTriggers     = rows.Partition{Table: 'G'} // id: trigger
	tableTriggerHeads = rows.Partition{Table: 'B'} // id: head of a split trigger; exists after the first swap
	tableTriggerList  = rows.Partition{Table: 'L'} // state (a byte)+str(caller)+id (index; IN_FLIGHT triggers are listed as PENDING)
	tableTriggerEnds  = rows.Partition{Table: 'E'} // ended+id (index of the terminal triggers)
	tableFlights      = rows.Partition{Table: 'K'} // seq: ids of the triggers that one swap claimed
)

// The row of a small trigger contains everything, and each swap rewrites the row. The row of a
// large trigger is split. It contains the request (URL, payload and terms), and a swap rewrites it
// only if the request changes, which is rare. From the first swap on, the other fields are in a
// separate row, the head. This saves processor time: on a busy machine a trigger with a payload of
// 4 KB needs 62 to 67 us in its whole life, instead of 88 to 106 us (BenchmarkTriggerLife). A small
// row is not split, because rewriting it is cheaper than reading two rows.

// splitFrom is the least length of URL and payload together, in bytes, of a row that is split.
const splitFrom = 512

// triggerHeader holds those fields of the stored row that a swap needs. It is at the beginning of
// the value, so that a swap need not decode the rest.
type triggerHeader struct {
	version uint64
	state   engine.TriggerState
	ended   int64
	caller  string
	split   bool   // true: the row is split, and its head has a separate row
	request uint64 // digest of the request if split is true; a swap rewrites the request only if the digest changes
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

// digestOf returns a digest of the fields that are not in a head. It does not copy the payload.
func digestOf(t *engine.Trigger) uint64 {
	c := codec.Packer(make([]byte, 0, 512), TriggerVersion)
	TriggerTerms(&c, t)
	h := notify.ColumnDigest(c.Packed())
	return h ^ notify.ColumnDigest(t.Payload)*0x9e3779b97f4a7c15 ^ uint64(len(t.Payload))
}

// appendListKey appends the key prefix of the list of a state and a caller.
func appendListKey(b []byte, state engine.TriggerState, caller string) []byte {
	return appendStr(append(b, byte(state)), caller)
}

// listedState returns the state under which the index lists the trigger.
func (h *triggerHeader) listedState() engine.TriggerState {
	if h.state == engine.TriggerInFlight {
		return engine.TriggerPending // the field flights tells which triggers of the list are IN_FLIGHT
	}
	return h.state
}

func (h *triggerHeader) sameList(o *triggerHeader) bool {
	return h.listedState() == o.listedState() && h.caller == o.caller
}

func (h *triggerHeader) listKey(id string) []byte {
	return append(appendListKey(make([]byte, 0, 3+len(h.caller)+len(id)), h.listedState(), h.caller), id...)
}

func (h *triggerHeader) endedKey(id string) []byte {
	return append(appendOrdered(make([]byte, 0, 8+len(id)), h.ended), id...)
}

// appendTrigger appends the packed header and the packed trigger t, without its id. If the
// parameter head is true, it omits the request, because the head of a split row does not contain
// it.
func appendTrigger(b []byte, t *engine.Trigger, h *triggerHeader, head bool) []byte {
	c := codec.Packer(b, TriggerVersion)
	h.fields(&c)
	if !head {
		TriggerRequest(&c, t)
	}
	TriggerProgress(&c, t)
	return c.Packed()
}

// readHeader decodes the header of a row or of a head.
func readHeader(id string, v []byte) (h triggerHeader, err error) {
	c := codec.Unpacker(v, TriggerVersion)
	if h.fields(&c); h.version == 0 { // the codec reads damaged bytes as zero
		return h, notify.Unread("store", "trigger "+id, v, TriggerVersion)
	}
	return h, nil
}

// readTrigger decodes v into t and returns the header. If the parameter head is true, v is the head
// of a split row. Then the caller must first decode the other part of the row into t.
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
