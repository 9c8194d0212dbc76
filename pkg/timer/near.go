package timer

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// Format of a near timer in the queue: version, flags and kind (one byte each), then four numbers
// as uvarints, then the head (16 bytes), then the id and the target, each with its length before
// it. The payload, if the message contains it, is the rest.
const (
	nearVersion = 1
	// flagPayload: the message contains the payload. A payload of more than nearPayload bytes is not
	// in the message; it is read from the row.
	flagPayload = 1
	nearPayload = 48 << 10
)

// nearMessage returns a message for a near timer. The message becomes visible when the timer is
// due.
func nearMessage(p *parked, now int64) engine.Message {
	flags := byte(0)
	if len(p.Payload) <= nearPayload {
		flags |= flagPayload
	}
	b := []byte{nearVersion, flags, p.Kind}
	b = binary.AppendUvarint(b, uint64(p.due))
	b = binary.AppendUvarint(b, uint64(p.FireAt))
	b = binary.AppendUvarint(b, uint64(p.Gen))
	b = binary.AppendUvarint(b, uint64(p.Weight))
	b = append(b, p.Head[:]...)
	b = appendBytes(b, p.ID)
	b = appendBytes(b, []byte(p.Target))
	if flags&flagPayload != 0 {
		b = append(b, p.Payload...)
	}
	return engine.Message{Body: b, Delay: nearDelay(p.due, now)}
}

// nearDelay returns the delay of a message, at most engine.MaxQueueDelay. If the timer is due
// later, its message is put into the queue again after this delay.
func nearDelay(due, now int64) time.Duration {
	return time.Duration(min(max(due-now, 0), engine.MaxQueueDelay.Milliseconds())) * time.Millisecond
}

func appendBytes(b, s []byte) []byte { return append(binary.AppendUvarint(b, uint64(len(s))), s...) }

var errNearMessage = errors.New("the message of a near timer cannot be decoded")

// readNear decodes a message that nearMessage made. The result whole is true if the message
// contains the payload.
func readNear(b []byte) (p parked, whole bool, err error) {
	if len(b) < 3 || b[0] != nearVersion {
		return p, false, errNearMessage
	}
	flags, kind := b[1], b[2]
	b = b[3:]
	var numbers [4]uint64
	for i := range numbers {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return p, false, errNearMessage
		}
		numbers[i], b = v, b[n:]
	}
	p.Kind, p.due, p.FireAt = kind, int64(numbers[0]), int64(numbers[1])
	p.Gen, p.Weight = uint32(numbers[2]), uint32(numbers[3])
	if len(b) < len(p.Head) {
		return p, false, errNearMessage
	}
	b = b[copy(p.Head[:], b):]
	var parts [2][]byte
	for i := range parts {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > uint64(len(b)-n) {
			return p, false, errNearMessage
		}
		parts[i], b = b[n:n+int(v)], b[n+int(v):]
	}
	p.ID, p.Target = parts[0], string(parts[1])
	if len(p.ID) == 0 || p.due < 0 || p.FireAt < 0 {
		return p, false, errNearMessage
	}
	if flags&flagPayload == 0 {
		return p, false, nil
	}
	if len(b) > 0 {
		p.Payload = b
	}
	return p, true, nil
}
