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

// stores holds the engines of a process in the form in which the stages use them. It has one field for
// each contract, whichever engine implements the contract. openEmbedded and openDistributed set the
// fields.
type stores struct {
	id string // id of the installation; equal in every process with the same stores

	status    engine.Status
	history   history.Reader
	audited   conserve.History // the history in the form that an audit reads
	prefs     users.ProfileStore
	callers   engine.Callers
	cancels   users.CancelStore
	campaigns *store.Campaigns
	idem      request.Idem
	exclusive bool // true: no other process can have the store in the field idem open
	// spill is nil if there is no spill buffer. While the log is unavailable, otp and alert are then
	// refused like all other notifications.
	spill     intake.Spill
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
	jobLease  engine.Lease      // lease of jobs
	lease     engine.Lease      // lease of timer shards, and of parts that one process runs for all; nil: there is only this process
	beats     engine.Heartbeats // heartbeats of processes that share work
	broadcast engine.Broadcast  // messages to other processes; nil: there is only this process

	queue  func(name string, maxReceives int) (engine.Queue, error)
	bodies func(ctx context.Context, name string, fn func(body []byte) error) error // calls fn with the body of each message of a queue; nil: the engine cannot list messages

	conn       log.Conn                              // connection to the log
	spread     func(topic string) notify.Spread      // the partitions of a lane's topic over which users are spread
	partitions func(topic string) (n int, err error) // number of partitions over which keys are spread now, see log.ProducerConfig; nil: the numbers never change
	gate       intake.Gate                           // decides whether the log accepts more records; nil: only a failed append shows that it does not
	bulkGate   func() error                          // the same decision for bulk lanes; nil: bulk lanes use the field gate
	laterGate  func() error
	appended   func(bytes int)                                                           // called with the number of bytes that intake appends; may be nil
	ready      func() error                                                              // returns the reason why the process cannot do its work, or nil
	firstCopy  func(ctx context.Context, c notify.Chunk, d uint64) (engine.Found, error) // returns, from the history, a copy of the chunk c whose receivers have the digest d
}

// nearQueue is the queue of near timers: timers that were due very soon when they were stored. It is
// used if several processes write timers. The owner of a shard reads from this queue the timers that
// its scan may have missed.
const (
	nearQueue    = "near-timers"
	nearReceives = 100 // a message that is received this often becomes dead; the owner of the shard then releases the timer from its row
)

// queues lists the delay queues that every installation has.
var queues = []struct {
	name     string
	receives int
}{{triggerQueue, triggerReceives}, {nearQueue, nearReceives}}
