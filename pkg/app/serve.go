package app

import (
	"context"
	"crypto/sha256"
	"net"
	"net/http"
	"strconv"

	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/intake"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/server"
)

// noPort reports whether the value of log.listen means that the embedded log has no port.
func noPort(addr string) bool { return addr == "" || addr == "off" }

func portOf(addr string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, notify.Invalid("bad_address", "log.listen", err.Error())
	}
	if port, err = strconv.Atoi(text); err != nil {
		return "", 0, notify.Invalid("bad_address", "log.listen", strconv.Quote(text)+" is not the number of a port")
	}
	return host, port, nil
}

// countedLog counts the bytes that intake appends to the embedded log, and reports them to the
// guard of the log. So the guard can enforce the limit of the log's size even between two
// measurements of the disk.
type countedLog struct {
	intake.Log
	appended func(bytes int)
}

func (l countedLog) Append(ctx context.Context, recs []log.Record) error {
	n := 0
	for i := range recs {
		n += len(recs[i].Value) + 80
	}
	l.appended(n)
	return l.Log.Append(ctx, recs)
}

// intakeLog returns the log for intake: the producer, in the wrappers that the engines need.
func (n builder) intakeLog() intake.Log {
	var log intake.Log = n.producer
	if n.servers != nil && n.servers.probe != nil {
		log = newPatientLog(log, n.servers.probe.Err)
	}
	if n.st.appended != nil {
		log = countedLog{n.producer, n.st.appended}
	}
	if n.tracer == nil {
		return log
	}
	return tracedLog{log, n.tracer}
}

func (n builder) buildServer() error {
	cfg := &n.cfg
	err := cfg.Auth.Check()
	if err != nil {
		return err
	}
	if n.verifier, err = server.NewVerifier(cfg.Auth); err != nil {
		return err
	}
	key, err := cluster.MetaSecret(context.Background(), n.st.meta, pageKeyMeta)
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte("cursors of " + n.st.id))
	list, _ := n.st.history.(server.Lister)
	see := views(n)
	api := cfg.API
	api.Listener, api.AdminListener, api.CursorKey, api.DrainTimeout = n.listener, n.adminListener, sum[:], cfg.Workers.Drain
	var shared server.SharedTokens
	if n.servers != nil && n.servers.limits != nil {
		shared = n.servers.limits
	}
	n.server, err = server.New(api, server.Deps{
		SharedTokens: shared, Grants: n.grants, LoadLocal: n.embedded != nil && !cfg.callsReal(),
		Auth: n.verifier, Intake: n.intake, Users: n.prefs, History: n.st.history, List: list, OmitsFanouts: n.embedded == nil && !cfg.Cassandra.EveryReceiver, Status: n.st.status,
		DeadLetters: n.feeds, Cancels: n.st.cancels, Campaigns: n.st.campaigns, Callers: n.outcomeCallers.Watch(n.st.callers),
		Schedules: n.later.schedules, Triggers: n.later.triggers, Circuits: allCircuits{n.circuits, n.cards}, TestProvider: see.testProvider, CheckURL: n.later.checkURL, AdmitURL: n.later.egress.Admit, Jobs: n.jobs, Audit: n.audit, PlainCallbacks: cfg.Triggers.Plain,
		Receipts: n.receipts.webhooks(), Tail: see.outcomeTail(), Doctor: see.doctor, Lag: see.lag, Rates: cardWriter(n).allRates, Accounts: cardWriter(n).allAccounts, Page: func(of http.Handler) http.Handler { return newPage(n.Node, of, key) }, Conservation: n.Audit, Lanes: n.lanes, CampaignHolds: n.campaigns, Suppressions: n.prefs, Backup: see.backup, Debug: see.debug, Ready: n.Ready,
		Warnings: see.warnings, Version: cfg.Version,
		LaneStop: n.callStop, MailHold: cfg.Workers.BatchAge, Admission: n.admission,
		Metrics: n.metrics.Registry, Hooks: n.metrics.HTTP(), Log: n.log, Tracer: n.tracer,
	})
	return err
}

// warnings returns the codes of problems that do not stop the API from accepting requests.
func (n views) warnings() (codes []string) {
	if n.embedded != nil && len(n.embedded.broker.Losses()) > 0 {
		codes = append(codes, "log_damaged")
	}
	if n.embedded != nil && len(n.embedded.lostGroupPositions) > 0 {
		codes = append(codes, "positions_lost")
	}
	if len(n.groups.heldPartitions()) > 0 {
		codes = append(codes, "store_newer")
	}
	return codes
}

// outcomeTail returns the tail of the outcomes of all processes.
func (n views) outcomeTail() server.Tail {
	if n.servers != nil {
		return n.servers.tails
	}
	return n.tail
}

// backup does what Backup does. It returns the type that the server needs.
func (n views) backup(ctx context.Context) (server.Snapshot, error) {
	s, err := n.Backup(ctx)
	if err != nil {
		return nil, err
	}
	return s, nil
}
