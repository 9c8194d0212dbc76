package store

import (
	"errors"
	"reflect"
	"testing"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// again unpacks bytes, and packs and unpacks what it got: the two must be the same.
func again[V any](r Record[V]) func(b []byte) (first, second any, err error) {
	return func(b []byte) (any, any, error) {
		var first, second V
		if err := r.Unpack(b, &first); err != nil {
			return nil, nil, err
		}
		err := r.Unpack(r.Pack(&first), &second)
		return first, second, err
	}
}

// records has an example of each record that Record describes.
func records() map[string]struct {
	packed []byte
	want   any
	again  func([]byte) (any, any, error)
} {
	type entry = struct {
		packed []byte
		want   any
		again  func([]byte) (any, any, error)
	}
	reservation := engine.Reservation{
		Fingerprint: [32]byte{1, 31: 2}, Base: notify.Base{3}, Accepted: 4, Fire: -5, Partitions: 65_535, BlockSize: 6, Version: 7,
		Owner: "owner", LeaseUntil: 8, Expires: 9, Done: true, Status: 201, Body: []byte("body"),
	}
	spilled := engine.Spilled{Topic: "topic", Key: []byte("key"), Part: -1, Value: []byte("value"), At: 10}
	dead := engine.DeadLetter{
		ID: notify.ID{Base: notify.Base{1}, Index: 2, FanOut: true}, Epoch: 3, Seq: 1 << 63, Caller: "shop", Campaign: "cmp", Channel: "sms", Category: "otp",
		User: "u", Template: "t", Class: "permanent", Code: "c", Provider: "p", Attempts: 4, FirstFailed: 5, LastFailed: 6, Expires: 7,
		Chunk: notify.Chunk{Base: notify.Base{8}, Partition: 9, Block: 10}, Topic: "topic", Partition: 11, Offset: 12,
		State: "dead", Job: "j", Until: 13, Trace: "trace", Extra: map[string]any{"region": "eu"},
	}
	packed, _ := PackLetter(&dead)
	schedule := engine.Schedule{
		Caller: "shop", Campaign: "cmp", User: "u", Channel: 2, Category: 3, FireAt: -4, Created: 5, Expires: 6, Partition: 65_535,
		Partitions: 7, BlockSize: 8, Receivers: 9, Accepted: 10, FanOut: true,
	}
	head := engine.ScheduleHead{State: 1, Gen: 2, FireAt: 3, At: 4, MovedAt: 5, MovedBy: "shop", Moves: 6, Version: 1 << 63}
	return map[string]entry{
		"schedule":      {ScheduleRecord.Pack(&schedule), schedule, again(ScheduleRecord)},
		"schedule head": {HeadRecord.Pack(&head), head, again(HeadRecord)},
		"dead letter": {packed, dead, func(b []byte) (any, any, error) {
			var first, second engine.DeadLetter
			if err := UnpackLetter(b, &first); err != nil {
				return nil, nil, err
			}
			packed, err := PackLetter(&first)
			if err == nil {
				err = UnpackLetter(packed, &second)
			}
			return first, second, err
		}},
		"reservation": {reservationRecord.Pack(&reservation), reservation, again(reservationRecord)},
		"spilled":     {spilledRecord.Pack(&spilled), spilled, again(spilledRecord)},
	}
}

func TestRecords(t *testing.T) {
	for name, r := range records() {
		if got, _, err := r.again(r.packed); err != nil || !reflect.DeepEqual(got, r.want) {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, r.want)
		}
		for n := range r.packed {
			if _, _, err := r.again(r.packed[:n]); !errors.Is(err, notify.ErrCorrupt) || errors.Is(err, notify.ErrNewer) {
				t.Errorf("%d bytes of a %s: %v", n, name, err)
			}
		}
		if _, _, err := r.again([]byte{200, 'x'}); !errors.Is(err, notify.ErrNewer) || errors.Is(err, notify.ErrCorrupt) {
			t.Errorf("%s of a newer release: %v", name, err)
		}
	}
}

// FuzzRecords: whatever the bytes are, unpacking does not panic, and what it accepts is
// packed and unpacked again the same.
func FuzzRecords(f *testing.F) {
	all := records()
	for _, r := range all {
		f.Add(r.packed)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for name, r := range all {
			if first, second, err := r.again(b); first != nil && (err != nil || !reflect.DeepEqual(first, second)) {
				t.Errorf("%s: %+v, %v; want %+v", name, second, err, first)
			}
		}
	})
}
