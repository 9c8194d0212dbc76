package app

import (
	"context"

	"github.com/notifyd/notifyd/pkg/conserve"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/intake"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
	"github.com/notifyd/notifyd/pkg/store"
	"github.com/notifyd/notifyd/pkg/users"
)

// stores are the engines of a process as its stages see them: one field a
// contract, whoever keeps it. openEmbedded and openDistributed fill them.
type stores struct {
	id string // names the installation: the same in every process over the same stores

	status    engine.Status
	history   history.Reader
	audited   conserve.History // the history as an audit reads it
	prefs     users.ProfileStore
	callers   engine.Callers
	cancels   users.CancelStore
	campaigns *store.Campaigns
	idem      request.Idem
	exclusive bool         // no other process can have idem open
	spill     intake.Spill // nil: there is none, and critical messages are refused as others are while the log is away
	letters   engine.DeadLetters
	jobs      *store.Jobs
	audit     *store.Audit
	holds     *store.Holds
	meta      engine.Meta
	timers    engine.Timers
	cold      engine.ColdTimers
	schedules engine.Schedules
	triggers  engine.Triggers
	limits    limit.Blocks
	jobLease  engine.Lease      // of jobs
	lease     engine.Lease      // of timer shards, and of what one process does for all; nil: this process is alone
	beats     engine.Heartbeats // of those that share work
	broadcast engine.Broadcast  // to other processes; nil: this process is alone

	queue  func(name string, maxReceives int) (engine.Queue, error)
	bodies func(ctx context.Context, name string, fn func(body []byte) error) error // of a queue's messages; nil: they cannot be looked at

	conn       log.Conn                              // of the log
	spread     func(topic string) notify.Spread      // over the partitions of a lane's topic
	partitions func(topic string) (n int, err error) // for keys now; see log.ProducerConfig. Nil: the numbers never change
	gate       intake.Gate                           // whether the log takes more; nil: it says so itself
	bulkGate   func() error                          // gate, for bulk lanes; nil: gate
	laterGate  func() error
	appended   func(bytes int)                                                           // is told what intake adds; nil: nobody is
	ready      func() error                                                              // what keeps a process from its work; nil: nothing
	firstCopy  func(ctx context.Context, c notify.Chunk, d uint64) (engine.Found, error) // of a chunk, from the history
}

// nearQueue is the queue of near timers: where several processes write timers, the
// owner of a shard hears through it of what a scan may have passed.
const (
	nearQueue    = "near-timers"
	nearReceives = 100 // its row is released by the sweeper when its message dies
)

// queues are the delay queues that every installation has.
var queues = []struct {
	name     string
	receives int
}{{triggerQueue, triggerReceives}, {nearQueue, nearReceives}}
