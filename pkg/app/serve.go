package app

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/intake"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/provider"
	"github.com/notifyd/notifyd/pkg/server"
)

// noPort reports whether log.listen asks for no port.
func noPort(addr string) bool { return addr == "" || addr == "off" }

func portOf(addr string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, notify.Invalid("bad_address", "log.listen", err.Error())
	}
	port, err = strconv.Atoi(text)
	return host, port, err
}

// countedLog tells the guard of the embedded log what intake adds, so that the
// cap holds between two measures of the disk.
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

func (n *Node) counted() intake.Log {
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

func (n *Node) buildServer() error {
	cfg := &n.cfg
	auth := server.AuthConfig{
		Issuer: cfg.Auth.Issuer, Audience: cfg.Auth.Audience, JWKSURL: cfg.Auth.JWKSURL, JWKSFile: cfg.Auth.JWKSFile,
		KeyFile: cfg.Auth.KeyFile, SecretFile: cfg.Auth.HS256,
	}
	err := cfg.CheckAuth()
	if err != nil {
		return err
	}
	if n.verifier, err = server.NewVerifier(auth); err != nil {
		return err
	}
	key, err := pageKey(context.Background(), n.st.meta)
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte("cursors of " + n.st.id))
	admin := cfg.API.Admin
	if admin == "" {
		admin = server.NoAdmin
	}
	list, _ := n.st.history.(engine.HistoryList)
	n.server, err = server.New(server.Config{
		Listener: n.listener, AdminListener: n.adminListener, AdminAddr: admin, Plaintext: cfg.API.Plaintext, CallerRate: cfg.API.Rate, CallerBurst: cfg.API.Burst,
		BulkMemory: int64(cfg.API.BodyMiB) << 20, CursorKey: sum[:], DrainTimeout: cfg.Workers.Drain,
	}, server.Deps{
		Auth: n.verifier, Intake: n.intake, Users: n.prefs, History: n.st.history, List: list, Status: n.st.status,
		DeadLetters: n.feeds, Cancels: n.st.cancels, Campaigns: n.st.campaigns, Callers: n.asked.Watch(n.st.callers),
		Schedules: n.later.schedules, Triggers: n.later.triggers, Circuits: n.circuits, TestProvider: n.testProvider, CheckURL: n.checkURL, AdmitURL: n.later.egress.Admit, Jobs: n.jobs, Audit: n.audit, PlainCallbacks: cfg.Triggers.Plain,
		Receipts: n.receipts(), Tail: n.tailed(), Doctor: n.doctor, Lag: n.lag, Rates: n.rates.Report, Accounts: n.accounts, Page: func(of http.Handler) http.Handler { return n.page(of, key) }, Conservation: n.Audit, Lanes: n.lanes, CampaignHolds: n.campaigns, Suppressions: n.prefs, Backup: n.backup, Debug: n.debug, Ready: n.Ready,
		Warnings: n.warnings, Version: cfg.Version,
		Standing: n.standing, MailHold: cfg.Workers.BatchAge,
		Metrics: n.metrics.Registry, Hooks: n.metrics.HTTP(), Log: n.log, Tracer: n.tracer,
	})
	return err
}

// standing says why no call of a lane can be made now, in this process or in another.
func (n *Node) standing(l notify.Lane) (server.Standing, bool) {
	st, ok := n.ownStanding(l)
	if !ok && n.servers != nil {
		return n.servers.standings.Of(l, time.Now())
	}
	return st, ok
}

// ownStanding says why this process can make no call of a lane now.
func (n *Node) ownStanding(l notify.Lane) (server.Standing, bool) {
	routes := n.provs.routes(l.Channel)
	c, ok := n.health.Standing(&routes, time.Now())
	return server.Standing{Account: c.Account, Code: c.Code, Blocked: !c.Blocked.IsZero(), Until: c.RetryAt}, ok
}

// receipts are the webhooks of the providers that confirm later.
func (n *Node) receipts() map[string]server.Receipt {
	out := map[string]server.Receipt{}
	if tw := n.provs.twilio; tw != nil {
		out["twilio"] = server.Receipt{Signature: provider.TwilioSignature, Take: func(r *http.Request, body []byte) error {
			rs, err := provider.ParseTwilioPool(withBody(r, body), tw.AuthToken, n.cfg.publicURL())
			return n.received(r.Context(), notify.SMS, rs, err)
		}}
	}
	if key := n.provs.sendgridKey; key != nil {
		out["sendgrid"] = server.Receipt{Signature: provider.SendGridSignature, Take: func(r *http.Request, body []byte) error {
			rs, err := provider.ParseSendGrid(withBody(r, body), key, time.Now())
			return n.received(r.Context(), notify.Email, rs, err)
		}}
	}
	return out
}

// received stores what receipts say: a row each, beside the rows of the calls
// they are about, dead addresses on the suppression list, and an opt-out of marketing and
// digest where the receiver told the provider to stop.
func (n *Node) received(ctx context.Context, ch notify.Channel, rs []provider.Receipt, err error) error {
	if err != nil {
		return err
	}
	var rows []notify.Row
	var ids []notify.ID
	now := time.Now().UnixMilli()
	for i := range rs {
		r := &rs[i]
		if r.HasRef && r.State != notify.None {
			key := notify.ReceiptKey(r.Ref.Key, r.Ref.Index, r.Ref.Addr, r.State)
			ids = append(ids, r.Ref.ID())
			rows = append(rows, notify.Row{
				Key: key, Count: 1, Done: true, Channel: ch, Updated: now, Accepted: r.Ref.ID().Base.Time().UnixMilli(),
				Default:    notify.Exception{State: r.State, Code: r.Code, Provider: r.Provider, Receipt: r.ProviderID},
				Exceptions: []notify.Exception{{Addr: r.Ref.Addr, State: r.State, Code: r.Code, Provider: r.Provider, Receipt: r.ProviderID}},
			})
		}
		if (r.DeadAddress || r.OptedOut) && r.HasRef && r.Address != "" {
			found, err := n.st.history.Find(ctx, r.Ref.ID())
			if err != nil {
				n.log.Warn("receipt of a dead address or an opt-out without its user", "err", err)
				continue
			}
			if r.OptedOut {
				err = n.prefs.Unsubscribe(ctx, string(found.User), ch)
			} else {
				err = n.prefs.Suppress(ctx, string(found.User), ch, r.Address, r.Code)
			}
			if err != nil {
				return err
			}
		}
	}
	n.metrics.ReceiptsStored(ch, len(rows))
	if len(rows) == 0 {
		return nil
	}
	if err := n.st.status.Put(ctx, rows); err != nil {
		return err
	}
	// An error makes the provider send the receipt again; a failure told twice
	// is one dead letter.
	if err := n.endedByReceipt(ctx, ids, rows); err != nil {
		return err
	}
	for i := range rows {
		if rows[i].Default.State == notify.Failed {
			if err := n.failedByReceipt(ctx, ids[i], &rows[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// failedByReceipt tells the failed feed of a notification whose last address a
// receipt declared unreachable.
func (n *Node) failedByReceipt(ctx context.Context, id notify.ID, row *notify.Row) error {
	found, err := n.st.history.Find(ctx, id)
	if err != nil {
		return err
	}
	all, err := n.st.status.Chunk(ctx, row.Key.Chunk)
	if err != nil {
		return err
	}
	out := notify.Fold(all, row.Key.First, found.Pos)
	if out.State != notify.Failed {
		return nil // another address was reached
	}
	e, x := &found.Envelope, &row.Default
	b, err := json.Marshal(notify.Failure{
		Version: 1, ID: id.String(), Epoch: int(row.Key.Epoch), Caller: e.Caller, Campaign: e.Campaign,
		Channel: e.Channel.String(), Category: e.Category.String(), User: string(found.User), Template: e.Content.Template,
		Class: notify.ClassPermanent.String(), Code: x.Code, Provider: x.Provider, Attempts: int(row.Key.Attempt) + 1,
		Accepted: e.Accepted, Failed: row.Updated, Expires: e.Expires, Trace: e.Trace,
		Chunk: fmt.Sprintf("%d.%d", e.Chunk.Partition, e.Chunk.Block), Topic: found.Topic, Partition: found.LogPart, Offset: found.Offset,
	})
	if err != nil {
		return err
	}
	return n.producer.Append(ctx, []log.Record{{Topic: notify.TopicFailed, Partition: -1, Key: found.User, Value: b}})
}

// publicURL is where providers reach the API.
func (c *Config) publicURL() string {
	if c.API.PublicURL != "" {
		return strings.TrimRight(c.API.PublicURL, "/")
	}
	return "http://" + c.API.Listen
}

// Ready is nil when the process can do its work; else it says why not.
func (n *Node) Ready(context.Context) error {
	if err := n.st.ready(); err != nil {
		return err
	}
	if (n.own != nil || len(n.tasks.Lanes) > 0) && !n.prefs.Fresh(time.Now()) {
		return notify.Unavailable("preferences", time.Second, fmt.Errorf("snapshot is %s old", n.prefs.Age(time.Now())))
	}
	return nil
}

// warnings are what is wrong although requests are taken.
func (n *Node) warnings() (codes []string) {
	if n.own != nil && len(n.own.broker.Losses()) > 0 {
		codes = append(codes, "log_damaged")
	}
	if len(n.posLost) > 0 {
		codes = append(codes, "positions_lost")
	}
	if len(n.heldPartitions()) > 0 {
		codes = append(codes, "store_newer")
	}
	return codes
}

// tailed is what sees outcomes as they happen: nil in a process over servers whose
// configured roles have no workers, for it never sees one.
func (n *Node) tailed() server.Tail {
	if tasks, err := cluster.ParseRoles(n.cfg.Roles); n.own == nil && err == nil && len(tasks.Lanes) == 0 {
		return nil
	}
	return n.tail
}
