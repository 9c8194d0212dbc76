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

// stores are the engines of a process as its stages see them: one field for each contract,
// whichever engine implements it. openEmbedded and openDistributed fill them.
type stores struct {
	id string // of the installation; the same in every process over the same stores

	status    engine.Status
	history   history.Reader
	audited   conserve.History // the history as an audit reads it
	prefs     users.ProfileStore
	callers   engine.Callers
	cancels   users.CancelStore
	campaigns *store.Campaigns
	idem      request.Idem
	exclusive bool         // no other process can have idem open
	spill     intake.Spill // nil: there is none, and otp and alert are refused like others while the log is away
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
	lease     engine.Lease      // of timer shards, and of parts that one process runs for all; nil: this process is alone
	beats     engine.Heartbeats // of processes that share work
	broadcast engine.Broadcast  // to other processes; nil: this process is alone

	queue  func(name string, maxReceives int) (engine.Queue, error)
	bodies func(ctx context.Context, name string, fn func(body []byte) error) error // calls fn with a queue's messages; nil: the engine cannot list them

	conn       log.Conn                              // of the log
	spread     func(topic string) notify.Spread      // over the partitions of a lane's topic
	partitions func(topic string) (n int, err error) // for keys now; see log.ProducerConfig. Nil: the numbers never change
	gate       intake.Gate                           // whether the log takes more; nil: appends show it
	bulkGate   func() error                          // gate, for bulk lanes; nil: gate
	laterGate  func() error
	appended   func(bytes int)                                                           // called with what intake appends; may be nil
	ready      func() error                                                              // returns what keeps the process from its work
	firstCopy  func(ctx context.Context, c notify.Chunk, d uint64) (engine.Found, error) // returns a chunk from the history
}

// nearQueue is the queue of near timers, for when several processes write timers. Through it
// the owner of a shard gets timers that its scan may have passed already.
const (
	nearQueue    = "near-timers"
	nearReceives = 100 // when a message dies, the sweeper releases the timer by its row
)

// queues are the delay queues that every installation has.
var queues = []struct {
	name     string
	receives int
}{{triggerQueue, triggerReceives}, {nearQueue, nearReceives}}
