package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	goredis "github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/secrets"
	"github.com/notifyd/notifyd/pkg/trigger"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

// chainCallers is the number of concurrent requests. The floor (see the method floor) has the same
// number of callers for each server.
const chainCallers = 256

// fanoutCallers is the number of concurrent fan-outs of 5,000 receivers. With more of them, some
// would wait longer than intake.bulk_wait (1 s), and the node would refuse them.
const fanoutCallers = 16

// chainNeed is the bound of P11: the rate of the chain must be at least 0.6 of the floor's rate.
var chainNeed = ratioOf(0.6)

// serverChain has a node with all roles that uses real servers, and the client libraries that
// measure the floor.
type serverChain struct {
	*bench
	node    *node
	m       *meter
	hooks   *receiver
	adm     *kadm.Client
	kafka   *kgo.Client
	asked   log.Counter // counts the requests that the client kafka sends
	session *gocql.Session
	redis   *goredis.Client
	topic   string           // topic of the floor
	null    *httptest.Server // reads a request and answers 202
	seen    sync.Map         // keys are the notify.Chunk of finished envelopes
}

// finished counts each envelope once. The next owner of a partition may read an envelope again, and
// then the envelope finishes a second time.
func (c *serverChain) finished(e *notify.Envelope) {
	if _, again := c.seen.LoadOrStore(e.Chunk, true); !again {
		c.m.finished(e)
	}
}

// chainFigures measures P11: notifications and triggers on real servers, from the HTTP request to
// the durable end. One process has all roles. The providers are inside this process and accept at
// once.
//
// After each run of the chain the floor is measured. The floor makes the same number of HTTP
// requests, records, statements and commands as the chain, of the same kinds and sizes. The HTTP
// requests with their records, the statements and the commands are sent side by side. The floor
// uses only the client libraries, and a net/http server that only accepts.
func chainFigures(ctx context.Context, b *bench, addresses map[string]string) {
	c := &serverChain{bench: b, m: newMeter(), hooks: newReceiver(), null: httptest.NewServer(http.HandlerFunc(acceptAll))}
	defer c.hooks.server.Close()
	defer c.null.Close()
	keyspace := fmt.Sprintf("bench_%08x", rand.Uint32())
	cfg := b.config(b.folder("chain"), true)
	cfg.Engines = app.EnginesDistributed
	rig.Must(secrets.MakeKeys(cfg.Secrets.KeyFile))
	cfg.Kafka.Brokers, cfg.Cassandra.Hosts, cfg.Redis.Addresses = []string{addresses["kafka"]}, []string{addresses["cassandra"]}, []string{addresses["redis"]}
	// The prefix is new for each run. Otherwise an audit in a later run on the same servers would
	// read all records of this run.
	cfg.Kafka.TopicPrefix = keyspace + "-"
	cfg.Cassandra.Keyspace, cfg.Cassandra.Replication, cfg.Redis.Prefix = keyspace, 1, keyspace+":"
	// A busy machine must not end a measurement.
	cfg.Kafka.AppendTimeout, cfg.Cassandra.Timeout = time.Minute, 20*time.Second
	cfg.Postgres.DSN = database(ctx, addresses["postgres"], keyspace)
	cfg.Triggers.Plain, cfg.Triggers.Ports, cfg.Triggers.Allow = true, []int{0}, []string{"127.0.0.0/8"}
	rig.Must(app.Migrate(ctx, &cfg, engine.Up, nil))
	c.connect(addresses, keyspace)
	defer c.close(context.WithoutCancel(ctx), addresses["postgres"], keyspace)
	c.node = b.start(ctx, cfg, cluster.RoleAll, func(n *app.Node) { n.Observe(c.finished) })
	defer c.node.end()
	// Wait before the first measurement. In the first 5 s after a worker got a partition, it reads
	// the row of each envelope (see newKeys in pkg/worker). These reads must not be measured.
	idle, began := c.made(ctx), time.Now()
	rig.Ok(rig.Pause(ctx, 7*time.Second))
	idle = c.made(ctx).minus(idle)
	each := func(n float64) float64 { return n / time.Since(began).Seconds() }
	c.notef("idle, requests a second: Kafka %.3g fetches, %.3g heartbeats, %.3g others; Cassandra %.3g statements; Redis %.3g round trips",
		each(float64(idle.kafka.Fetch)), each(float64(idle.kafka.Heartbeat)), each(float64(idle.kafka.Other)),
		each(idle.swaps+idle.serial+idle.reads+idle.writes+idle.logged+idle.scattered), each(idle.trips))
	rig.Ok(c.node.SeedCaller(ctx, "bench", []string{c.hooks.url}, trigger.NewSecret()))
	for _, w := range []chainWork{
		{key: "chain_singles", work: "single pushes", step: load.Step{Target: load.Single, Addresses: true}},
		{key: "chain_fanouts", work: "receivers of fan-outs of 5,000", step: load.Step{Target: load.Fanout, Size: 5000, Addresses: true, Workers: fanoutCallers}},
		{key: "chain_scheduled", work: "scheduled singles", later: true, step: load.Step{Target: load.Schedule, Addresses: true}},
		{key: "chain_triggers", work: "triggers", later: true, step: load.Step{Target: load.Trigger}},
	} {
		c.measure(ctx, w)
	}
}

// database creates an empty database and returns its URL. The node stores callers and their sealed
// secrets in the database.
func database(ctx context.Context, server, name string) string {
	conn := rig.Must(pgx.Connect(ctx, server))
	defer conn.Close(ctx)
	rig.Must(conn.Exec(ctx, "CREATE DATABASE "+name))
	u := rig.Must(url.Parse(server))
	u.Path = "/" + name
	return u.String()
}

// chainWork is the work that one line of P11 measures.
type chainWork struct {
	key, work string
	step      load.Step
	// later means that all of the work is due at one moment, after all of it was accepted. The wait
	// until that moment is not measured.
	later bool
}

// chainRun is the result of one run of the chain.
type chainRun struct {
	n     int64         // number of notifications or triggers
	took  time.Duration // from the first request to the last durable end
	cores float64       // busy cores
	made  made
	body  []byte // body of one request
}

// made has the number of things that the chain sent to the servers: records to Kafka, statements
// and rows to Cassandra, and commands to Redis.
type made struct {
	records, recordBytes, swaps, serial, reads, writes, rows, bytes, logged, scattered, apart, commands, trips float64

	kafka log.Counts
}

func (m made) minus(o made) made {
	return made{
		m.records - o.records, m.recordBytes - o.recordBytes, m.swaps - o.swaps, m.serial - o.serial, m.reads - o.reads,
		m.writes - o.writes, m.rows - o.rows, m.bytes - o.bytes, m.logged - o.logged, m.scattered - o.scattered, m.apart - o.apart, m.commands - o.commands, m.trips - o.trips,
		kafkaMinus(m.kafka, o.kafka),
	}
}

func kafkaMinus(a, b log.Counts) log.Counts {
	return log.Counts{
		Produce: a.Produce - b.Produce, ProduceBatches: a.ProduceBatches - b.ProduceBatches, Fetch: a.Fetch - b.Fetch,
		FetchBatches: a.FetchBatches - b.FetchBatches, Commit: a.Commit - b.Commit, Heartbeat: a.Heartbeat - b.Heartbeat, Other: a.Other - b.Other,
	}
}

// chainRounds is the number of rounds for each kind of work. A round measures the chain and then its
// floor. A single round is not reliable, because other programs may use the machine and four servers
// flush the same disk.
const chainRounds = 3

// chainPair is the result of one round: the run of the chain, and the time of its floor.
type chainPair struct {
	chainRun

	floor time.Duration
}

func (p *chainPair) ratio() float64 { return p.floor.Seconds() / p.took.Seconds() }

// measure runs the rounds of w and adds the round with the median ratio to the results.
func (c *serverChain) measure(ctx context.Context, w chainWork) {
	if c.only != "" && !slices.Contains(strings.Split(c.only, ","), w.key) {
		return
	}
	rounds := chainRounds
	if c.short {
		rounds = 1
	}
	pairs := make([]chainPair, rounds)
	for i := range pairs {
		pairs[i] = c.pair(ctx, w)
	}
	slices.SortFunc(pairs, func(a, b chainPair) int { return cmp.Compare(a.ratio(), b.ratio()) })
	p := &pairs[len(pairs)/2]
	rate := func(d time.Duration) float64 { return float64(p.n) / d.Seconds() }
	c.add(result{
		ID: "P11", Key: w.key, Work: fmt.Sprintf("%s, from the request to the durable end on real servers; ref: the same requests by the bare clients", w.work),
		Value: rate(p.took), Unit: "/s", Reference: rate(p.floor), main: true,
	}, chainNeed)
}

func (c *serverChain) pair(ctx context.Context, w chainWork) chainPair {
	r := c.run(ctx, w, c.length(10*time.Second, 3*time.Second))
	bare := c.asked.Counts()
	used := c.span("P11-" + w.key + "-floor")
	p := chainPair{r, c.floor(ctx, r.made, r.body, int(r.n)/max(w.step.Size, 1), cmp.Or(w.step.Workers, chainCallers))}
	bareCores, _ := used.cores()
	bare = kafkaMinus(c.asked.Counts(), bare)
	per := func(v float64) float64 { return v / float64(r.n) }
	c.notef("%s: %d in %.1f s, %.2f cores; the floor took %.1f s with %.2f cores, so its time is %.2f of the chain's. For each notification or trigger: %.3g records of %.0f B in the log; Cassandra: %.3g swaps, %.3g serial reads, %.3g reads, %.3g rows of %.0f B in %.3g writes, %.3g logged batches and %.3g of several partitions; Redis: %.3g commands in %.3g round trips",
		w.key, r.n, r.took.Seconds(), r.cores, p.floor.Seconds(), bareCores, p.ratio(), per(r.made.records), r.made.recordBytes/max(r.made.records, 1),
		per(r.made.swaps), per(r.made.serial), per(r.made.reads), per(r.made.rows), r.made.bytes/max(r.made.rows, 1), per(r.made.writes), per(r.made.logged), per(r.made.scattered), per(r.made.commands), per(r.made.trips))
	k := func(n int64) float64 { return per(float64(n)) }
	c.notef("%s: requests to Kafka for each notification or trigger: %.3g produce requests with %.3g batches (floor %.3g with %.3g), %.3g fetches of %.3g batches; in all %d commits, %d heartbeats, %d others",
		w.key, k(r.made.kafka.Produce), k(r.made.kafka.ProduceBatches), k(bare.Produce), k(bare.ProduceBatches),
		k(r.made.kafka.Fetch), k(r.made.kafka.FetchBatches), r.made.kafka.Commit, r.made.kafka.Heartbeat, r.made.kafka.Other)
	return p
}

// run sends the load of w for d and waits until everything that was accepted has its durable end.
// It panics if something ends before its due time, or has not ended after five minutes.
func (c *serverChain) run(ctx context.Context, w chainWork, d time.Duration) (r chainRun) {
	s := w.step
	s.Workers = cmp.Or(s.Workers, chainCallers)
	s.Payload, s.Users.Count = load.Payload{Text: text}, 1_000_000
	if w.later {
		s.Scheduled = &load.LaterSpec{At: load.Duration(d + 4*time.Second)}
	}
	c.m.reset()
	before, ended := c.made(ctx), c.ended(ctx, w)
	began, used := time.Now(), c.span("P11-"+w.key)
	target := &sampled{Target: &load.HTTP{Client: c.node.client}, first: func(q *load.Request) { r.body = bytes.Clone(q.Body) }}
	res := run(ctx, load.SingleStep(w.key, d, s), load.Config{Target: target, Callback: c.hooks.url + "x", Timeout: time.Minute})
	accepted := time.Now()
	r.n = res.Totals.Acked
	wait := time.Duration(0)
	if w.later {
		wait = max(time.Until(began.Add(d+4*time.Second)), 0)
		if early := c.ended(ctx, w) - ended; early > 0 && wait > 0 {
			panic(fmt.Errorf("%s: %d receivers or triggers ended before they were due", w.key, early))
		}
		rig.Ok(rig.Pause(ctx, wait))
	}
	for limit := time.Now().Add(5 * time.Minute); c.ended(ctx, w)-ended < r.n; {
		if time.Now().After(limit) {
			panic(fmt.Errorf("%s: only %d of %d receivers or triggers ended within five minutes", w.key, c.ended(ctx, w)-ended, r.n))
		}
		rig.Ok(rig.Pause(ctx, 10*time.Millisecond))
	}
	r.took = time.Since(began) - wait
	cores, whole := used.cores()
	r.cores = cores * whole.Seconds() / r.took.Seconds()
	c.notef("%s: accepted in %.1f s, ended %.1f s later", w.key, accepted.Sub(began).Seconds(), (time.Since(accepted) - wait).Seconds())
	r.made = c.made(ctx).minus(before)
	return r
}

// ended returns the number of receivers or triggers that have their durable end.
func (c *serverChain) ended(ctx context.Context, w chainWork) int64 {
	if w.step.Target != load.Trigger {
		return c.m.count()
	}
	return int64(c.metrics(ctx)[`notifyd_triggers_ended_total{state="FIRED"}`])
}

func (c *serverChain) metrics(ctx context.Context) map[string]float64 {
	return rig.Must(rig.Scrape(ctx, "http://"+c.node.Admin()+"/metrics"))
}

// made returns the number of things that were sent to the servers up to now.
func (c *serverChain) made(ctx context.Context) (m made) {
	ends := rig.Must(c.adm.ListEndOffsets(ctx))
	ends.Each(func(o kadm.ListedOffset) { m.records += float64(o.Offset) })
	dirs := rig.Must(c.adm.DescribeAllLogDirs(ctx, nil))
	dirs.Each(func(d kadm.DescribedLogDir) { m.recordBytes += float64(d.Size()) })
	all := c.metrics(ctx)
	of := func(server, kind string) float64 {
		return all[fmt.Sprintf(`notifyd_server_requests_total{kind=%q,server=%q}`, kind, server)]
	}
	m.swaps, m.serial, m.reads = of("cassandra", "swap"), of("cassandra", "serial_read"), of("cassandra", "read")
	m.writes, m.rows, m.bytes, m.logged = of("cassandra", "write"), of("cassandra", "row"), of("cassandra", "byte"), of("cassandra", "logged_batch")
	m.scattered, m.apart = of("cassandra", "scattered_batch"), of("cassandra", "scattered_row")
	m.commands, m.trips = of("redis", "command"), of("redis", "round_trip")
	m.kafka = log.Counts{
		Produce: int64(of("kafka", "produce")), ProduceBatches: int64(of("kafka", "produce_batch")), Fetch: int64(of("kafka", "fetch")),
		FetchBatches: int64(of("kafka", "fetch_batch")), Commit: int64(of("kafka", "commit")), Heartbeat: int64(of("kafka", "heartbeat")), Other: int64(of("kafka", "other")),
	}
	return m
}

// floor repeats the requests of the chain with the client libraries, and returns how long that
// took. The parameter m has the counts of the chain, and requests is the number of its HTTP
// requests.
//
// Each caller sends an HTTP request to a server that only accepts. Then it appends a part of the
// records and waits until they are acknowledged. It repeats this until all requests are sent. At
// the same time, other callers send the same number of statements to Cassandra and commands to
// Redis as the chain.
func (c *serverChain) floor(ctx context.Context, m made, body []byte, requests, callers int) time.Duration {
	value := noise(int(m.recordBytes / max(m.records, 1)))
	transport := &http.Transport{MaxIdleConnsPerHost: callers}
	defer transport.CloseIdleConnections()
	web := &http.Client{Transport: transport}
	var g errgroup.Group
	began := time.Now()
	g.Go(func() error {
		return rig.Try(func() {
			manyOf(ctx, requests, callers, func(i int) {
				resp, err := web.Post(c.null.URL, "application/json", bytes.NewReader(body))
				rig.Ok(err)
				rig.Must(io.Copy(io.Discard, resp.Body))
				rig.Ok(resp.Body.Close())
				recs := make([]*kgo.Record, shareOf(m.records, requests, i))
				for i := range recs {
					// The key is a user, as in the product. The keys decide how many batches the
					// records need.
					recs[i] = &kgo.Record{Topic: c.topic, Key: strconv.AppendUint(nil, rand.Uint64(), 36), Value: value}
				}
				rig.Ok(c.kafka.ProduceSync(ctx, recs...).FirstErr())
			})
		})
	})
	g.Go(func() error { return rig.Try(func() { c.statements(ctx, m) }) })
	g.Go(func() error {
		return rig.Try(func() {
			trips := int(m.trips)
			manyOf(ctx, trips, chainCallers, func(i int) {
				rig.Must(c.redis.Pipelined(ctx, func(p goredis.Pipeliner) error {
					for k := range shareOf(m.commands, trips, i) {
						p.Set(ctx, fmt.Sprintf("%s-%d-%d", c.topic, i, k), "value of a hundred bytes", time.Minute)
					}
					return nil
				}))
			})
		})
	})
	rig.Ok(g.Wait())
	return time.Since(began)
}

func acceptAll(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // fails only if the client has closed the connection
	w.WriteHeader(http.StatusAccepted)
}

// shareOf divides total (rounded down) into n nearly equal whole numbers. It returns the number
// with index i.
func shareOf(total float64, n, i int) int {
	return int(total)*(i+1)/n - int(total)*i/n
}

// statements runs the Cassandra statements of the floor in random order, as the chain mixes them.
func (c *serverChain) statements(ctx context.Context, m made) {
	type statement struct {
		// 'w': write of rows in one partition; 'a': batch of several partitions; 'r': read; 's':
		// serial read; 'c': conditional write.
		kind byte
		rows int // number of rows in a write
	}
	var all []statement
	for _, k := range []struct {
		kind    byte
		n, rows float64
	}{{'w', m.writes + m.logged, m.rows - m.apart}, {'a', m.scattered, m.apart}, {'r', m.reads, 0}, {'s', m.serial, 0}, {'c', m.swaps, 0}} {
		for i := range int(k.n) {
			all = append(all, statement{k.kind, shareOf(k.rows, int(k.n), i)})
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	data := noise(max(int(m.bytes/max(m.rows, 1)), rowBytes))
	bare := &cassandraBench{bench: c.bench, session: c.session}
	manyOf(ctx, len(all), chainCallers, func(i int) {
		base := notify.NewBase(time.Now())
		switch q := c.session; all[i].kind {
		case 'w':
			ks := make([]notify.RowKey, all[i].rows)
			for i := range ks {
				ks[i].Chunk = notify.Chunk{Base: base, Block: uint32(i)}
			}
			bare.writeByPartition(ctx, bareRows(ks, data))
		case 'a':
			bare.writeBatch(ctx, gocql.UnloggedBatch, insertsApart(all[i].rows, data))
		case 'r', 's':
			k := notify.RowKey{Chunk: notify.Chunk{Base: base}}
			s := q.Query(selectRow, bareKey(rowShard(base), &k)...)
			if all[i].kind == 's' {
				s = s.Consistency(gocql.LocalSerial)
			}
			rig.Ok(s.Iter().Close())
		case 'c':
			_ = rig.Must(q.Query(`INSERT INTO swapped (id, value) VALUES (?, ?) IF NOT EXISTS`, base.String(), data).MapScanCASContext(ctx, map[string]any{}))
		}
	})
}

// insertsApart returns n inserts, each into another partition.
func insertsApart(n int, data []byte) []insert {
	out := make([]insert, n)
	for i := range out {
		b := notify.NewBase(time.Now())
		p := minuteShard{rand.Int64(), 0}
		out[i] = insert{insertRow, append(bareKey(p, &notify.RowKey{Chunk: notify.Chunk{Base: b}}), data, keepSeconds)}
	}
	return out
}

// connect opens the clients of the floor. It creates the topic of the floor and a table named
// "swapped".
func (c *serverChain) connect(addresses map[string]string, keyspace string) {
	c.topic = keyspace + "-floor"
	c.kafka = rig.Must(kgo.NewClient(kgo.SeedBrokers(addresses["kafka"]), kgo.ProducerLinger(lingerTime), kgo.MaxBufferedRecords(chainCallers*100), kgo.ProducerBatchMaxBytes(batchBytes), kgo.WithHooks(&c.asked)))
	c.adm = kadm.NewClient(c.kafka)
	rig.Must(c.adm.CreateTopic(context.Background(), kafkaPartitions, 1, nil, c.topic))
	cl := gocql.NewCluster(addresses["cassandra"])
	cl.Keyspace, cl.Consistency, cl.SerialConsistency, cl.NumConns = keyspace, gocql.LocalQuorum, gocql.LocalSerial, 4
	cl.Timeout, cl.WriteTimeout, cl.ConnectTimeout = time.Minute, time.Minute, time.Minute
	cl.PoolConfig.HostSelectionPolicy = gocql.TokenAwareHostPolicy(gocql.RoundRobinHostPolicy())
	c.session = rig.Must(cl.CreateSession())
	rig.Ok(c.session.Query(`CREATE TABLE swapped (id text PRIMARY KEY, value blob)`).ExecContext(context.Background())) // for conditional writes of the floor
	c.redis = goredis.NewClient(&goredis.Options{Addr: addresses["redis"], PoolSize: chainCallers, ReadTimeout: time.Minute, WriteTimeout: time.Minute})
}

func (c *serverChain) close(ctx context.Context, postgres, keyspace string) {
	conn := rig.Must(pgx.Connect(ctx, postgres))
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "DROP DATABASE "+keyspace+" WITH (FORCE)"); err != nil {
		c.notef("could not remove the database %s: %v", keyspace, err)
	}
	if err := c.session.Query(`DROP KEYSPACE ` + keyspace).ExecContext(ctx); err != nil {
		c.notef("could not remove the keyspace %s: %v", keyspace, err)
	}
	topics, err := c.adm.ListTopics(ctx)
	if err == nil {
		own := slices.DeleteFunc(topics.Names(), func(name string) bool { return !strings.HasPrefix(name, keyspace) })
		_, err = c.adm.DeleteTopics(ctx, own...)
	}
	if err != nil {
		c.notef("could not remove the topics %s-*: %v", keyspace, err)
	}
	c.session.Close()
	c.adm.Close()
	_ = c.redis.Close()
}
