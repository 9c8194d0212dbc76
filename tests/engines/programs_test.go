package engines

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// TestSameAnswers checks that the memory engine, Pebble and the servers give the same answer to
// each operation of a random program.
func TestSameAnswers(t *testing.T) {
	stores := []side{inMemory, inPebble, onCassandra}
	shared := []side{inMemory, inPebble, onRedis}
	compare(t, "status", statusProgram, stores...)
	compare(t, "timers", timersProgram, stores...)
	compare(t, "cold timers", coldProgram, stores...)
	compare(t, "schedules", schedulesProgram, stores...)
	compare(t, "triggers", triggersProgram, stores...)
	compare(t, "dead letters", lettersProgram, stores...)
	compare(t, "jobs", jobsProgram, stores...)
	compare(t, "audit", auditProgram, stores...)
	compare(t, "campaigns", campaignsProgram, stores...)
	compare(t, "cancels", cancelsProgram, stores...)
	compare(t, "holds", holdsProgram, stores...)
	compare(t, "meta", metaProgram, append(stores, onPostgres)...)
	compare(t, "preferences", prefsProgram, inMemory, inPebble, onPostgres)
	compare(t, "callers", callersProgram, inMemory, inPebble, onPostgres)
	compare(t, "idempotency", idemProgram, shared...)
	compare(t, "queue", queueProgram, shared...)
	compare(t, "leases", leaseProgram, inMemory, onRedis)
	compare(t, "heartbeats", beatsProgram, inMemory, onRedis)
	compare(t, "limits", limitsProgram, inMemory, onRedis)
}

func statusProgram(t *rapid.T, n int) []step {
	key := func(t *rapid.T) notify.RowKey {
		return notify.RowKey{
			Chunk:   notify.Chunk{Base: base(n, draw(t, "base", 2)), Partition: uint16(draw(t, "partition", 1)), Block: uint32(draw(t, "block", 1))},
			Attempt: uint16(draw(t, "attempt", 1)), First: uint32(draw(t, "first", 1)),
		}
	}
	row := func(t *rapid.T) notify.Row {
		r := notify.Row{
			Key: key(t), Count: uint32(draw(t, "count", 5) + 1), Caller: "shop", Channel: notify.Push, Category: notify.OTP, Topic: "notifications-push",
			Accepted: place(-n), Updated: place(-n) + int64(draw(t, "updated", 9)), Offset: int64(draw(t, "offset", 99)), Digest: uint64(draw(t, "digest", 9)),
		}
		r.Default.State, r.Done = notify.Sent, rapid.Bool().Draw(t, "done")
		r.DoneUpTo = r.Count
		if rapid.Bool().Draw(t, "exception") {
			r.Exceptions = []notify.Exception{{Pos: 0, State: notify.Failed, Code: "gone", Provider: "apns"}}
		}
		return r
	}
	show := func(r notify.Row) string { return fmt.Sprintf("%+v", r) }
	return steps(t, 12,
		func(t *rapid.T) step {
			rows := make([]notify.Row, draw(t, "rows", 3)+1)
			for i := range rows {
				rows[i] = row(t)
			}
			return step{"put " + names(rows, show), func(ctx context.Context, e *engines, _ *known) (string, error) { return "", e.status.Put(ctx, rows) }}
		},
		func(t *rapid.T) step {
			keys := []notify.RowKey{key(t), key(t)}
			return step{fmt.Sprintf("get %v", keys), func(ctx context.Context, e *engines, _ *known) (string, error) {
				rows, err := e.status.Get(ctx, keys)
				return names(rows, show), err
			}}
		},
		func(t *rapid.T) step {
			c := key(t).Chunk
			return step{fmt.Sprintf("chunk %v", c), func(ctx context.Context, e *engines, _ *known) (string, error) {
				rows, err := e.status.Chunk(ctx, c)
				return names(rows, show), err
			}}
		},
		func(t *rapid.T) step {
			b := key(t).Chunk.Base
			return step{"request " + b.String(), func(ctx context.Context, e *engines, _ *known) (string, error) {
				var all []string
				err := e.status.Request(ctx, b, func(r *notify.Row) error { all = append(all, show(*r)); return nil })
				return strings.Join(all, " "), err
			}}
		},
		func(*rapid.T) step {
			return step{"scan", func(ctx context.Context, e *engines, _ *known) (string, error) {
				var all []string
				err := e.status.Scan(ctx, place(-n), place(-n)+1000, func(r *notify.Row) error { all = append(all, show(*r)); return nil })
				return strings.Join(all, " "), err
			}}
		})
}

const shards = 2

var overShards = notify.SpreadOver(shards)

func timer(t *rapid.T, at func(*rapid.T) int64) engine.Timer {
	id := draw(t, "id", 4)
	return engine.Timer{FireAt: at(t), ID: []byte(fmt.Sprint("timer-", id)), Kind: 1, Target: "topic", Payload: []byte(fmt.Sprint(id)), Weight: 1}
}

func showTimers(ts []engine.Timer) string {
	return names(ts, func(t engine.Timer) string { return fmt.Sprintf("%d/%s=%s", t.FireAt, t.ID, t.Payload) })
}

func timersProgram(t *rapid.T, n int) []step {
	at := func(t *rapid.T) int64 { return place(n) + int64(draw(t, "minute", 2))*60_000 + int64(draw(t, "ms", 3)) }
	shard := uint16(100 + n%60_000) // the shard whose owner row this program changes
	gone := map[engine.TimerPartition]bool{}
	return steps(t, 14,
		func(t *rapid.T) step {
			var ts []engine.Timer
			for range draw(t, "timers", 3) + 1 {
				one := timer(t, at)
				// Do not add a timer to a minute that was dropped. notifyd never does this.
				if !gone[engine.TimerPartition{Bucket: one.FireAt / 60_000, Shard: engine.ShardOf(one.ID, overShards)}] {
					ts = append(ts, one)
				}
			}
			return step{"put " + showTimers(ts), func(ctx context.Context, e *engines, _ *known) (string, error) {
				return "", e.timers.Put(ctx, overShards, ts)
			}}
		},
		func(t *rapid.T) step {
			p := engine.TimerPartition{Bucket: at(t) / 60_000, Shard: uint16(draw(t, "shard", shards-1))}
			until, most := at(t), draw(t, "max", 3)+1
			return step{fmt.Sprint("scan ", p, until, most), func(ctx context.Context, e *engines, _ *known) (string, error) {
				ts, err := e.timers.Scan(ctx, p, engine.TimerCursor{}, until, most)
				if err == nil && len(ts) > 0 { // scan again, after the last timer
					last := ts[len(ts)-1]
					var more []engine.Timer
					more, err = e.timers.Scan(ctx, p, engine.TimerCursor{FireAt: last.FireAt, ID: last.ID}, until, 100)
					ts = append(ts, more...)
				}
				return showTimers(ts), err
			}}
		},
		func(t *rapid.T) step {
			s := uint16(draw(t, "shard", shards-1))
			return step{fmt.Sprint("minutes ", s), func(ctx context.Context, e *engines, _ *known) (string, error) {
				ms, err := e.timers.Buckets(ctx, s, place(n)/60_000, place(n)/60_000+10)
				var held []int64 // minutes that have timers; Buckets may also return empty minutes
				for _, m := range ms {
					ts, serr := e.timers.Scan(ctx, engine.TimerPartition{Bucket: m, Shard: s}, engine.TimerCursor{}, (m+1)*60_000, 1)
					if serr != nil {
						return "", serr
					}
					if len(ts) > 0 {
						held = append(held, m)
					}
				}
				return fmt.Sprint(held), err
			}}
		},
		func(t *rapid.T) step {
			p := engine.TimerPartition{Bucket: at(t) / 60_000, Shard: uint16(draw(t, "shard", shards-1))}
			gone[p] = true
			return step{fmt.Sprint("drop ", p), func(ctx context.Context, e *engines, _ *known) (string, error) {
				return "", e.timers.Drop(ctx, p)
			}}
		},
		func(t *rapid.T) step {
			term, owner := uint64(draw(t, "term", 2)), fmt.Sprint("owner-", draw(t, "owner", 1))
			return step{fmt.Sprint("take over at ", term, " by ", owner), func(ctx context.Context, e *engines, _ *known) (string, error) {
				s, err := e.timers.TakeOver(ctx, shard, term, owner)
				if err != nil {
					return "", err
				}
				return fmt.Sprintf("%+v", s), nil
			}}
		},
		func(t *rapid.T) step {
			s := engine.ShardState{Term: uint64(draw(t, "term", 3)), Closed: int64(draw(t, "closed", 9)), Watermark: int64(draw(t, "watermark", 9))}
			return step{fmt.Sprintf("advance %+v", s), func(ctx context.Context, e *engines, _ *known) (string, error) {
				return "", e.timers.Advance(ctx, shard, s)
			}}
		},
		func(*rapid.T) step {
			return step{"shard", func(ctx context.Context, e *engines, _ *known) (string, error) {
				s, err := e.timers.Shard(ctx, shard)
				return fmt.Sprintf("%+v", s), err
			}}
		})
}

func coldProgram(t *rapid.T, n int) []step {
	first := place(0)/86_400_000 + 40 + int64(n%500)*3
	at := func(t *rapid.T) int64 { return (first+int64(draw(t, "day", 1)))*86_400_000 + int64(draw(t, "ms", 3)) }
	gone := map[string]bool{}
	where := func(day int64, shard uint16) string { return fmt.Sprint(day, "/", shard) }
	return steps(t, 12,
		func(t *rapid.T) step {
			var ts []engine.Timer
			for range draw(t, "timers", 2) + 1 {
				if one := timer(t, at); !gone[where(one.FireAt/86_400_000, engine.ShardOf(one.ID, overShards))] {
					ts = append(ts, one)
				}
			}
			return step{"put " + showTimers(ts), func(ctx context.Context, e *engines, _ *known) (string, error) {
				return "", e.cold.Put(ctx, overShards, ts)
			}}
		},
		func(t *rapid.T) step {
			s, day, most := uint16(draw(t, "shard", 1)), at(t)/86_400_000, draw(t, "max", 3)+1
			return step{fmt.Sprint("scan ", s, day, most), func(ctx context.Context, e *engines, _ *known) (string, error) {
				ts, err := e.cold.Scan(ctx, engine.TimerPartition{Bucket: day, Shard: s}, engine.TimerCursor{}, math.MaxInt64, most)
				return showTimers(ts), err
			}}
		},
		func(t *rapid.T) step {
			s := uint16(draw(t, "shard", 1))
			return step{fmt.Sprint("days ", s), func(ctx context.Context, e *engines, _ *known) (string, error) {
				days, err := e.cold.Buckets(ctx, s, 0, first+2)
				return fmt.Sprint(slices.DeleteFunc(days, func(d int64) bool { return d < first })), err
			}}
		},
		func(t *rapid.T) step {
			s, day := uint16(draw(t, "shard", 1)), at(t)/86_400_000
			gone[where(day, s)] = true
			return step{fmt.Sprint("drop ", s, day), func(ctx context.Context, e *engines, _ *known) (string, error) {
				return "", e.cold.Drop(ctx, engine.TimerPartition{Bucket: day, Shard: s})
			}}
		})
}

func schedulesProgram(t *rapid.T, n int) []step {
	caller := fmt.Sprint("caller-", n)
	one := func(t *rapid.T) engine.Schedule {
		i := draw(t, "base", 3)
		return engine.Schedule{Base: base(n, i), Caller: caller, User: fmt.Sprint("user-", i), Channel: notify.Push, FireAt: place(n) + int64(i), Created: place(-n), Receivers: 1, Accepted: 1}
	}
	show := func(s engine.Schedule) string { return fmt.Sprintf("%s/%s/%d", s.Base, s.User, s.FireAt) }
	return steps(t, 14,
		func(t *rapid.T) step {
			ss := []engine.Schedule{one(t), one(t)}
			return step{"put " + names(ss, show), func(ctx context.Context, e *engines, _ *known) (string, error) {
				return "", e.schedules.Put(ctx, ss)
			}}
		},
		func(t *rapid.T) step {
			b := one(t).Base
			return step{"get " + b.String(), func(ctx context.Context, e *engines, _ *known) (string, error) {
				s, ok, err := e.schedules.Get(ctx, b)
				return fmt.Sprint(show(s), ok), err
			}}
		},
		func(t *rapid.T) step {
			most, after := draw(t, "max", 2)+1, notify.Base{}
			if rapid.Bool().Draw(t, "behind one") {
				after = one(t).Base
			}
			return step{fmt.Sprint("list ", most, " after ", after), func(ctx context.Context, e *engines, _ *known) (string, error) {
				ss, err := e.schedules.List(ctx, caller, after, most)
				return names(ss, show), err
			}}
		},
		func(t *rapid.T) step {
			most := draw(t, "max", 2) + 1
			return step{fmt.Sprint("list all callers, ", most, " a page"), func(ctx context.Context, e *engines, _ *known) (string, error) {
				var ours []string
				for after := (notify.Base{}); ; {
					ss, err := e.schedules.List(ctx, "", after, most+50)
					if err != nil {
						return "", err
					}
					for _, s := range ss {
						if after = s.Base; s.Caller == caller {
							ours = append(ours, show(s))
						}
					}
					if len(ss) < most+50 {
						return fmt.Sprint(ours), nil
					}
				}
			}}
		},
		func(t *rapid.T) step {
			h := engine.Hint{Partition: engine.TimerPartition{Bucket: place(n)/60_000 + int64(draw(t, "minute", 1)), Shard: 1}, Base: one(t).Base}
			return step{fmt.Sprint("hint ", h), func(ctx context.Context, e *engines, _ *known) (string, error) {
				if err := e.schedules.Hint(ctx, []engine.Hint{h}); err != nil {
					return "", err
				}
				bs, err := e.schedules.Hints(ctx, h.Partition)
				return fmt.Sprint(sorted(strings.Fields(names(bs, notify.Base.String)))), err
			}}
		},
		func(t *rapid.T) step {
			old, b := uint64(draw(t, "old", 2)), one(t).Base
			h := engine.ScheduleHead{Base: b, State: engine.ScheduleState(draw(t, "state", 2) + 1), Gen: uint32(draw(t, "generation", 3)), FireAt: place(n) + int64(draw(t, "fire", 5)), At: place(-n)}
			return step{fmt.Sprintf("swap %d for %+v", old, h), func(ctx context.Context, e *engines, _ *known) (string, error) {
				stored, won, err := e.schedules.Swap(ctx, old, h)
				return fmt.Sprintf("%+v %v", stored, won), err
			}}
		},
		func(t *rapid.T) step {
			b := one(t).Base
			return step{"head " + b.String(), func(ctx context.Context, e *engines, _ *known) (string, error) {
				h, ok, err := e.schedules.Head(ctx, b)
				return fmt.Sprintf("%+v %v", h, ok), err
			}}
		})
}

func triggersProgram(t *rapid.T, n int) []step {
	caller := fmt.Sprint("caller-", n)
	id := func(t *rapid.T) string { return "trg_" + base(n, draw(t, "trigger", 3)).String() }
	one := func(t *rapid.T) engine.Trigger {
		return engine.Trigger{
			ID: id(t), Caller: caller, URL: "https://x.example/", Payload: []byte(fmt.Sprint(draw(t, "payload", 3))), Created: place(-n), FireAt: place(n), NextAt: place(n),
			State: engine.TriggerPending, Gen: uint32(draw(t, "generation", 2)), Reason: fmt.Sprint("why-", draw(t, "reason", 2)),
		}
	}
	show := func(t engine.Trigger) string {
		return fmt.Sprintf("%s/%s/%d/%d/v%d/%s/%d", t.ID, t.Payload, t.State, t.Gen, t.Version, t.Reason, t.Ended)
	}
	return steps(t, 14,
		func(t *rapid.T) step {
			ts := []engine.Trigger{one(t), one(t)}
			if ts[0].ID == ts[1].ID {
				ts = ts[:1]
			}
			return step{"create " + names(ts, show), func(ctx context.Context, e *engines, _ *known) (string, error) {
				won, err := e.triggers.Create(ctx, ts)
				return fmt.Sprint(won), err
			}}
		},
		func(t *rapid.T) step {
			ids := []string{id(t), id(t)}
			return step{fmt.Sprint("get ", ids), func(ctx context.Context, e *engines, _ *known) (string, error) {
				ts, err := e.triggers.Get(ctx, ids)
				return names(ts, show), err
			}}
		},
		func(t *rapid.T) step {
			s := engine.TriggerSwap{Old: uint64(draw(t, "old", 3)), New: one(t)}
			s.New.State = engine.TriggerState(draw(t, "state", 5) + 1)
			if s.New.State >= engine.TriggerFired {
				s.New.Ended = place(-n) + int64(draw(t, "ended", 3)) + 1
			}
			// A swap must not change the payload. Below, the step swaps with the stored payload; "0"
			// is only shown in its description.
			s.New.Payload = []byte("0")
			return step{fmt.Sprint("swap ", s.Old, " for ", show(s.New)), func(ctx context.Context, e *engines, _ *known) (string, error) {
				was, err := e.triggers.Get(ctx, []string{s.New.ID})
				if err != nil {
					return "", err
				}
				if was[0].State >= engine.TriggerFired {
					return "terminal: left alone", nil
				}
				now := s
				now.New.Payload = was[0].Payload
				won, err := e.triggers.Swap(ctx, []engine.TriggerSwap{now})
				return fmt.Sprint(won), err
			}}
		},
		func(t *rapid.T) step {
			state, most, after := engine.TriggerState(draw(t, "state", 3)), draw(t, "max", 3)+1, engine.TriggerCursor{}
			if rapid.Bool().Draw(t, "behind one") {
				after.ID = id(t)
			}
			return step{fmt.Sprint("list ", state, most, after), func(ctx context.Context, e *engines, _ *known) (string, error) {
				ts, err := e.triggers.List(ctx, caller, state, after, most)
				return names(ts, show), err
			}}
		},
		func(t *rapid.T) step {
			state, most := engine.TriggerState(draw(t, "state", 3)), draw(t, "max", 3)+30
			return step{fmt.Sprint("list all callers ", state, most), func(ctx context.Context, e *engines, _ *known) (string, error) {
				var ours []string
				for after := (engine.TriggerCursor{}); ; {
					ts, err := e.triggers.List(ctx, "", state, after, most)
					if err != nil {
						return "", err
					}
					for _, one := range ts {
						if after.ID = one.ID; one.Caller == caller {
							ours = append(ours, show(one))
						}
					}
					if len(ts) < most {
						return fmt.Sprint(ours), nil
					}
				}
			}}
		})
}

func lettersProgram(t *rapid.T, n int) []step {
	caller := func(t *rapid.T) string { return fmt.Sprint("caller-", n, "-", draw(t, "caller", 1)) }
	id := func(t *rapid.T) notify.ID { return notify.ID{Base: base(n, draw(t, "letter", 4))} }
	show := func(d engine.DeadLetter) string { // without Ord, which each engine chooses itself
		return fmt.Sprintf("%s/%d/#%d/%s/%s/%s/%s", d.ID, d.Epoch, d.Seq, d.Caller, d.Code, d.State, d.Job)
	}
	one := func(t *rapid.T) engine.DeadLetter {
		i := id(t)
		return engine.DeadLetter{
			ID: i, Epoch: uint16(draw(t, "epoch", 1)), Caller: fmt.Sprint("caller-", n, "-", i.Base[15]%2), Channel: "push", Category: "otp", User: "u", Class: "permanent",
			Code: fmt.Sprint("code-", draw(t, "code", 1)), State: engine.LetterDead, FirstFailed: place(-n), LastFailed: place(-n) + int64(i.Base[15]), Until: place(n + 48), Topic: "notifications-failed",
		}
	}
	return steps(t, 14,
		func(t *rapid.T) step {
			ds := []engine.DeadLetter{one(t), one(t)}
			return step{"put " + names(ds, show), func(ctx context.Context, e *engines, _ *known) (string, error) { return "", e.letters.Put(ctx, ds) }}
		},
		func(t *rapid.T) step {
			i, epoch := id(t), uint16(draw(t, "epoch", 1))
			return step{fmt.Sprint("get ", i, epoch), func(ctx context.Context, e *engines, _ *known) (string, error) {
				d, err := e.letters.Get(ctx, i, epoch)
				return show(d), err
			}}
		},
		func(t *rapid.T) step {
			c, after, most := caller(t), uint64(draw(t, "after", 3)), draw(t, "max", 3)+1
			return step{fmt.Sprint("feed ", c, after, most), func(ctx context.Context, e *engines, _ *known) (string, error) {
				ds, err := e.letters.Feed(ctx, c, after, most)
				return names(ds, show), err
			}}
		},
		func(t *rapid.T) step {
			of, byCode := caller(t), rapid.Bool().Draw(t, "by code")
			f := engine.DeadLetterFilter{Want: func(d *engine.DeadLetter) bool {
				return (of == "" || d.Caller == of) && (!byCode || d.Code == "code-1")
			}}
			most := draw(t, "max", 2) + 1
			return step{fmt.Sprintf("list %s, by code %t", of, byCode), func(ctx context.Context, e *engines, _ *known) (string, error) {
				var all []string
				var cursor []byte
				for {
					ds, next, err := e.letters.List(ctx, f, cursor, most)
					if err != nil {
						return "", err
					}
					all = append(all, names(ds, show))
					if cursor = next; cursor == nil {
						break
					}
				}
				// Remove the page boundaries, because each engine chooses them itself.
				return fmt.Sprint(strings.Fields(strings.NewReplacer("[", " ", "]", " ").Replace(strings.Join(all, " ")))), nil
			}}
		},
		func(t *rapid.T) step {
			m := engine.LetterMove{ID: id(t), Epoch: uint16(draw(t, "epoch", 1)), From: engine.LetterDead, To: engine.LetterReplayed, Job: fmt.Sprint("job-", draw(t, "job", 1))}
			if rapid.Bool().Draw(t, "back") {
				m.From, m.To, m.FromJob, m.Job = m.To, m.From, m.Job, ""
			}
			return step{fmt.Sprintf("move %+v", m), func(ctx context.Context, e *engines, _ *known) (string, error) {
				moved, err := e.letters.Move(ctx, []engine.LetterMove{m, m})
				return fmt.Sprint(moved), err
			}}
		},
		func(*rapid.T) step {
			return step{"walk", func(ctx context.Context, e *engines, _ *known) (string, error) {
				last, err := e.letters.Last(ctx)
				if err != nil {
					return "", err
				}
				var all []string
				err = e.letters.Walk(ctx, 0, last, func(d *engine.DeadLetter) error {
					if strings.HasPrefix(d.Caller, fmt.Sprint("caller-", n, "-")) {
						all = append(all, show(*d))
					}
					return nil
				})
				return strings.Join(all, " "), err
			}}
		})
}

func jobsProgram(t *rapid.T, n int) []step {
	// After a job may have been dropped, its id is not used again. In notifyd ids are generated, so
	// an id is never used for a second job.
	var times [3]int
	var dropped [3]bool
	name := func(job int) string { return fmt.Sprint("job-", n, "-", job, "-", times[job]) }
	id := func(t *rapid.T) string { return name(draw(t, "job", 2)) }
	show := func(j engine.Job) string {
		return fmt.Sprintf("%s/%s/%s/%s/%s/v%d", j.ID, j.Kind, j.Name, j.State, j.Spec, j.Version)
	}
	entry := func(t *rapid.T) []engine.JobEntry {
		if rapid.Bool().Draw(t, "no entry") {
			return nil
		}
		return []engine.JobEntry{{At: uint64(draw(t, "at", 3) + 1), Doc: []byte(fmt.Sprintf(`{"n":%d}`, draw(t, "doc", 9)))}}
	}
	return steps(t, 14,
		func(t *rapid.T) step {
			job := draw(t, "job", 2)
			if dropped[job] {
				dropped[job], times[job] = false, times[job]+1
			}
			i := name(job)
			j := engine.Job{ID: i, Kind: "replay", Name: fmt.Sprint("name-", n, "-", draw(t, "name", 1)), State: "running", Spec: []byte(`{}`), Created: place(-n) + int64(len(i)), Updated: place(-n)}
			es := entry(t)
			return step{fmt.Sprint("create ", show(j), len(es)), func(ctx context.Context, e *engines, _ *known) (string, error) {
				if _, there, err := e.jobs.Get(ctx, j.ID); err != nil || there {
					return "its id is taken", err
				}
				got, won, err := e.jobs.Create(ctx, j, es...)
				return fmt.Sprint(show(got), won), err
			}}
		},
		func(t *rapid.T) step {
			i, state, es := id(t), fmt.Sprint("state-", draw(t, "state", 2)), entry(t)
			stale := draw(t, "stale", 3) == 0
			return step{fmt.Sprint("put ", i, state, stale, es), func(ctx context.Context, e *engines, _ *known) (string, error) {
				j, ok, err := e.jobs.Get(ctx, i)
				if err != nil || !ok {
					return "none", err
				}
				if j.State = state; stale {
					j.Version += 7
				}
				got, err := e.jobs.Put(ctx, j, es...)
				if err != nil {
					return "", err
				}
				return show(got), nil
			}}
		},
		func(t *rapid.T) step {
			i := id(t)
			return step{"get " + i, func(ctx context.Context, e *engines, _ *known) (string, error) {
				j, ok, err := e.jobs.Get(ctx, i)
				return fmt.Sprint(show(j), ok), err
			}}
		},
		func(t *rapid.T) step {
			job, v := draw(t, "job", 2), uint64(draw(t, "version", 2))
			i := name(job)
			dropped[job] = true
			return step{fmt.Sprint("drop ", i, v), func(ctx context.Context, e *engines, _ *known) (string, error) { return "", e.jobs.Drop(ctx, i, v) }}
		},
		func(t *rapid.T) step {
			i, after, most := id(t), uint64(draw(t, "after", 2)), draw(t, "max", 2)+1
			return step{fmt.Sprint("entries ", i, after, most), func(ctx context.Context, e *engines, _ *known) (string, error) {
				es, err := e.jobs.Entries(ctx, i, after, most)
				return names(es, func(x engine.JobEntry) string { return fmt.Sprintf("%d:%s", x.At, x.Doc) }), err
			}}
		})
}

func auditProgram(t *rapid.T, n int) []step {
	return steps(t, 8,
		func(t *rapid.T) step {
			doc := fmt.Sprintf(`{"n":%d,"what":%d}`, n, draw(t, "what", 9))
			return step{"append " + doc, func(ctx context.Context, e *engines, _ *known) (string, error) {
				r, err := e.audit.Append(ctx, func(last engine.AuditRow) (engine.AuditRow, error) {
					return engine.AuditRow{Seq: last.Seq + 1, Prev: last.Hash, Hash: []byte(doc), Doc: []byte(doc)}, nil
				})
				return fmt.Sprintf("%d %s after %s", r.Seq, r.Doc, r.Prev), err
			}}
		},
		func(*rapid.T) step {
			return step{"rows", func(ctx context.Context, e *engines, _ *known) (string, error) {
				last, err := e.audit.Last(ctx)
				if err != nil || last.Seq == 0 {
					return "none", err
				}
				rows, err := e.audit.Rows(ctx, last.Seq-min(last.Seq, 3), 2)
				return names(rows, func(r engine.AuditRow) string { return fmt.Sprintf("%d:%s<%s", r.Seq, r.Doc, r.Prev) }), err
			}}
		})
}

func campaignsProgram(t *rapid.T, n int) []step {
	id := func(t *rapid.T) string { return "cmp_" + base(n, draw(t, "campaign", 1)).String() }
	return steps(t, 10,
		func(t *rapid.T) step {
			i, part, caller := id(t), uint32(draw(t, "part", 3)), fmt.Sprint("caller-", draw(t, "caller", 4)/4)
			return step{fmt.Sprint("part ", i, part, caller), func(ctx context.Context, e *engines, _ *known) (string, error) {
				return "", e.campaigns.AddPart(ctx, i, caller, part, base(n, int(part)), int64(part)*10, 1, place(-n))
			}}
		},
		func(t *rapid.T) step {
			i := id(t)
			return step{"get " + i, func(ctx context.Context, e *engines, _ *known) (string, error) {
				c, ok, err := e.campaigns.Get(ctx, i)
				return fmt.Sprintf("%+v %v", c, ok), err
			}}
		})
}

func cancelsProgram(t *rapid.T, n int) []step {
	scope := func(t *rapid.T) string { return "ntf_" + base(n, draw(t, "scope", 3)).String() }
	// show leaves out the version, which each engine chooses itself.
	show := func(c engine.Cancel) string { return c.Scope + "/" + c.Caller }
	return steps(t, 10,
		func(t *rapid.T) step {
			c := engine.Cancel{Scope: scope(t), Caller: fmt.Sprint("caller-", draw(t, "caller", 1)), By: "me", At: place(-n)}
			return step{"put " + show(c), func(ctx context.Context, e *engines, k *known) (string, error) {
				v, err := e.cancels.Put(ctx, c)
				was, again := k.numbers[c.Scope]
				k.numbers[c.Scope] = v
				if !again {
					fresh := v > k.numbers["last"]
					k.numbers["last"] = v
					return fmt.Sprint("a new version: ", fresh), err
				}
				return fmt.Sprint("the version it had: ", was == v), err
			}}
		},
		func(t *rapid.T) step {
			s := scope(t)
			return step{"get " + s, func(ctx context.Context, e *engines, _ *known) (string, error) {
				c, ok, err := e.cancels.Get(ctx, s)
				return fmt.Sprint(show(c), ok), err
			}}
		},
		func(t *rapid.T) step {
			s, most := scope(t), draw(t, "max", 2)+1
			return step{"changes since " + s, func(ctx context.Context, e *engines, k *known) (string, error) {
				v, ok := k.numbers[s]
				if !ok {
					return "it was never put", nil
				}
				cs, err := e.cancels.Changes(ctx, v, most)
				return names(cs, show), err
			}}
		})
}

func holdsProgram(t *rapid.T, n int) []step {
	lane := fmt.Sprint("lane-", n)
	one := func(t *rapid.T) engine.Hold {
		return engine.Hold{Lane: lane, User: fmt.Sprint("user-", draw(t, "user", 1)), ID: notify.ID{Base: base(n, draw(t, "id", 3))}, Wake: place(n) + int64(draw(t, "wake", 3))}
	}
	show := func(h engine.Hold) string { return fmt.Sprintf("%s/%s/%d", h.User, h.ID, h.Wake) }
	return steps(t, 12,
		func(t *rapid.T) step {
			var add, remove []engine.Hold
			if draw(t, "what", 2) > 0 {
				add = append(add, one(t))
			} else {
				remove = append(remove, one(t))
			}
			return step{"update +" + names(add, show) + " -" + names(remove, show), func(ctx context.Context, e *engines, _ *known) (string, error) {
				return "", e.holds.Update(ctx, add, remove)
			}}
		},
		func(*rapid.T) step {
			return step{"get", func(ctx context.Context, e *engines, _ *known) (string, error) {
				hs, err := e.holds.Get(ctx, lane, []string{"user-1", "user-0", "nobody"})
				return names(hs, func(l []engine.Hold) string { return names(l, show) }), err
			}}
		})
}

func metaProgram(t *rapid.T, n int) []step {
	name := func(t *rapid.T) string { return fmt.Sprint("name-", n, "-", draw(t, "name", 2)) }
	return steps(t, 10,
		func(t *rapid.T) step {
			k, v := name(t), strings.Repeat("v", draw(t, "value", 3))
			return step{"put " + k + " " + v, func(ctx context.Context, e *engines, _ *known) (string, error) {
				return "", e.meta.PutMeta(ctx, k, []byte(v))
			}}
		},
		func(t *rapid.T) step {
			k := name(t)
			return step{"get " + k, func(ctx context.Context, e *engines, _ *known) (string, error) {
				v, err := e.meta.GetMeta(ctx, k)
				return fmt.Sprintf("%q", v), err
			}}
		})
}

func prefsProgram(t *rapid.T, n int) []step {
	user := func(t *rapid.T) string { return fmt.Sprint("user-", n, "-", draw(t, "user", 2)) }
	show := func(p engine.Profile) string {
		return fmt.Sprintf("%s/%v/%v/%v/%s/%v", p.User, p.Addresses, p.OptOut, p.QuietHours != nil, p.TimeZone, p.Suppressed)
	}
	one := func(t *rapid.T) engine.Profile {
		p := engine.Profile{User: user(t), TimeZone: []string{"", "Europe/Berlin"}[draw(t, "zone", 1)]}
		if rapid.Bool().Draw(t, "addresses") {
			p.Addresses = map[string][]string{"sms": {"+4915112345678"}}
		}
		if rapid.Bool().Draw(t, "opt out") {
			p.OptOut = []string{"marketing"}
		}
		return p
	}
	return steps(t, 12,
		func(t *rapid.T) step {
			// mode 0 puts no version, mode 1 the stored version, mode 2 a wrong version.
			p, mode := one(t), draw(t, "version", 2)
			return step{fmt.Sprint("put ", show(p), mode), func(ctx context.Context, e *engines, k *known) (string, error) {
				p := p
				switch mode {
				case 1:
					p.Version = k.numbers[p.User]
				case 2:
					p.Version = 1 << 50
				}
				v, err := e.prefs.Put(ctx, p)
				if err != nil {
					return "", err
				}
				higher := v > k.numbers["last"]
				k.numbers[p.User], k.numbers["last"] = v, v
				return fmt.Sprint("higher: ", higher), nil
			}}
		},
		func(t *rapid.T) step {
			u := user(t)
			return step{"get " + u, func(ctx context.Context, e *engines, k *known) (string, error) {
				p, ok, err := e.prefs.Get(ctx, u)
				return fmt.Sprint(show(p), ok, p.Version == k.numbers[u]), err
			}}
		},
		func(t *rapid.T) step {
			u := user(t)
			return step{"changes since " + u, func(ctx context.Context, e *engines, k *known) (string, error) {
				v := k.numbers[u]
				if v == 0 {
					return "it was never put", nil
				}
				cs, err := e.prefs.Changes(ctx, v, 100)
				// Compare only the last change of each user. If a user has changed twice, an engine
				// may return only the last change.
				last := map[string]string{}
				for _, c := range cs {
					last[c.Profile.User] = show(c.Profile)
				}
				return fmt.Sprint(last), err
			}}
		})
}

func callersProgram(t *rapid.T, n int) []step {
	id := func(t *rapid.T) string { return fmt.Sprint("caller-", n, "-", draw(t, "caller", 1)) }
	return steps(t, 10,
		func(t *rapid.T) step {
			c := engine.Caller{ID: id(t), Rate: float64(draw(t, "rate", 3)), Version: uint64(draw(t, "version", 2)), CallbackURLs: []string{"https://x.example/"}}
			return step{fmt.Sprintf("put %+v", c), func(ctx context.Context, e *engines, _ *known) (string, error) { return "", e.callers.Put(ctx, c) }}
		},
		func(t *rapid.T) step {
			i := id(t)
			return step{"get " + i, func(ctx context.Context, e *engines, _ *known) (string, error) {
				c, ok, err := e.callers.Get(ctx, i)
				return fmt.Sprintf("%+v %v", c, ok), err
			}}
		},
		func(*rapid.T) step {
			return step{"list", func(ctx context.Context, e *engines, _ *known) (string, error) {
				cs, err := e.callers.List(ctx)
				var ours []string
				for _, c := range cs {
					if strings.HasPrefix(c.ID, fmt.Sprint("caller-", n, "-")) {
						ours = append(ours, fmt.Sprintf("%+v", c))
					}
				}
				return fmt.Sprint(sorted(ours)), err
			}}
		})
}

func idemProgram(t *rapid.T, n int) []step {
	key := func(t *rapid.T) engine.IdemKey {
		return engine.IdemKey{Caller: fmt.Sprint("caller-", n), Route: "POST /v1/notifications", Key: fmt.Sprint("key-", draw(t, "key", 2))}
	}
	now := time.Now().UnixMilli()
	show := func(r engine.Reservation) string {
		return fmt.Sprintf("%s/%s/%s/%d/%v/%d/%s", r.Key.Key, r.Owner, r.Base, r.Partitions, r.Done, r.Status, r.Body)
	}
	one := func(t *rapid.T) engine.Reservation {
		return engine.Reservation{
			Key: key(t), Base: base(n, draw(t, "base", 3)), Accepted: now, Owner: fmt.Sprint("owner-", draw(t, "owner", 1)), LeaseUntil: now + 3_600_000, Expires: now + 86_400_000, Version: 1,
		}
	}
	return steps(t, 14,
		func(t *rapid.T) step {
			r := one(t)
			return step{"reserve " + show(r), func(ctx context.Context, e *engines, _ *known) (string, error) {
				stored, won, err := e.idem.Reserve(ctx, r, now)
				return fmt.Sprint(show(stored), won), err
			}}
		},
		func(t *rapid.T) step {
			r := one(t)
			r.Partitions, r.BlockSize = uint16(draw(t, "partitions", 3)+1), 8
			return step{"freeze " + show(r), func(ctx context.Context, e *engines, _ *known) (string, error) { return "", e.idem.Freeze(ctx, r) }}
		},
		func(t *rapid.T) step {
			k, owner := key(t), fmt.Sprint("owner-", draw(t, "owner", 1))
			stale := rapid.Bool().Draw(t, "stale")
			return step{fmt.Sprint("take over ", k.Key, owner, stale), func(ctx context.Context, e *engines, _ *known) (string, error) {
				probe := engine.Reservation{Key: k, Owner: "probe", LeaseUntil: now + 1, Expires: now + 86_400_000}
				stored, won, err := e.idem.Reserve(ctx, probe, now)
				if err != nil {
					return "", err
				}
				if won {
					return "free", e.idem.Release(ctx, probe)
				}
				if stale {
					stored.LeaseUntil--
				}
				took, err := e.idem.TakeOver(ctx, stored, owner, stored.LeaseUntil+1000)
				return fmt.Sprint(took), err
			}}
		},
		func(t *rapid.T) step {
			k, status := key(t), 200+draw(t, "status", 1)
			return step{fmt.Sprint("finish ", k.Key, status), func(ctx context.Context, e *engines, _ *known) (string, error) {
				probe := engine.Reservation{Key: k, Owner: "probe", LeaseUntil: now + 1, Expires: now + 86_400_000}
				_, won, err := e.idem.Reserve(ctx, probe, now)
				if err != nil {
					return "", err
				}
				if won { // the key was not reserved, so there is no request to finish
					return "free", e.idem.Release(ctx, probe)
				}
				return "", e.idem.Finish(ctx, k, status, []byte(`{"ok":true}`), now+86_400_000)
			}}
		})
}

func queueProgram(t *rapid.T, n int) []step {
	name := fmt.Sprint("queue-", n)
	queue := func(e *engines) engine.Queue { return e.queue(name, 1000) }
	// The program itself counts the messages. ready is the number of messages that can be received.
	// held is the number of messages that were received, and neither acknowledged nor released.
	// sent is the number of all messages.
	ready, held, sent := 0, 0, 0
	return steps(t, 10,
		func(t *rapid.T) step {
			var ms []engine.Message
			for range draw(t, "messages", 3) + 1 {
				sent++
				ms = append(ms, engine.Message{Body: []byte(fmt.Sprint("message-", sent))})
			}
			ready += len(ms)
			return step{fmt.Sprint("enqueue ", len(ms)), func(ctx context.Context, e *engines, _ *known) (string, error) { return "", queue(e).Enqueue(ctx, ms) }}
		},
		func(*rapid.T) step {
			want := ready
			held, ready = held+ready, 0
			return step{fmt.Sprint("receive ", want), func(ctx context.Context, e *engines, k *known) (string, error) {
				var got []string
				for len(got) < want {
					ds, err := queue(e).Receive(ctx, want-len(got), time.Hour)
					if err != nil {
						return "", err
					}
					for _, d := range ds {
						got = append(got, fmt.Sprintf("%s*%d", d.Body, d.Receives))
						k.texts["receipts"] = append(k.texts["receipts"], d.Receipt)
					}
				}
				return fmt.Sprint(sorted(got)), nil
			}}
		},
		func(*rapid.T) step {
			held = 0
			return step{"acknowledge all", func(ctx context.Context, e *engines, k *known) (string, error) {
				rs := k.texts["receipts"]
				k.texts["receipts"] = nil
				return fmt.Sprint(len(rs)), queue(e).Ack(ctx, rs)
			}}
		},
		func(*rapid.T) step {
			ready, held = ready+held, 0
			return step{"release all", func(ctx context.Context, e *engines, k *known) (string, error) {
				rs := k.texts["receipts"]
				k.texts["receipts"] = nil
				for _, r := range rs {
					if err := queue(e).Release(ctx, r, 0); err != nil {
						return "", err
					}
				}
				return fmt.Sprint(len(rs)), nil
			}}
		},
		func(*rapid.T) step {
			return step{"depth", func(ctx context.Context, e *engines, _ *known) (string, error) {
				d, err := queue(e).Depth(ctx)
				return fmt.Sprint(d.Ready+d.Delayed, d.InFlight, d.Dead), err
			}}
		})
}

func leaseProgram(t *rapid.T, n int) []step {
	draws := func(t *rapid.T) (string, string) {
		return fmt.Sprint("lease-", n, "-", draw(t, "lease", 1)), fmt.Sprint("owner-", draw(t, "owner", 1))
	}
	return steps(t, 14,
		func(t *rapid.T) step {
			l, o := draws(t)
			return step{"acquire " + l + " " + o, func(ctx context.Context, e *engines, _ *known) (string, error) {
				ok, err := e.lease.Acquire(ctx, l, o, time.Hour)
				return fmt.Sprint(ok), err
			}}
		},
		func(t *rapid.T) step {
			l, o := draws(t)
			return step{"renew " + l + " " + o, func(ctx context.Context, e *engines, _ *known) (string, error) {
				ok, err := e.lease.Renew(ctx, l, o, time.Hour)
				return fmt.Sprint(ok), err
			}}
		},
		func(t *rapid.T) step {
			l, o := draws(t)
			return step{"release " + l + " " + o, func(ctx context.Context, e *engines, _ *known) (string, error) {
				return "", e.lease.Release(ctx, l, o)
			}}
		})
}

func beatsProgram(t *rapid.T, n int) []step {
	group := func(t *rapid.T) string { return fmt.Sprint("group-", n, "-", draw(t, "group", 1)) }
	owner := func(t *rapid.T) string { return fmt.Sprint("owner-", draw(t, "owner", 3)) }
	return steps(t, 12,
		func(t *rapid.T) step {
			g, o, v := group(t), owner(t), fmt.Sprint("value-", draw(t, "value", 1))
			return step{"beat " + g + " " + o + " " + v, func(ctx context.Context, e *engines, _ *known) (string, error) {
				_, before, err := e.beats.Alive(ctx, g, 0)
				if err != nil {
					return "", err
				}
				after, err := e.beats.Beat(ctx, g, o, v, time.Hour)
				return fmt.Sprint("changed ", before != after), err
			}}
		},
		func(t *rapid.T) step {
			g, o := group(t), owner(t)
			return step{"leave " + g + " " + o, func(ctx context.Context, e *engines, _ *known) (string, error) {
				return "", e.beats.Leave(ctx, g, o)
			}}
		},
		func(t *rapid.T) step {
			g := group(t)
			return step{"alive " + g, func(ctx context.Context, e *engines, _ *known) (string, error) {
				hs, _, err := e.beats.Alive(ctx, g, 0)
				return names(hs, func(h engine.Heartbeat) string { return h.Owner + " " + h.Value }), err
			}}
		})
}

func limitsProgram(t *rapid.T, n int) []step {
	until := time.Now().Truncate(time.Second).Add(time.Hour)
	account := func(t *rapid.T) string { return fmt.Sprint("account-", n, "-", draw(t, "account", 2)) }
	return steps(t, 12,
		func(t *rapid.T) step {
			b, k, burst := fmt.Sprint("bucket-", n, "-", draw(t, "bucket", 1)), draw(t, "tokens", 4), 6
			return step{fmt.Sprint("take ", b, k), func(ctx context.Context, e *engines, _ *known) (string, error) {
				// With a rate of 0 the bucket is never refilled, so the result does not depend on time.
				got, _, err := e.limits.Take(ctx, b, k, 0, burst)
				return fmt.Sprint(got), err
			}}
		},
		func(t *rapid.T) step {
			a, at := account(t), until.Add(time.Duration(draw(t, "minutes", 9))*time.Minute)
			return step{fmt.Sprint("block ", a, at.UnixMilli()), func(ctx context.Context, e *engines, _ *known) (string, error) {
				return "", e.limits.Block(ctx, a, at)
			}}
		},
		func(t *rapid.T) step {
			as := []string{account(t), account(t)}
			return step{fmt.Sprint("blocked ", as), func(ctx context.Context, e *engines, _ *known) (string, error) {
				got, err := e.limits.Blocked(ctx, as)
				return names(got, func(at time.Time) string { return fmt.Sprint(max(at.UnixMilli(), 0)) }), err
			}}
		})
}
