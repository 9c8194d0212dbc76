// Command users20m shows that the memory of a worker depends on the worker's part of the users, not
// on the number of all users. It fills a new database with 20 million users. Then it starts 4
// worker processes. Their consumer groups divide the partitions of each topic among the workers.
// users20m measures how many users each worker has in memory, how long the worker takes to load
// them, and how long an opt-out takes to reach every worker. Then one worker ends, and its users
// move to the other workers. users20m repeats the measurements.
//
// The last line of the output has key=value pairs. users20m exits with 1 if a figure is outside its
// limit.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/postgres"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/users"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

type options struct {
	users, workers, partitions int
	kafka, postgres            string
	worker                     bool // true: this process is a worker
	topics                     string
	owner                      string
}

// Limits of a run.
const (
	// optOutLimit bounds the time from the answer to an opt-out until every worker refuses to send
	// to the user.
	optOutLimit = time.Second
	// mostBytes bounds the heap bytes per user. The packed data of a user has 69 bytes. The rest
	// allows for differences between runs of the garbage collector.
	mostBytes = 110
)

func main() {
	var o options
	flag.IntVar(&o.users, "users", 20_000_000, "number of users, each with a push address of 64 bytes")
	flag.IntVar(&o.workers, "workers", 4, "number of worker processes")
	flag.IntVar(&o.partitions, "partitions", 18, "partitions of each topic")
	flag.StringVar(&o.kafka, "kafka", "127.0.0.1:19092", "address of a Kafka broker")
	flag.StringVar(&o.postgres, "postgres", "127.0.0.1:15432", "address of the PostgreSQL server")
	flag.BoolVar(&o.worker, "worker", false, "internal: run as a worker; -postgres is the DSN")
	flag.StringVar(&o.topics, "topics", "", "internal: topics of a worker, separated by commas")
	flag.StringVar(&o.owner, "owner", "", "internal: name of a worker in its groups")
	flag.Parse()
	if o.worker {
		rig.Ok(o.work())
		return
	}
	rig.Main("users20m", false, o.run)
}

func (o *options) run(ctx context.Context, _ string) (ok bool) {
	name := fmt.Sprintf("users20m_%08x", rand.Uint32())
	server := fmt.Sprintf("postgres://notifyd@%s/postgres?sslmode=disable", o.postgres)
	u := rig.Must(url.Parse(server))
	u.Path = "/" + name
	admin := rig.Must(pgx.Connect(ctx, server))
	rig.Must(admin.Exec(ctx, "CREATE DATABASE "+name))
	defer func() {
		ctx := context.WithoutCancel(ctx)
		if _, err := admin.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			fmt.Printf("could not remove the database %s: %v\n", name, err)
		}
		_ = admin.Close(ctx)
	}()
	store := rig.Must(postgres.Open(ctx, postgres.Config{DSN: u.String(), Timeout: time.Minute}))
	defer func() { _ = store.Close() }()
	rig.Must(store.Migrate(ctx, engine.Up))
	began := time.Now()
	o.seed(ctx, u.String())
	fmt.Printf("%d users are stored in %.0f s\n", o.users, time.Since(began).Seconds())

	// A channel has two topics, and each worker reads both. A user is in both topics, but must be
	// in the worker's memory only once.
	topics := []string{name + "-fast", name + "-bulk"}
	brokers := rig.Must(log.NewAdmin(log.AdminConfig{Conn: log.Conn{Brokers: []string{o.kafka}}}))
	defer brokers.Close()
	rig.Must(brokers.EnsureTopics(ctx, map[string]int{topics[0]: o.partitions, topics[1]: o.partitions}))
	defer o.dropTopics(context.WithoutCancel(ctx), topics)

	fleet := make([]*child, o.workers)
	defer func() {
		for _, c := range fleet {
			if c != nil {
				c.end()
			}
		}
	}()
	for i := range fleet {
		fleet[i] = rig.Must(o.spawn(ctx, u.String(), strings.Join(topics, ","), fmt.Sprint("worker-", i)))
	}
	first := o.measureWorkers(ctx, fleet)
	fmt.Println("after the start:", first)
	api := rig.Must(users.New(store.Prefs(), users.Config{Shares: true}))
	calm := o.measureOptOuts(ctx, api, fleet, 36, 0)

	// The last worker ends. While the other workers load its users, users20m measures opt-outs.
	rig.Ok(fleet[o.workers-1].stop())
	rest := fleet[:o.workers-1]
	moving := o.measureOptOuts(ctx, api, rest, 36, 36)
	second := o.measureWorkers(ctx, rest)
	fmt.Println("after one has ended:", second)

	most := (o.partitions + o.workers - 1) / o.workers
	share := float64(slices.Max(first.held)) / float64(o.users)
	fetchedWhileMoving := second.sum() - o.users // users that workers fetched singly during the move, and so hold in addition
	ok = first.sum() == o.users && fetchedWhileMoving >= 0 && fetchedWhileMoving <= 72*len(rest) && share < 1.1*float64(most)/float64(o.partitions) &&
		slices.Max(first.bytes) < mostBytes && calm < optOutLimit && moving < optOutLimit
	fmt.Printf("users20m users=%d workers=%d partitions=%d bytes_a_user=%.0f held=%s rss_mib=%s load_s=%s optout_ms=%d move_held=%s move_load_s=%s move_optout_ms=%d seconds=%.0f ok=%v\n",
		o.users, o.workers, o.partitions, slices.Max(first.bytes), join(first.held), join(first.rss), joinSeconds(first.load), calm.Milliseconds(),
		join(second.held), joinSeconds(second.load), moving.Milliseconds(), time.Since(began).Seconds(), ok)
	return ok
}

func userOf(i int) string { return fmt.Sprintf("user%08d", i) }

// seed stores the users without notifyd: SQL statements generate them inside the server.
func (o *options) seed(ctx context.Context, dsn string) {
	const step = 250_000
	rig.InSteps(ctx, o.users, step, 2, func(ctx context.Context, from, to int) {
		c := rig.Must(pgx.Connect(ctx, dsn))
		defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
		rig.Must(c.Exec(ctx, `SET synchronous_commit = off`))
		rig.Must(c.Exec(ctx, `INSERT INTO profiles SELECT u, i + 1, ('{"addresses":{"push":["apns:' || left(encode(sha256(i::text::bytea), 'hex'), 59) || '"]}}')::json, user_part(u)
			FROM (SELECT i, 'user' || lpad(i::text, 8, '0') AS u FROM generate_series($1::bigint, $2::bigint - 1) i) s`, from, to))
	})
	c := rig.Must(pgx.Connect(ctx, dsn))
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	rig.Must(c.Exec(ctx, `UPDATE counters SET value = $1`, o.users))
	rig.Must(c.Exec(ctx, `ANALYZE profiles`))
}

// workerFigures has the figures of each worker after it has loaded all users of its partitions.
type workerFigures struct {
	held, rss []int           // number of users in memory; resident memory in MiB
	bytes     []float64       // heap bytes per user in memory
	load      []time.Duration // duration of the latest load
}

func (s workerFigures) sum() (n int) {
	for _, h := range s.held {
		n += h
	}
	return n
}

func (s workerFigures) String() string {
	return fmt.Sprintf("held %s, RSS %s MiB, loaded in %s s", join(s.held), join(s.rss), joinSeconds(s.load))
}

// measureWorkers waits until the workers own all partitions and have loaded their users. Then it
// returns the figures of the workers.
func (o *options) measureWorkers(ctx context.Context, fleet []*child) (out workerFigures) {
	rig.Ok(rig.Until(ctx, "every partition has a worker that holds its users", func() (bool, error) {
		parts := 0
		for _, c := range fleet {
			s, err := c.ask("state")
			if err != nil || !s.Loaded {
				return false, err
			}
			parts += s.Partitions
		}
		return parts == 2*o.partitions, nil
	}))
	for _, c := range fleet {
		s := rig.Must(c.ask("collect"))
		out.held, out.rss = append(out.held, s.Held), append(out.rss, s.RSS)
		out.bytes, out.load = append(out.bytes, s.Bytes), append(out.load, s.Load)
	}
	return out
}

// measureOptOuts divides all users into 100 equal parts. It stores the opt-outs of n users, one
// after the other: the first user of each of n parts. The parameter first is the index of the first
// of these parts. measureOptOuts returns the longest time from the answer to an opt-out until every
// worker refused to send to the user.
func (o *options) measureOptOuts(ctx context.Context, api *users.Service, fleet []*child, n, first int) (longest time.Duration) {
	for i := range n {
		user := userOf((first + i) * (o.users / 100))
		p := rig.Must(api.Get(ctx, user))
		p.OptOut = []string{"marketing"}
		rig.Must(api.Put(ctx, p))
		answered := time.Now()
		rig.Ok(rig.Until(ctx, "every worker refuses to send to "+user, func() (bool, error) {
			for _, c := range fleet {
				if s, err := c.ask("decide " + user); err != nil || !s.OptedOut {
					return false, err
				}
			}
			return true, nil
		}))
		longest = max(longest, time.Since(answered))
	}
	return longest
}

func (o *options) spawn(ctx context.Context, dsn, topics, owner string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return spawn(exec.CommandContext(ctx, self, "-worker", "-postgres", dsn, "-kafka", o.kafka, "-topics", topics, "-owner", owner, "-partitions", fmt.Sprint(o.partitions)))
}

func join(list []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ","), "[]")
}

func joinSeconds(list []time.Duration) string {
	var out []string
	for _, d := range list {
		out = append(out, fmt.Sprintf("%.1f", d.Seconds()))
	}
	return strings.Join(out, ",")
}
