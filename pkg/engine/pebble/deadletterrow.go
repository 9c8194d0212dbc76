package pebble

import (
	"encoding/binary"
	"encoding/json"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// letter is what is stored, behind its seq.
type letter struct {
	engine.DeadLetter
	value []byte // to be written: room for the seq, and the form below
}

// letterForm is the first byte behind the seq. A plan reads every letter: numbers
// of fixed width, then strings, is eight times as fast as JSON.
const letterForm = 2

func (l *letter) strings() [13]*string {
	d := &l.DeadLetter
	return [...]*string{
		&d.Caller, &d.Campaign, &d.Channel, &d.Category, &d.User, &d.Template, &d.Class, &d.Code, &d.Provider, &d.Topic, &d.State, &d.Job, &d.Trace,
	}
}

func (l *letter) pack() error {
	d := &l.DeadLetter
	b := append(make([]byte, 8, 320), letterForm)
	b = append(b, letterID(d.ID, d.Epoch)...)
	b = append(b, d.Chunk.Base[:]...)
	b = binary.BigEndian.AppendUint16(b, d.Chunk.Partition)
	b = binary.BigEndian.AppendUint32(b, d.Chunk.Block)
	b = binary.BigEndian.AppendUint32(b, uint32(d.Partition))
	for _, n := range [...]int64{d.Offset, int64(d.Attempts), d.FirstFailed, d.LastFailed, d.Expires, d.Until} {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	for _, s := range l.strings() {
		b = binary.AppendUvarint(b, uint64(len(*s)))
		b = append(b, *s...)
	}
	if len(d.Extra) > 0 {
		doc, err := json.Marshal(d.Extra)
		if err != nil {
			return err
		}
		b = append(b, doc...)
	}
	l.value = b
	return nil
}

const letterFixed = 8 + 1 + letterIDLen + 16 + 2 + 4 + 4 + 6*8

func (l *letter) unpack(ord uint64, v []byte) error {
	if len(v) < letterFixed || v[8] != letterForm {
		return corrupt("dead letter", ordKey(ord))
	}
	d := &l.DeadLetter
	d.Seq, d.Ord = binary.BigEndian.Uint64(v), ord
	b := v[9:]
	copy(d.ID.Base[:], b)
	d.ID.Index, d.ID.Fan = binary.BigEndian.Uint32(b[16:]), b[20] == 1
	d.Epoch = binary.BigEndian.Uint16(b[21:])
	b = b[letterIDLen:]
	copy(d.Chunk.Base[:], b)
	d.Chunk.Partition, d.Chunk.Block = binary.BigEndian.Uint16(b[16:]), binary.BigEndian.Uint32(b[18:])
	d.Partition = int32(binary.BigEndian.Uint32(b[22:]))
	b = b[26:]
	attempts := int64(0)
	for i, n := range [...]*int64{&d.Offset, &attempts, &d.FirstFailed, &d.LastFailed, &d.Expires, &d.Until} {
		*n = int64(binary.BigEndian.Uint64(b[8*i:]))
	}
	d.Attempts = int(attempts)
	rest := string(b[48:]) // one allocation for all of them
	for _, s := range l.strings() {
		n, k := uvarint(rest)
		if k <= 0 || n > uint64(len(rest)-k) {
			return corrupt("dead letter", ordKey(ord))
		}
		*s, rest = rest[k:k+int(n)], rest[k+int(n):]
	}
	if rest != "" && json.Unmarshal([]byte(rest), &d.Extra) != nil {
		return corrupt("dead letter", ordKey(ord))
	}
	return nil
}

// uvarint is binary.Uvarint of a string.
func uvarint(s string) (v uint64, n int) {
	for i := 0; i < len(s) && i < binary.MaxVarintLen64; i++ {
		v |= uint64(s[i]&0x7f) << (7 * i)
		if s[i] < 0x80 {
			return v, i + 1
		}
	}
	return 0, 0
}

var ordSeqKey = []byte{tDeadOrdSeq}

func ordKey(ord uint64) []byte { return uintKey(tDeadOrd, ord) }

const letterIDLen = 16 + 4 + 1 + 2

func letterID(id notify.ID, epoch uint16) []byte {
	b := append(make([]byte, 0, letterIDLen), id.Base[:]...)
	b = binary.BigEndian.AppendUint32(b, id.Index)
	fan := byte(0)
	if id.Fan {
		fan = 1
	}
	b = append(b, fan)
	return binary.BigEndian.AppendUint16(b, epoch)
}

func letterKey(id []byte) []byte { return append([]byte{tDead}, id...) }

func untilKey(until int64, id []byte) []byte {
	return append(appendInt([]byte{tDeadUntil}, until), id...)
}

func newestKey(failed int64, id []byte) []byte {
	return append(appendInt([]byte{tDeadNewest}, ^failed), id...)
}

func feedKey(caller string, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(appendStr([]byte{tFeed}, caller), seq)
}

func seqKey(caller string) []byte { return appendStr([]byte{tFeedSeq}, caller) }
