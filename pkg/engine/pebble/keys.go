package pebble

import (
	"encoding/binary"
	"slices"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Tables; doc.go describes their keys and values.
const (
	tFormat     = 0x00
	tDead       = 'd'
	tDeadUntil  = 'e'
	tFeed       = 'f'
	tShard      = 'h'
	tIdem       = 'i'
	tIdemExpiry = 'j'
	tDeadNewest = 'l'
	tFeedSeq    = 'n'
	tNumber     = 'o'
	tRows       = 'r'
	tRow        = 's'
	tTimer      = 't'
	tSpillSeq   = 'y'
	tSpill      = 'z'

	tScheduleCaller = 'C'
	tTriggerHead    = 'B'
	tDeadOrd        = 'D'
	tTriggerEnded   = 'E'
	tScheduleFire   = 'F'
	tTrigger        = 'G'
	tHead           = 'H'
	tHint           = 'I'
	tFlight         = 'K'
	tTriggerList    = 'L'
	tMessage        = 'Q'
	tDeadOrdSeq     = 'O'
	tSchedule       = 'R'
	tCold           = 'T'
	tReceived       = 'V'
)

func key(table byte, parts ...string) []byte {
	b := append(make([]byte, 0, 64), table)
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

func appendStr(b []byte, s string) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}

func appendInt(b []byte, v int64) []byte {
	return binary.BigEndian.AppendUint64(b, uint64(v)^1<<63)
}

func readInt(b []byte) int64 { return int64(binary.BigEndian.Uint64(b) ^ 1<<63) }

func uintKey(table byte, v uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{table}, v)
}

// after returns the first key behind every key that begins with prefix.
func after(prefix []byte) []byte {
	b := slices.Clone(prefix)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i]++; b[i] != 0 {
			return b[:i+1]
		}
	}
	return nil
}

const (
	chunkKeyLen = 1 + 16 + 2 + 4
	rowKeyLen   = chunkKeyLen + 2 + 2 + 2 + 4 + 1
)

func appendChunkKey(b []byte, c notify.Chunk) []byte {
	b = append(b, tRow)
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

func readRowKey(b []byte, k *notify.RowKey) bool {
	if len(b) != rowKeyLen {
		return false
	}
	copy(k.Chunk.Base[:], b[1:17])
	k.Chunk.Partition = binary.BigEndian.Uint16(b[17:])
	k.Chunk.Block = binary.BigEndian.Uint32(b[19:])
	b = b[chunkKeyLen:]
	k.Epoch = binary.BigEndian.Uint16(b)
	k.Attempt = binary.BigEndian.Uint16(b[2:])
	k.Deferrals = binary.BigEndian.Uint16(b[4:])
	k.First = binary.BigEndian.Uint32(b[6:])
	k.Kind = notify.RowKind(b[10])
	return true
}

// timeKey is the first row key of bases made at ms.
func timeKey(ms int64) []byte {
	ms = min(max(ms, 0), 1<<48-1)
	var t [8]byte
	binary.BigEndian.PutUint64(t[:], uint64(ms))
	return append([]byte{tRow}, t[2:]...)
}
