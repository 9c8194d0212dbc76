package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/pkg/engine/postgres"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/users"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

// state is the answer of a worker to a line of its input. For the line "state", the answer has all
// fields except Bytes and OptedOut. For "collect", the worker first runs the garbage collector, and
// the answer also has Bytes. For "decide USER", the answer has only OptedOut.
type state struct {
	Partitions int           // number of assigned partitions of all topics
	Loaded     bool          // true: the users of all assigned partitions are loaded
	Held       int           // number of users in memory
	RSS        int           // resident memory in MiB
	Bytes      float64       // heap bytes per user in memory
	Load       time.Duration // how long the latest load took
	OptedOut   bool          // true: the worker would not send to the user
}

// member is a member of one consumer group for each topic. It loads the users of its assigned
// partitions, as a worker of notifyd does. The topics have no records.
type member struct {
	prefs      *users.Service
	partitions int

	mu       sync.Mutex
	holdings map[*users.Holding]bool
}

// Assigned implements log.Handler.
func (m *member) Assigned(ctx context.Context, tp log.TopicPartition) log.PartitionHandler {
	h := m.prefs.Hold(notify.Push, m.partitions, tp.Partition)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holdings[h] = true
	context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.holdings, h)
		h.Release()
	})
	return ignores{}
}

type ignores struct{}

func (ignores) Handle(_ context.Context, msgs []*log.Msg) error {
	for _, m := range msgs {
		m.Done()
	}
	return nil
}

func heapNow() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// work runs a worker until its standard input ends or the process gets SIGTERM.
func (o *options) work() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	store := rig.Must(postgres.Open(ctx, postgres.Config{DSN: o.postgres, Timeout: 30 * time.Second}))
	defer func() { _ = store.Close() }()
	empty := heapNow()
	m := &member{prefs: rig.Must(users.New(store.Prefs(), users.Config{Shares: true})), partitions: o.partitions, holdings: map[*users.Holding]bool{}}
	rig.Ok(m.prefs.Load(ctx))
	inner, stopInner := context.WithCancel(context.WithoutCancel(ctx))
	defer stopInner()
	var wg sync.WaitGroup
	wg.Go(func() { _ = m.prefs.Run(inner) })
	wg.Go(func() { _ = store.Listen(inner, m.prefs.Wake) })
	var groups sync.WaitGroup
	for _, topic := range strings.Split(o.topics, ",") {
		g := rig.Must(log.NewGroup(log.GroupConfig{Conn: log.Conn{Brokers: []string{o.kafka}}, Group: topic + "-workers", Topics: []string{topic}, Owner: o.owner}, m))
		groups.Go(func() { rig.Ok(g.Run(ctx)) })
	}
	go func() {
		defer stop()
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			rig.Ok(json.NewEncoder(os.Stdout).Encode(m.answer(ctx, in.Text(), empty)))
		}
	}()
	groups.Wait()
	stopInner()
	wg.Wait()
	return nil
}

func (m *member) answer(ctx context.Context, line string, empty float64) (s state) {
	what, user, _ := strings.Cut(line, " ")
	if what == "decide" {
		decide := func() users.Action {
			return m.prefs.Snapshot().Decide([]byte(user), notify.Push, notify.Marketing, time.Now()).Action
		}
		if decide() == users.Unknown { // not in memory: fetch the user and decide again, as a worker of notifyd does
			rig.Ok(m.prefs.Fetch(ctx, notify.Push, [][]byte{[]byte(user)}))
		}
		s.OptedOut = decide() == users.OptedOut
		return s
	}
	m.mu.Lock()
	s.Partitions, s.Loaded = len(m.holdings), true
	for h := range m.holdings {
		s.Loaded = s.Loaded && h.Loaded()
	}
	m.mu.Unlock()
	s.Held, s.Load = m.prefs.HeldUsers(), m.prefs.LastLoad()
	if what == "collect" {
		s.Bytes = (heapNow() - empty) / float64(max(s.Held, 1))
	}
	s.RSS = rig.RSS(os.Getpid())
	return s
}

// child is a worker process. The main process writes lines to it and reads its answers, through
// pipes.
type child struct {
	*rig.Child

	in  io.WriteCloser
	out *bufio.Scanner
}

func spawn(c *exec.Cmd) (*child, error) {
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p, err := rig.Spawn(c)
	return &child{p, in, bufio.NewScanner(out)}, err
}

func (c *child) ask(line string) (s state, err error) {
	if _, err := fmt.Fprintln(c.in, line); err != nil {
		return s, err
	}
	if !c.out.Scan() {
		return s, errors.Join(errors.New("a worker closed its output before it answered"), c.out.Err())
	}
	err = json.Unmarshal(c.out.Bytes(), &s)
	return s, err
}

func (c *child) stop() error { return c.Stop() }

func (c *child) end() {
	if !c.Gone() {
		_ = c.Kill()
	}
}

// dropTopics deletes the run's topics and consumer groups from the brokers. If that fails, it only
// prints a message.
func (o *options) dropTopics(ctx context.Context, topics []string) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(o.kafka))
	if err != nil {
		return
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	if _, err := adm.DeleteTopics(ctx, topics...); err != nil {
		fmt.Println("could not remove the topics:", err)
	}
	_, _ = adm.DeleteGroups(ctx, topics[0]+"-workers", topics[1]+"-workers")
}
