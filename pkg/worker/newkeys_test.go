package worker

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// readRows counts the outcome rows that workers read.
type readRows struct {
	engine.Status
	n atomic.Int64
}

func (r *readRows) Resume(ctx context.Context, t engine.Tenure, keys []notify.RowKey) ([]notify.Row, error) {
	r.n.Add(int64(len(keys)))
	return r.Status.Resume(ctx, t, keys)
}

// readingPlant returns a plant and the rows that its workers read.
func readingPlant(t *testing.T, lane notify.Lane) (*plant, *readRows) {
	var reads *readRows
	p := newPlant(t, lane, func(c *Config) {
		reads = &readRows{Status: c.Status}
		c.Status = reads
	})
	return p, reads
}

// once fails unless each envelope's one receiver was sent to once.
func once(t *testing.T, p *plant, envs []notify.Envelope) {
	t.Helper()
	for i := range envs {
		if n, again := p.prov.took(envs[i].ID(0)); n != 1 || again != 0 {
			t.Errorf("%s was taken %d times, and %d times again", envs[i].ID(0), n, again)
		}
		if s := p.state(&envs[i], 0).State; s != notify.Delivered {
			t.Errorf("%s is %v", envs[i].ID(0), s)
		}
	}
}

func someSingles(p *plant, n int) (envs []notify.Envelope) {
	for i := range n {
		envs = append(envs, p.envelope(notify.Transactional, name(i)))
	}
	return envs
}

// A row is not read if it certainly does not exist. A repeated request is found by its row.
func TestNewIsNotRead(t *testing.T) {
	for name, lane := range map[string]notify.Lane{"push": pushLane, "sms": smsLane} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				p, reads := readingPlant(t, lane)
				early := someSingles(p, 10)
				p.send(early...)
				pass(clockMargin + time.Second)
				if n := reads.n.Load(); n != 10 {
					t.Errorf("%d rows were read of what was made as the partition came, want 10", n)
				}
				late := someSingles(p, 10)
				p.send(late...)
				pass(time.Second)
				if n := reads.n.Load(); n != 10 {
					t.Errorf("%d rows were read of what is surely new", n-10)
				}
				p.send(late...)
				pass(time.Second)
				if n := reads.n.Load(); n != 20 {
					t.Errorf("%d rows were read of 10 requests that were repeated", n-10)
				}
				once(t, p, append(early, late...))
			})
		})
	}
}

// A request that the previous owner has finished is not sent again if it is repeated and its second
// record is appended after the assignment. Producers and callers do repeat requests.
func TestRepeatedAfterTakeOver(t *testing.T) {
	in(t, func(t *testing.T) {
		p, _ := readingPlant(t, pushLane)
		pass(time.Minute)
		envs := someSingles(p, 10)
		p.send(envs...)
		pass(time.Second)
		p.crash()
		p.start()
		pass(time.Minute)
		p.send(envs...)
		pass(time.Minute)
		once(t, p, envs)
	})
}

// The clock of the process that accepted the requests is ahead of all others. So requests that
// the previous owner has claimed seem to be made after the assignment. The time of their record
// shows that they were not.
func TestClaimedUnderAFastClock(t *testing.T) {
	in(t, func(t *testing.T) {
		p, _ := readingPlant(t, pushLane)
		p.prov.set(time.Hour, nil)
		envs := someSingles(p, 10)
		for i := range envs {
			envs[i].Chunk.Base = notify.NewBase(time.Now().Add(20 * time.Second))
		}
		p.send(envs...)
		pass(time.Second)
		p.crash()
		p.idle = 30 * time.Second
		p.prov.set(0, nil)
		p.start()
		pass(time.Minute)
		for i := range envs {
			resent := 0
			for _, row := range p.rows(&envs[i]) {
				resent += int(row.Resent)
			}
			if _, again := p.prov.took(envs[i].ID(0)); again != 1 || resent != 1 {
				t.Errorf("%s was sent again %d times, and its row admits %d", envs[i].ID(0), again, resent)
			}
		}
	})
}

// Retries and replays may come through other topics: their rows are always read.
func TestDerivedIsRead(t *testing.T) {
	in(t, func(t *testing.T) {
		p, reads := readingPlant(t, pushLane)
		pass(time.Minute)
		e := p.envelope(notify.Transactional, "ann")
		for _, change := range []func(e *notify.Envelope){
			func(e *notify.Envelope) { e.Deferrals = 1 },
			func(e *notify.Envelope) { e.Epoch = 1 },
			func(e *notify.Envelope) { // scheduled
				e.Chunk.Base, e.NotBefore = notify.NewBase(time.Now()), time.Now().UnixMilli()
			},
			func(e *notify.Envelope) { e.Chunk.Partition = 7 }, // of another partition
		} {
			d := e
			change(&d)
			before := reads.n.Load()
			p.send(d)
			pass(time.Second)
			if n := reads.n.Load() - before; n != 1 {
				t.Errorf("%+v: %d rows were read", d.Key(), n)
			}
		}
		before := reads.n.Load()
		p.log.add(log.Record{Topic: pushLane.DLQTopic(), Value: notify.AppendEnvelope(nil, &e)})
		pass(time.Second)
		if n := reads.n.Load() - before; n != 1 {
			t.Errorf("an original among the retries: %d rows were read", n)
		}
	})
}

func TestNewKeys(t *testing.T) {
	began := time.UnixMilli(1_700_000_000_000)
	made := func(after time.Duration) *notify.Chunk {
		return &notify.Chunk{Base: notify.NewBase(began.Add(after))}
	}
	meet := func(n *newKeys, c *notify.Chunk, after bool, now, held time.Duration) bool {
		return n.noteIsNew(c, after, began.Add(now), held)
	}
	minute := time.Minute
	for name, is := range map[string]struct {
		made      time.Duration // since the begin
		after     bool
		now, held time.Duration
		want      bool
	}{
		"new":                        {minute, true, minute, minute, true},
		"appended before":            {minute, false, minute, minute, false},
		"made before":                {-time.Second, true, minute, minute, false},
		"made within the margin":     {clockMargin, true, minute, minute, false},
		"made just after it":         {clockMargin + time.Millisecond, true, minute, minute, true},
		"made just now by a clock":   {minute + clockAhead, true, minute, minute, true},
		"from the future":            {minute + clockAhead + time.Millisecond, true, minute, minute, false},
		"made before, clock set on":  {minute, true, 10 * minute, minute, false},
		"made after, clock set on":   {9*minute + clockMargin + time.Millisecond, true, 10 * minute, minute, true},
		"made after, clock set back": {minute, true, minute, 10 * minute, true},
	} {
		n := &newKeys{began: began}
		c := made(is.made)
		if got := meet(n, c, is.after, is.now, is.held); got != is.want {
			t.Errorf("%s: %v, want %v", name, got, is.want)
		}
		if meet(n, c, true, time.Hour, time.Hour) {
			t.Errorf("%s: it is new when it is met again", name)
		}
	}

	// A key that was dropped from the sets does not count as new.
	n := &newKeys{began: began}
	first, wrong := made(minute), 0
	meet(n, first, true, minute, minute)
	for i := range 3 * keySetSize {
		at := minute + time.Duration(i)*time.Millisecond
		if !meet(n, made(at), true, at, at) {
			wrong++
		}
	}
	if meet(n, first, true, time.Hour, time.Hour) {
		t.Error("a key that was forgotten is new")
	}
	if len(n.older.bits) == 0 || n.newer.count > keySetSize {
		t.Errorf("%d keys in the newer set", n.newer.count)
	}
	if wrong > keySetSize/100 {
		t.Errorf("%d of %d keys were taken for met", wrong, 3*keySetSize)
	}
	// This also applies to a request whose time was in the future when its key was added.
	ahead := made(24 * time.Hour)
	n = &newKeys{began: began}
	meet(n, ahead, true, minute, minute)
	for i := range 3 * keySetSize {
		at := minute + time.Duration(i)*time.Millisecond
		meet(n, made(at), true, at, at)
	}
	if meet(n, ahead, true, 25*time.Hour, 25*time.Hour) {
		t.Error("a key from the future that was forgotten is new")
	}
}

func BenchmarkNewKeys(b *testing.B) {
	n := &newKeys{began: time.Now().Add(-time.Hour)}
	c := notify.Chunk{Base: notify.NewBase(time.Now())}
	for b.Loop() {
		c.Block++
		n.noteIsNew(&c, true, time.Now(), time.Hour)
	}
}
