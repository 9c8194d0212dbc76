// Command users20m shows that the memory of a worker grows with its share of the users,
// not with all of them: it fills a database of its own with users (20 million), starts
// workers (4) as processes, whose consumer groups share a topic's partitions out among
// them, and looks at what each holds, how long it takes to load that, and how long an
// opt-out takes until every worker knows of it: also while a worker's users move to the
// others, because it has ended.
//
// It ends with one line of key=value pairs and exits 1 when that did not hold.
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
	worker                     bool // this process is one
	topics                     string
	owner                      string
}

// Limits of a run.
const (
	optOutLimit = time.Second // that an opt-out binds
	mostBytes   = 110         // of heap, a user: 69 are packed, and a GC cycle does not end at the same place
)

func main() {
	var o options
	flag.IntVar(&o.users, "users", 20_000_000, "users, each with a push address of 64 bytes")
	flag.IntVar(&o.workers, "workers", 4, "processes")
	flag.IntVar(&o.partitions, "partitions", 18, "partitions of a topic")
	flag.StringVar(&o.kafka, "kafka", "127.0.0.1:19092", "address of a broker")
	flag.StringVar(&o.postgres, "postgres", "127.0.0.1:15432", "address of the server")
	flag.BoolVar(&o.worker, "worker", false, "be a worker: -postgres is its DSN")
	flag.StringVar(&o.topics, "topics", "", "of a worker, with commas between")
	flag.StringVar(&o.owner, "owner", "", "of a worker")
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
			fmt.Printf("the database %s is left behind: %v\n", name, err)
		}
		_ = admin.Close(ctx)
	}()
	store := rig.Must(postgres.Open(ctx, postgres.Config{DSN: u.String(), Timeout: time.Minute}))
	defer func() { _ = store.Close() }()
	rig.Must(store.Migrate(ctx, engine.Up))
	began := time.Now()
	o.seed(ctx, u.String())
	fmt.Printf("%d users are stored in %.0f s\n", o.users, time.Since(began).Seconds())

	// Two topics, as a channel has: each worker reads both, and holds its users once.
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
	first := o.settle(ctx, fleet)
	fmt.Println("after the start:", first)
	api := rig.Must(users.New(store.Prefs(), users.Config{Shares: true}))
	calm := o.optOuts(ctx, api, fleet, 36, 0)

	// The last worker ends; an opt-out is written while the others load its users.
	rig.Ok(fleet[o.workers-1].stop())
	rest := fleet[:o.workers-1]
	moving := o.optOuts(ctx, api, rest, 36, 36)
	second := o.settle(ctx, rest)
	fmt.Println("after one has ended:", second)

	most := (o.partitions + o.workers - 1) / o.workers
	share := float64(slices.Max(first.held)) / float64(o.users)
	strangers := second.sum() - o.users // who were fetched while they moved
	ok = first.sum() == o.users && strangers >= 0 && strangers <= 72*len(rest) && share < 1.1*float64(most)/float64(o.partitions) &&
		slices.Max(first.bytes) < mostBytes && calm < optOutLimit && moving < optOutLimit
	fmt.Printf("users20m users=%d workers=%d partitions=%d bytes_a_user=%.0f held=%s rss_mib=%s load_s=%s optout_ms=%d move_held=%s move_load_s=%s move_optout_ms=%d seconds=%.0f ok=%v\n",
		o.users, o.workers, o.partitions, slices.Max(first.bytes), join(first.held), join(first.rss), joinSeconds(first.load), calm.Milliseconds(),
		join(second.held), joinSeconds(second.load), moving.Milliseconds(), time.Since(began).Seconds(), ok)
	return ok
}

func userOf(i int) string { return fmt.Sprintf("user%08d", i) }

// seed stores the users without the product: by statements that make them in the server.
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

// settled is what the workers say once they hold all users of their partitions.
type settled struct {
	held, rss []int
	bytes     []float64 // of heap, a user held
	load      []time.Duration
}

func (s settled) sum() (n int) {
	for _, h := range s.held {
		n += h
	}
	return n
}

func (s settled) String() string {
	return fmt.Sprintf("held %s, RSS %s MiB, loaded in %s s", join(s.held), join(s.rss), joinSeconds(s.load))
}

// settle waits until the workers have all partitions and hold their users.
func (o *options) settle(ctx context.Context, fleet []*child) (out settled) {
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

// optOuts stores opt-outs of n users, of as many parts as there are, and returns the
// longest time from the answer until every worker refused to send to the user.
func (o *options) optOuts(ctx context.Context, api *users.Service, fleet []*child, n, from int) (longest time.Duration) {
	for i := range n {
		user := userOf((from + i) * (o.users / 100))
		p := rig.Must(api.Get(ctx, user))
		p.OptOut = []string{"marketing"}
		rig.Must(api.Put(ctx, p))
		answered := time.Now()
		rig.Ok(rig.Until(ctx, "every worker knows of an opt-out", func() (bool, error) {
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
