package store

import (
	"encoding/binary"
	"fmt"

	"github.com/notifyd/notifyd/pkg/codec"
	"github.com/notifyd/notifyd/pkg/notify"
)

// RowVersion is the version of the packed form of an outcome row.
const RowVersion = 1

// Flags of an exception, in one byte with the state (low four bits).
const (
	exceptionRetries = 0x10 << iota
	exceptionWakes
	exceptionAddress
	exceptionReceipt
)

func flag(set bool, bit byte) byte {
	if set {
		return bit
	}
	return 0
}

// exceptionFields packs or unpacks an exception without its position. Flags in the first byte say
// whether wake-up time, several addresses and receipt follow. Most exceptions have none of them.
func exceptionFields(c *codec.Codec, x *notify.Exception, accepted int64) {
	head := byte(x.State)&0x0f | flag(x.Retry, exceptionRetries) | flag(x.Wake != 0, exceptionWakes) |
		flag(x.Addr != 0 || x.Of != 0, exceptionAddress) | flag(x.Receipt != "", exceptionReceipt)
	c.Byte(&head)
	x.State, x.Retry = notify.State(head&0x0f), head&exceptionRetries != 0
	c.Byte((*byte)(&x.Class))
	c.Word(&x.Code)
	c.Word(&x.Provider)
	if head&exceptionWakes != 0 {
		codec.Delta(c, &x.Wake, accepted)
	}
	if head&exceptionAddress != 0 {
		c.Byte(&x.Addr)
		c.Byte(&x.Of)
	}
	if head&exceptionReceipt != 0 {
		c.Str(&x.Receipt)
	}
}

// RowFields packs or unpacks an outcome row without its key. Times are stored relative to Accepted.
// Indexes and positions are stored as differences from the index or position before. So the done
// row of a chunk with 8,300 receivers takes about 100 bytes, and 5 bytes more for each failure.
//
// RowFields does not pass c to a function value, because that would move the codec to the heap.
func RowFields(c *codec.Codec, r *notify.Row) {
	c.Bool(&r.Done)
	c.Byte((*byte)(&r.Channel))
	c.Byte((*byte)(&r.Category))
	c.Fixed(&r.Digest)
	codec.Num(c, &r.Count)
	codec.Num(c, &r.DoneUpTo)
	codec.Num(c, &r.StartedUpTo)
	codec.Num(c, &r.Starts)
	codec.Num(c, &r.Resent)
	c.Int64(&r.Accepted)
	codec.Delta(c, &r.Updated, r.Accepted)
	codec.Num(c, &r.LogPart)
	c.Int64(&r.Offset)
	c.Str(&r.Caller)
	c.Str(&r.Campaign)
	c.Str(&r.Topic)
	codec.Slice(c, &r.Index)
	next := uint32(0)
	for i := range r.Index {
		codec.Delta(c, &r.Index[i], next)
		next = r.Index[i] + 1
	}
	exceptionFields(c, &r.Default, r.Accepted)
	codec.Slice(c, &r.Exceptions)
	last := uint32(0)
	for i := range r.Exceptions {
		x := &r.Exceptions[i]
		codec.Delta(c, &x.Pos, last)
		last = x.Pos
		exceptionFields(c, x, r.Accepted)
	}
}

// AppendRow appends the packed form of an outcome row.
func AppendRow(b []byte, r *notify.Row) []byte {
	c := codec.Packer(b, RowVersion)
	RowFields(&c, r)
	return c.Packed()
}

// ReadRow decodes the bytes v, which AppendRow wrote, and stores the result in r. It does not set
// the key of r. It returns false if the bytes are damaged or have a newer version.
func ReadRow(v []byte, r *notify.Row) bool {
	c := codec.Unpacker(v, RowVersion)
	RowFields(&c, r)
	return c.Whole()
}

// unreadRow returns the error for a stored row that ReadRow could not decode.
func unreadRow(key string, v []byte) error {
	return notify.Unread("store", fmt.Sprintf("outcome row at %x", key), v, RowVersion)
}

// CheckRow returns an error if the row contains a state that does not exist. Such a state cannot be
// packed, because the packed form has only four bits for it.
func CheckRow(r *notify.Row) error {
	if int(r.Default.State) >= notify.States {
		return notify.Invalid("bad_row", "default.state", fmt.Sprintf("%d is not a known state", r.Default.State))
	}
	for i := range r.Exceptions {
		if int(r.Exceptions[i].State) >= notify.States {
			return notify.Invalid("bad_row", "exceptions.state", fmt.Sprintf("%d is not a known state", r.Exceptions[i].State))
		}
	}
	return nil
}

const rowKeyLen = 16 + 2 + 4 + 2 + 2 + 2 + 4 + 1

func appendChunkKey(b []byte, c notify.Chunk) []byte {
	b = append(b, c.Base[:]...)
	b = binary.BigEndian.AppendUint16(b, c.Partition)
	return binary.BigEndian.AppendUint32(b, c.Block)
}

func appendRowKey(b []byte, k *notify.RowKey) []byte {
	b = appendChunkKey(b, k.Chunk)
	b = binary.BigEndian.AppendUint16(b, k.Epoch)
	b = binary.BigEndian.AppendUint16(b, k.Attempt)
	b = binary.BigEndian.AppendUint16(b, k.Deferrals)
	b = binary.BigEndian.AppendUint32(b, k.First)
	return append(b, byte(k.Kind))
}

func readRowKey(b string, k *notify.RowKey) bool {
	if len(b) != rowKeyLen {
		return false
	}
	u16 := func(at int) uint16 { return uint16(b[at])<<8 | uint16(b[at+1]) }
	u32 := func(at int) uint32 { return uint32(u16(at))<<16 | uint32(u16(at+2)) }
	copy(k.Chunk.Base[:], b)
	k.Chunk.Partition, k.Chunk.Block = u16(16), u32(18)
	k.Epoch, k.Attempt, k.Deferrals, k.First = u16(22), u16(24), u16(26), u32(28)
	k.Kind = notify.RowKind(b[32])
	return true
}

// timeKey returns the first possible key of rows whose request was made at ms (ms since 1970).
func timeKey(ms int64) string { return num(uint64(min(max(ms, 0), 1<<48-1)))[2:] }
