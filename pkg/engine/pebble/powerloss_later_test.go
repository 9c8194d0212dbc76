package pebble

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// laterWriters are the writers of scheduled notifications, triggers and queues.
func laterWriters() map[string]writer {
	var queue drained
	return map[string]writer{
		"schedule": func(ctx context.Context, s *Store, p *promises, n int) error {
			x := engine.Schedule{Base: testRow(n, 0).Key.Chunk.Base, Caller: "shop", FireAt: int64(n)}
			x.Base[0] = 1 // no base is zero
			if err := s.Schedules().Put(ctx, []engine.Schedule{x}); err != nil {
				return err
			}
			p.add("schedule", func(s *Store) error {
				_, ok, err := s.Schedules().Get(ctx, x.Base)
				listed, lerr := s.Schedules().List(ctx, "shop", bases(x.Base, 1), 1)
				return found(ok && len(listed) == 1 && listed[0].Base == x.Base, errors.Join(err, lerr))
			})
			part := engine.TimerPartition{Bucket: int64(n), Shard: 7}
			if err := s.Schedules().Hint(ctx, []engine.Hint{{Partition: part, Base: x.Base}}); err != nil {
				return err
			}
			p.add("hint", func(s *Store) error {
				hs, err := s.Schedules().Hints(ctx, part)
				return found(slices.Contains(hs, x.Base), err)
			})
			h, _, err := s.Schedules().Swap(ctx, 0, engine.ScheduleHead{Base: x.Base, State: engine.SchedulePending, FireAt: int64(n) + 9})
			if err != nil {
				return err
			}
			h.State = engine.ScheduleCancelled
			if _, _, err = s.Schedules().Swap(ctx, 1, h); err != nil {
				return err
			}
			p.add("head", func(s *Store) error {
				got, _, err := s.Schedules().Head(ctx, x.Base)
				return found(got.State == engine.ScheduleCancelled && got.Version == 2, err)
			})
			return nil
		},
		"purge": func(ctx context.Context, s *Store, p *promises, n int) error {
			// Far away from the others' times and bases: all of it is purged at once.
			x := engine.Schedule{Base: testRow(n, 0).Key.Chunk.Base, Caller: "gone", FireAt: -1}
			x.Base[0] = 2
			if err := s.Schedules().Put(ctx, []engine.Schedule{x}); err != nil {
				return err
			}
			row := engine.Trigger{ID: "trg_gone" + strconv.Itoa(n), State: engine.TriggerFired, Ended: -1}
			if _, err := s.Triggers().Create(ctx, []engine.Trigger{row}); err != nil {
				return err
			}
			_, serr := s.Schedules().Purge(ctx, 0, math.MaxInt)
			_, terr := s.Triggers().Purge(ctx, 0, math.MaxInt)
			if err := errors.Join(serr, terr); err != nil {
				return err
			}
			p.add("purged", func(s *Store) error {
				_, ok, err := s.Schedules().Get(ctx, x.Base)
				got, terr := s.Triggers().Get(ctx, []string{row.ID})
				return found(!ok && terr == nil && got[0].ID == "", errors.Join(err, terr))
			})
			return nil
		},
		"scheduled": func(ctx context.Context, s *Store, p *promises, n int) error {
			x := engine.Schedule{Base: testRow(n, 0).Key.Chunk.Base, FireAt: int64(n)}
			x.Base[0] = 3
			minute := int64(n + 1<<20) // none of the other timers'
			err := s.Schedules().PutScheduled(ctx, []engine.Schedule{x}, notify.SpreadOver(1), []engine.Timer{{FireAt: minute * engine.MinuteMs, ID: []byte("scheduled"), Payload: make([]byte, 300)}})
			if err == nil {
				p.add("schedule and timer", func(s *Store) error {
					_, ok, err := s.Schedules().Get(ctx, x.Base)
					ts, terr := s.Timers().Scan(ctx, engine.TimerPartition{Bucket: minute}, engine.TimerCursor{}, math.MaxInt64, 10)
					return found(ok && len(ts) == 1, errors.Join(err, terr))
				})
			}
			return err
		},
		"cold": func(ctx context.Context, s *Store, p *promises, n int) error {
			if err := s.ColdTimers().Put(ctx, notify.SpreadOver(1), []engine.Timer{{FireAt: int64(n) * engine.DayMs, ID: []byte("c"), Payload: make([]byte, 300)}}); err != nil {
				return err
			}
			if n%2 == 0 {
				p.add("cold timer", func(s *Store) error {
					got, err := s.ColdTimers().Scan(ctx, engine.TimerPartition{Bucket: int64(n)}, engine.TimerCursor{}, math.MaxInt64, 10)
					return found(len(got) == 1, err)
				})
				return nil
			}
			err := s.ColdTimers().Drop(ctx, engine.TimerPartition{Bucket: int64(n)})
			if err == nil {
				p.add("dropped day", func(s *Store) error {
					got, err := s.ColdTimers().Scan(ctx, engine.TimerPartition{Bucket: int64(n)}, engine.TimerCursor{}, math.MaxInt64, 10)
					return found(len(got) == 0, err)
				})
			}
			return err
		},
		"trigger": func(ctx context.Context, s *Store, p *promises, n int) error {
			rows := make([]engine.Trigger, 3)
			for i := range rows {
				rows[i] = engine.Trigger{ID: "trg_" + strconv.Itoa(1_000_000+3*n+i), Caller: "shop", State: engine.TriggerPending, Payload: make([]byte, 300)}
			}
			if _, err := s.Triggers().Create(ctx, rows); err != nil {
				return err
			}
			p.add("triggers", func(s *Store) error { return listed(ctx, s, rows, 1, 0) })
			for v, state := range []engine.TriggerState{engine.TriggerInFlight, engine.TriggerFired} {
				ss := make([]engine.TriggerSwap, len(rows))
				for i := range rows {
					rows[i].State, rows[i].Ended = state, int64(n)*int64(v) // in flight: 0
					ss[i] = engine.TriggerSwap{Old: uint64(v) + 1, New: rows[i]}
				}
				if _, err := s.Triggers().Swap(ctx, ss); err != nil {
					return err
				}
				p.add("swapped triggers", func(s *Store) error { return listed(ctx, s, rows, uint64(v)+2, state) })
			}
			return nil
		},
		"queue": func(ctx context.Context, s *Store, p *promises, n int) error {
			q := s.Queue("power", powerReceives)
			now, later := strconv.Itoa(n), "later "+strconv.Itoa(n)
			if err := q.Enqueue(ctx, []engine.Message{{Body: []byte(now)}, {Body: []byte(later), Delay: engine.MaxQueueDelay}}); err != nil {
				return err
			}
			if n%3 > 0 { // the others are acknowledged
				p.add("message", func(s *Store) error { return found(queue.has(s, now)) })
			}
			p.add("delayed message", func(s *Store) error { return queue.received(s, later, 0, true) })
			ds, err := q.Receive(ctx, 1, time.Hour)
			if err != nil || len(ds) != 1 || string(ds[0].Body) != now {
				return errors.Join(err, errMissing)
			}
			switch n % 3 {
			case 0:
				if err := q.Ack(ctx, []string{ds[0].Receipt}); err != nil {
					return err
				}
				// If a later write is durable, so is the acknowledgement before it.
				if err := s.Meta().PutMeta(ctx, "behind an ack", nil); err != nil {
					return err
				}
				p.add("acknowledgement", func(s *Store) error {
					has, err := queue.has(s, now)
					return found(!has, err)
				})
			case 1:
				p.add("receive", func(s *Store) error { return queue.received(s, now, 1, false) })
			case 2:
				if err := q.Release(ctx, ds[0].Receipt, engine.MaxQueueDelay); err != nil {
					return err
				}
				p.add("release", func(s *Store) error { return queue.received(s, now, 1, true) })
			}
			return nil
		},
	}
}

// bases returns a base that is by more than b.
func bases(b notify.Base, by byte) notify.Base {
	b[15] += by
	return b
}

// listed looks for triggers and, if state is not 0, in the list of that state.
func listed(ctx context.Context, s *Store, rows []engine.Trigger, version uint64, state engine.TriggerState) error {
	for i := range rows {
		got, err := s.Triggers().Get(ctx, []string{rows[i].ID})
		if err := found(err == nil && got[0].Version >= version, err); err != nil {
			return err
		}
		in, err := s.Triggers().List(ctx, "shop", got[0].State, engine.TriggerCursor{ID: rows[i].ID + "!"}, 1)
		if err := found(len(in) == 1 && in[0].ID == rows[i].ID, err); err != nil {
			return err
		}
		if state == engine.TriggerFired {
			if err := found(got[0].State == state, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// drained holds the messages that the queue of a store had when it was first read.
type drained struct {
	of       *Store
	bodies   map[string]bool
	receives map[string]int // before, of those that could be received
}

// look receives all ready messages of a store, once for each store. It is called for one
// store after the other.
func (d *drained) look(s *Store) error {
	if d.of == s {
		return nil
	}
	*d = drained{s, map[string]bool{}, map[string]int{}}
	ctx, q := context.Background(), s.Queue("power", powerReceives)
	if err := s.QueueBodies(ctx, "power", func(body []byte) error { d.bodies[string(body)] = true; return nil }); err != nil {
		return err
	}
	time.Sleep(2 * time.Millisecond) // times are rounded up
	for {
		depth, err := q.Depth(ctx)
		if err != nil || depth.Ready == 0 {
			return err
		}
		ds, err := q.Receive(ctx, depth.Ready, time.Hour)
		if err != nil {
			return err
		}
		for _, m := range ds {
			d.receives[string(m.Body)] = m.Receives - 1
		}
	}
}

// has reports whether a store has a message.
func (d *drained) has(s *Store, body string) (bool, error) {
	err := d.look(s)
	return d.bodies[body], err
}

// received checks for a message that was received at least n times, or that is delayed.
func (d *drained) received(s *Store, body string, receives int, delayed bool) error {
	err := d.look(s)
	got, ready := d.receives[body]
	return found(d.bodies[body] && (delayed && !ready || !delayed && ready && got >= receives), err)
}

// powerReceives is a limit at which a queue writes each receive.
const powerReceives = 99
