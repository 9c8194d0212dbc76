package pebble

import (
	"encoding/hex"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Rows as releases before these formats wrote them are read: a schedule without
// its user, a head without who moved it.
func TestOldRows(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, testConfig(vfs.NewMem()))
	defer s.Close()
	base := notify.Base{1, 2, 3}
	raw := func(text string) []byte {
		b, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	// version, fan, channel, category, caller, campaign, fire, created, expires,
	// partition, partitions, block size, receivers, accepted
	schedule := raw("01" + "01" + "01" + "04" + "0473686f70" + "05636d705f31" + "12" + "0a" + "14" + "03" + "12" + "8040" + "0c" + "0b")
	// version, state, generation, head's version, fire, at
	head := raw("01" + "01" + "03" + "04" + "10" + "0e")
	if err := s.commit.write(t.Context(), func(tx tx) {
		tx.insert(scheduleKey(tSchedule, base), schedule)
		tx.set(scheduleKey(tHead, base), head)
	}, nil); err != nil {
		t.Fatal(err)
	}
	x, ok, err := s.Schedules().Get(t.Context(), base)
	want := engine.Schedule{
		Base: base, Caller: "shop", Campaign: "cmp_1", Channel: 1, Category: 4, FireAt: 9, Created: 5, Expires: 10,
		Partition: 3, Partitions: 18, BlockSize: 8192, Receivers: 12, Accepted: 11, Fan: true,
	}
	if err != nil || !ok || x != want {
		t.Errorf("%+v, %v, %v", x, ok, err)
	}
	h, ok, err := s.Schedules().Head(t.Context(), base)
	wantHead := engine.ScheduleHead{Base: base, State: engine.SchedulePending, Gen: 3, Version: 4, FireAt: 8, At: 7}
	if err != nil || !ok || h != wantHead {
		t.Errorf("%+v, %v, %v", h, ok, err)
	}
	// What is written over an old one is a new one.
	next := h
	next.MovedAt, next.MovedBy, next.Moves = 77, "shop", 1
	if _, won, err := s.Schedules().Swap(t.Context(), 4, next); err != nil || !won {
		t.Fatal(won, err)
	}
	next.Version = 5
	if h, _, err := s.Schedules().Head(t.Context(), base); err != nil || h != next {
		t.Errorf("%+v, %v", h, err)
	}
	// Of a later release: refused, not misread.
	head[0] = headVersion + 1
	if err := s.commit.write(t.Context(), func(tx tx) { tx.set(scheduleKey(tHead, base), head) }, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Schedules().Head(t.Context(), base); err == nil {
		t.Error("a head of an unknown version is read")
	}
}
