package store

import (
	"encoding/binary"
	"encoding/json"

	"github.com/notifyd/notifyd/pkg/codec"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// letter is a dead letter with its Extra encoded as JSON.
type letter struct {
	*engine.DeadLetter
	extra []byte // JSON
}

var letterRecord = Record[letter]{"a dead letter", 1, func(c *codec.Codec, l *letter) {
	d := l.DeadLetter
	c.Fixed(&d.Seq) // Seq is first, because numberLetter overwrites it in the packed form
	c.Raw(d.ID.Base[:])
	codec.Num(c, &d.ID.Index)
	c.Bool(&d.ID.FanOut)
	codec.Num(c, &d.Epoch)
	for _, s := range [...]*string{
		&d.Caller, &d.Campaign, &d.Channel, &d.Category, &d.User, &d.Template, &d.Class, &d.Code, &d.Provider, &d.Topic, &d.State, &d.Job, &d.Trace,
	} {
		c.Str(s)
	}
	c.Raw(d.Chunk.Base[:])
	codec.Num(c, &d.Chunk.Partition)
	codec.Num(c, &d.Chunk.Block)
	codec.Num(c, &d.Partition)
	codec.Num(c, &d.Offset)
	codec.Num(c, &d.Attempts)
	codec.Num(c, &d.FirstFailed)
	codec.Num(c, &d.LastFailed)
	codec.Num(c, &d.Expires)
	codec.Num(c, &d.Until)
	c.Bytes(&l.extra)
}}

// PackLetter encodes a dead letter without its Ord. It returns notify.KindInvalid if Extra cannot be
// encoded as JSON or if the caller's name is too long.
func PackLetter(d *engine.DeadLetter) ([]byte, error) {
	if err := engine.CheckCaller("bad_dead_letter", d.Caller); err != nil {
		return nil, err
	}
	l := letter{DeadLetter: d}
	if len(d.Extra) > 0 {
		doc, err := json.Marshal(d.Extra)
		if err != nil {
			return nil, &notify.Error{Kind: notify.KindInvalid, Code: "bad_dead_letter", Field: "extra", Msg: "cannot be encoded as JSON", Err: err}
		}
		l.extra = doc
	}
	return letterRecord.Pack(&l), nil
}

// UnpackLetter decodes bytes that PackLetter returned.
func UnpackLetter(b []byte, d *engine.DeadLetter) error {
	l := letter{DeadLetter: d}
	if err := letterRecord.Unpack(b, &l); err != nil {
		return err
	}
	if l.extra != nil && json.Unmarshal(l.extra, &d.Extra) != nil {
		return notify.Corrupt("store", letterRecord.what)
	}
	return nil
}

// numberLetter sets Seq in a packed letter.
func numberLetter(packed []byte, seq uint64) { binary.LittleEndian.PutUint64(packed[1:], seq) }

// LetterIDLen is the length of a LetterID in bytes.
const LetterIDLen = 16 + 4 + 1 + 2

// LetterID returns the key of a dead letter.
func LetterID(id notify.ID, epoch uint16) []byte {
	b := append(make([]byte, 0, LetterIDLen), id.Base[:]...)
	b = binary.BigEndian.AppendUint32(b, id.Index)
	fan := byte(0)
	if id.FanOut {
		fan = 1
	}
	return binary.BigEndian.AppendUint16(append(b, fan), epoch)
}
