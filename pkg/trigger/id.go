package trigger

import (
	"encoding/binary"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// TimerKind is the kind (engine.Timer.Kind) of a timer that leads to a trigger.
const TimerKind = engine.TimerOfTrigger

const idPrefix = "trg_"

func idOf(b notify.Base) string { return idPrefix + b.String() }

// ParseID returns the id of a trigger in canonical form. It returns notify.KindInvalid if the id is
// not valid.
func ParseID(id string) (string, error) {
	b, err := parseID(id)
	if err != nil {
		return "", err
	}
	return idOf(b), nil
}

func parseID(id string) (notify.Base, error) {
	rest, ok := strings.CutPrefix(id, idPrefix)
	b, err := notify.ParseBase(rest)
	if !ok || err != nil {
		return notify.Base{}, notify.Invalid("bad_id", "id", "the id of a trigger must be \"trg_\" followed by a ULID")
	}
	return b, nil
}

// message is the content of a timer and of a message in the delay queue. It identifies a state row
// and the generation for which the message was made. The row alone decides what happens.
type message struct {
	base notify.Base
	gen  uint32
	// The number of the attempt that the message should start; the first attempt is 1. It is only
	// information for people.
	attempt   uint16
	deferrals uint16 // how often the message was put off since the row was last written
	caller    uint64 // digest of the caller's name, which selects its lane
}

func callerDigest(caller string) uint64 { return notify.HashUser([]byte(caller)) }

const (
	messageVersion = 1
	messageKind    = 'T'
	messageSize    = 2 + 16 + 4 + 2 + 2 + 8
)

func (m message) encode() []byte {
	b := append(make([]byte, 0, messageSize), messageVersion, messageKind)
	b = append(b, m.base[:]...)
	b = binary.BigEndian.AppendUint32(b, m.gen)
	b = binary.BigEndian.AppendUint16(b, m.attempt)
	b = binary.BigEndian.AppendUint16(b, m.deferrals)
	return binary.BigEndian.AppendUint64(b, m.caller)
}

func decodeMessage(b []byte) (m message, ok bool) {
	if len(b) != messageSize || b[0] != messageVersion || b[1] != messageKind {
		return m, false
	}
	copy(m.base[:], b[2:])
	m.gen = binary.BigEndian.Uint32(b[18:])
	m.attempt = binary.BigEndian.Uint16(b[22:])
	m.deferrals = binary.BigEndian.Uint16(b[24:])
	m.caller = binary.BigEndian.Uint64(b[26:])
	return m, true
}

// timerID returns the id of the index row of a generation. All attempts of a generation have the
// same id, but different times.
func timerID(b notify.Base, gen uint32) []byte {
	return binary.BigEndian.AppendUint32(append(make([]byte, 0, 20), b[:]...), gen)
}

// indexRow returns the timer that leads back to a waiting trigger when it is due.
func indexRow(b notify.Base, t *engine.Trigger) engine.Timer {
	m := message{base: b, gen: t.Gen, attempt: clampUint16(t.Attempts + 1), caller: callerDigest(t.Caller)}
	return engine.Timer{FireAt: t.NextAt, ID: timerID(b, t.Gen), Kind: TimerKind, Payload: m.encode(), Weight: 1}
}

func clampUint16(n int) uint16 { return uint16(min(n, 1<<16-1)) }

// ceilMillis returns t in ms since 1970, rounded up to a whole millisecond. A value rounded down
// would fire early.
func ceilMillis(t time.Time) int64 {
	ms := t.UnixMilli()
	if t.After(time.UnixMilli(ms)) {
		ms++
	}
	return ms
}

// jitterOf returns a pseudo-random duration from 0 to longest. The same id and salt always give the
// same duration.
func jitterOf(b notify.Base, salt uint32, longest time.Duration) time.Duration {
	if longest <= 0 {
		return 0
	}
	h := notify.ColumnDigest(timerID(b, salt))
	return time.Duration(h % (uint64(longest) + 1))
}
