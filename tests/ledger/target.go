package main

import (
	"bytes"
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/simulator"
)

const (
	fanSize   = 10_000
	batchSize = 1000
	// keepFor is the number of ids in the ring. The target delivers an id again when it has put
	// keepFor newer ids into the ring. By then, the ledger has written the first delivery to disk.
	keepFor = 500
)

// injected counts the accepted notifications, and the errors that the target made on purpose.
type injected struct {
	accepted, lost, duplicated, reordered, unexpected, early int64
}

// target replaces notifyd and its providers. It accepts every request and records its messages in
// the ledgers. It also makes errors and counts them.
type target struct {
	ledgers [2]*simulator.Ledger
	// rounds is the number of batches after which each user of a step has got one message. Then as
	// many batches go to the same users again.
	rounds int64

	mu   sync.Mutex
	done injected
	old  []string // ring of ids that the target delivers again later
	next int      // index in the field old of the id that was exchanged last
}

// Send implements load.Target.
func (t *target) Send(_ context.Context, r *load.Request) (load.Ack, error) {
	var wrong injected
	var ack load.Ack
	var err error
	if r.Step.Target == load.Fanout {
		ack = t.fanout(r, &wrong)
	} else {
		ack, err = t.batch(r, &wrong)
	}
	wrong.accepted += int64(r.Size)
	t.mu.Lock()
	defer t.mu.Unlock()
	d := &t.done
	d.accepted += wrong.accepted
	d.lost += wrong.lost
	d.duplicated += wrong.duplicated
	d.reordered += wrong.reordered
	d.unexpected += wrong.unexpected
	d.early += wrong.early
	return ack, err
}

// fanout delivers a fan-out to one of the ledgers. Every hundredth fan-out is split: one ledger
// gets the first half of the receivers, and the other ledger gets the second half.
func (t *target) fanout(r *load.Request, wrong *injected) load.Ack {
	b := notify.NewBase(time.Now())
	prefix := append([]byte(notify.ID{Base: b}.String()), '-')
	one := simulator.Receiver{Provider: simulator.APNs, Outcome: simulator.Accepted, Address: "device", At: time.Now()}
	began := one.At
	take := func(l *simulator.Ledger, i int) {
		one.At = began.Add(time.Duration(i) * 2 * time.Microsecond)
		one.ID = string(strconv.AppendInt(prefix, int64(i), 10))
		l.Count(&one)
	}
	shard, split := int(r.N%2), r.N%100 == 50
	for i := range r.Size {
		l := t.ledgers[shard]
		if split && i >= r.Size/2 {
			l = t.ledgers[1-shard]
		}
		switch {
		case i == 17 && r.N%3 == 0:
			wrong.lost++
			continue
		case i == 64 && split: // both ledgers get this receiver
			take(t.ledgers[1-shard], i)
			wrong.duplicated++
		}
		take(l, i)
		if i == 6400 && r.N%2 == 0 {
			take(l, i)
			wrong.duplicated++
		}
	}
	if r.N%4 == 0 && r.Size > 99 { // deliver again an id that the method exchange kept much earlier
		one.ID = string(strconv.AppendInt(prefix, 99, 10))
		if again := t.exchange(one.ID); again != "" {
			one.ID = again
			t.ledgers[0].Count(&one)
			wrong.duplicated++
		}
	}
	return load.Ack{Accepted: r.Size, Base: b, Count: r.Size}
}

// exchange puts id into the ring. If the ring is full, it replaces and returns the id that was put
// into it keepFor calls before. Otherwise it returns "".
func (t *target) exchange(id string) (old string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.old) < keepFor {
		t.old = append(t.old, id)
		return ""
	}
	t.next = (t.next + 1) % keepFor
	old, t.old[t.next] = t.old[t.next], id
	return old
}

// batch delivers single messages. All messages of a user go to the same ledger. Their sequence
// numbers increase, except for the errors that batch makes.
func (t *target) batch(r *load.Request, wrong *injected) (load.Ack, error) {
	items := notify.NewBase(time.Now()).Items()
	l := t.ledgers[r.N%t.rounds%2]
	one := simulator.Receiver{Provider: simulator.FCM, Outcome: simulator.Accepted, Address: "device"}
	ack := load.Ack{Accepted: r.Size, IDs: make([]string, 0, r.Size)}
	user := make([]byte, 0, 32)
	due, scheduled, err := dueOf(r.Body)
	if err != nil {
		return ack, err
	}
	for i := range r.Size {
		id := notify.ID{Base: items.Item(i)}.String()
		ack.IDs = append(ack.IDs, id)
		one.ID, one.At = id, time.Now()
		one.User = string(strconv.AppendInt(append(user[:0], r.Step.Name...), r.N%t.rounds*batchSize+int64(i), 10))
		one.Seq = uint64(r.N/t.rounds) + 2
		if scheduled {
			one.At = due.Add(3 * time.Millisecond)
		}
		switch {
		case i == 5:
			wrong.lost++
			continue
		case i == 6 && scheduled:
			one.At = due.Add(-20 * time.Millisecond)
			wrong.early++
		case i == 7 && r.N >= t.rounds: // 1 is lower than the user's latest sequence number
			one.Seq = 1
			wrong.reordered++
		}
		l.Count(&one)
		if i == 8 {
			l.Count(&one)
			wrong.duplicated++
		}
		if i == 9 && r.N%3 == 0 { // the other ledger also gets the message
			t.ledgers[1-r.N%t.rounds%2].Count(&one)
			wrong.duplicated++
		}
	}
	if r.N%10 == 0 { // an id that was never accepted
		one.ID, one.User = notify.ID{Base: items.Item(r.Size)}.String(), ""
		l.Count(&one)
		wrong.unexpected++
	}
	return ack, nil
}

// dueOf returns the due time in a request body. The result scheduled is false if the body has no
// due time.
func dueOf(body []byte) (due time.Time, scheduled bool, err error) {
	_, rest, ok := bytes.Cut(body, []byte(`"scheduled_at":"`))
	if !ok {
		return due, false, nil
	}
	text, _, _ := bytes.Cut(rest, []byte{'"'})
	due, err = time.Parse(time.RFC3339Nano, string(text))
	return due, true, err
}
