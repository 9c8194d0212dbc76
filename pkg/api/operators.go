package api

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Lane is one lane of the workers: "push", "push-bulk", "sms" and so on.
type Lane struct {
	Name     string     `json:"name"`
	Paused   bool       `json:"paused"`
	Since    *time.Time `json:"since,omitempty"`  // of the pause
	By       string     `json:"by,omitempty"`     // who paused it
	Reason   string     `json:"reason,omitempty"` // why
	Lag      int64      `json:"lag"`              // records of the log not read yet, first attempts and retries
	InFlight int        `json:"in_flight"`        // records read and not done
	Stands   string     `json:"stands,omitempty"` // why no call can be made now, paused or not
}

// Lanes is the answer to GET /v1/ops/lanes.
type Lanes = List[Lane]

// Lanes lists the lanes.
func (cl *Client) Lanes(ctx context.Context) (Lanes, error) {
	return fetch[Lanes](ctx, cl, "/v1/ops/lanes", nil)
}

// LaneChange is the body of PUT /v1/ops/lanes/{name}: what a lane is set to.
type LaneChange struct {
	Paused *bool  `json:"paused"` // required
	Reason string `json:"reason,omitempty"`
}

// SetLane pauses a lane, or lets it go on. The pause holds across restarts.
func (cl *Client) SetLane(ctx context.Context, name string, paused bool, reason string) (Lane, error) {
	return send[Lane](ctx, cl, http.MethodPut, "/v1/ops/lanes/"+url.PathEscape(name), LaneChange{&paused, reason}, true)
}

// CampaignHold is what holds a campaign back.
type CampaignHold struct {
	Paused bool      `json:"paused"`
	Rate   float64   `json:"rate"` // receivers a second of each channel, over all processes; 0: no limit
	Since  time.Time `json:"since,omitzero"`
	By     string    `json:"by,omitempty"`
	Reason string    `json:"reason,omitempty"`
}

// Campaign is a campaign in a list. GET /v1/campaigns/{id} counts its receivers by state.
type Campaign struct {
	CampaignID string        `json:"campaign_id"`
	Caller     string        `json:"caller"`
	CreatedAt  time.Time     `json:"created_at"`
	Parts      int           `json:"parts"`
	Accepted   int64         `json:"accepted"` // receivers, of all parts
	Rejected   int64         `json:"rejected"`
	Hold       *CampaignHold `json:"hold,omitempty"` // nil: nothing holds it back
}

// CampaignPage is a page of campaigns, the newest first.
type CampaignPage = List[Campaign]

// Campaigns lists campaigns, the newest first. caller is for operators; empty means
// all that the token may see.
func (cl *Client) Campaigns(ctx context.Context, caller string, p Page) (CampaignPage, error) {
	q := url.Values{}
	set(q, "caller", caller)
	set(q, "cursor", p.After)
	setInt(q, "limit", int64(p.Limit))
	return fetch[CampaignPage](ctx, cl, "/v1/campaigns", q)
}

// CampaignChange changes a campaign's hold. A nil field keeps the stored value.
type CampaignChange struct {
	Paused *bool    `json:"paused,omitempty"`
	Rate   *float64 `json:"rate,omitempty"` // receivers a second, 0.1 to 10,000,000; 0: no limit
	Reason string   `json:"reason,omitempty"`
}

// SetCampaign pauses a campaign, lets it go on, or changes its rate. Receivers that
// were put off are looked at again within a minute of a new rate, and within ten
// minutes of the end of a pause. A hold survives restarts.
func (cl *Client) SetCampaign(ctx context.Context, id string, to CampaignChange) (CampaignHold, error) {
	return send[CampaignHold](ctx, cl, http.MethodPatch, "/v1/campaigns/"+url.PathEscape(id), to, true)
}

// Suppression is an address that nothing is sent to, whoever asks: a provider called
// it dead.
type Suppression struct {
	UserID  string `json:"user_id"` // whose profile says so
	Channel string `json:"channel"`
	Address string `json:"address"`
	Code    string `json:"code"` // what the provider said
}

// Suppressions is a page of the suppression list. It may be short, even empty, and
// not be the last: that one has no cursor.
type Suppressions = List[Suppression]

// SuppressionFilter selects suppressions; an empty field selects all.
type SuppressionFilter struct {
	UserID, Channel, Address, Code string
}

// Query is the filter as parameters.
func (f SuppressionFilter) Query() url.Values {
	q := url.Values{}
	for name, v := range map[string]string{"user_id": f.UserID, "channel": f.Channel, "address": f.Address, "code": f.Code} {
		set(q, name, v)
	}
	return q
}

// SuppressionLift names an address to send to again.
type SuppressionLift struct {
	Address string `json:"address"`
	UserID  string `json:"user_id,omitempty"` // off this profile alone; empty: off all
}

// SuppressionLifted is what became of it.
type SuppressionLifted struct {
	Address string `json:"address"`
	Lifted  int    `json:"lifted"`     // profiles that listed it
	Still   bool   `json:"suppressed"` // another profile lists it: it is still not sent to
}

// Suppressions lists addresses that nothing is sent to, by user and address. Scope
// observe.
func (cl *Client) Suppressions(ctx context.Context, f SuppressionFilter, cursor string, limit int) (Suppressions, error) {
	q := f.Query()
	set(q, "cursor", cursor)
	setInt(q, "limit", int64(max(limit, 0)))
	return fetch[Suppressions](ctx, cl, "/v1/ops/suppressions", q)
}

// LiftSuppression takes an address off the suppression list. Scope operate.
func (cl *Client) LiftSuppression(ctx context.Context, in SuppressionLift) (SuppressionLifted, error) {
	return send[SuppressionLifted](ctx, cl, http.MethodPost, "/v1/ops/suppressions:lift", in, false)
}

// ProviderTest is what a test of a provider found: a trial of the provider, or of each
// of its accounts or pools.
type ProviderTest struct {
	Provider string          `json:"provider"`
	DryRun   bool            `json:"dry_run"` // nothing was sent to anybody
	OK       bool            `json:"ok"`      // each trial is
	Items    []ProviderTrial `json:"items"`
}

// ProviderTrial is one call of a test.
type ProviderTrial struct {
	Account string `json:"account"` // "apns", "twilio:AC…"
	Verdict string `json:"verdict"` // ok, refused, credentials_refused, wrong_project, throttled, unreachable, unavailable
	Called  string `json:"called"`
	Status  int    `json:"status"` // HTTP; 0: no answer came
	Class   string `json:"class"`  // what a worker would make of the answer
	Code    string `json:"code,omitempty"`
	Detail  string `json:"detail,omitempty"` // what the provider or the network said
	TookMS  int64  `json:"took_ms"`
}

// ProviderTestRequest says where a test sends one real message; empty: nowhere.
type ProviderTestRequest struct {
	To string `json:"to,omitempty"`
}

// TestProvider lets the process that answers call a provider once: its dry run, or one
// real message. Only a dry run is repeated
// when its answer is lost.
func (cl *Client) TestProvider(ctx context.Context, name string, in ProviderTestRequest) (ProviderTest, error) {
	return send[ProviderTest](ctx, cl, http.MethodPost, "/v1/ops/providers/"+url.PathEscape(name)+"/test", in, in.To == "")
}

// States of a process, beside the codes of what keeps it from its work.
const (
	ProcessReady    = "ready"
	ProcessDraining = "draining"
	ProcessMissing  = "missing" // it stopped telling of itself and has not said that it ends
	ProcessUnknown  = "unknown" // what other processes tell cannot be read
)

// Process is a process of the cluster, as it told of itself last.
type Process struct {
	Name       string    `json:"name"` // its instance, with an ending where two processes have the same
	Host       string    `json:"host,omitempty"`
	Roles      []string  `json:"roles,omitempty"`
	Release    string    `json:"release,omitempty"`
	API        string    `json:"api,omitempty"`   // address of its API
	Admin      string    `json:"admin,omitempty"` // address of its metrics; empty: it has none
	StartedAt  time.Time `json:"started_at,omitzero"`
	State      string    `json:"state"`               // one of the above, or the code of what keeps it from its work: clock
	AgeSeconds float64   `json:"age_seconds"`         // since it told this
	Note       string    `json:"note,omitempty"`      // what is left out of what it told, or why State is unknown
	Providers  string    `json:"providers,omitempty"` // what it calls: one of ProviderModes, or ProvidersNone
}

// Missing reports whether what the process does now is not known.
func (p *Process) Missing() bool { return p.State == ProcessMissing || p.State == ProcessUnknown }

// Absence says in a sentence that the process did not answer.
func (p *Process) Absence() string {
	if p.State == ProcessUnknown {
		return p.Name + " are not known: " + p.Note
	}
	text := fmt.Sprintf("%s did not answer for %s", p.Name, time.Duration(p.AgeSeconds*float64(time.Second)).Round(time.Second))
	if about := strings.TrimSpace(strings.Join(p.Roles, ", ") + " on " + p.Host); p.Host != "" {
		text += " (" + about + ")"
	}
	return text
}

// ProcessRates is how much one process does now.
type ProcessRates struct {
	Process
	Rates []Rate     `json:"rates"` // none of a process that is missing
	Late  []Lateness `json:"late"`
}

// Sum returns the rates of the process, of all channels and of triggers together.
func (p *ProcessRates) Sum() Rate { return SumOf(p.Rates) }

// SumOf adds rates up.
func SumOf(rates []Rate) (sum Rate) {
	for _, r := range rates {
		sum.Accepted, sum.Reached, sum.Failed, sum.Other = sum.Accepted+r.Accepted, sum.Reached+r.Reached, sum.Failed+r.Failed, sum.Other+r.Other
	}
	return sum
}

// Rates is how much all processes do now.
type Rates struct {
	OverSeconds float64     `json:"over_seconds"` // the rates and lateness are of this long; 0: it has just started
	Rates       []Rate      `json:"rates"`
	Late        []Lateness  `json:"late"`
	Series      []RatePoint `json:"series"` // oldest first
	// Settings are the figures of the configuration of each process that answers.
	Settings []ProcessSettings `json:"settings"`
	// Processes are those of the cluster by name, missing ones among them; nil: there is
	// one process, with engines of its own.
	Processes []ProcessRates `json:"processes,omitempty"`
}

// Rate is what became of receivers, or of triggers, per second.
type Rate struct {
	What     string  `json:"what"`     // push, sms, email, trigger
	Accepted float64 `json:"accepted"` // made durable
	Reached  float64 `json:"reached"`  // SENT or DELIVERED; FIRED
	Failed   float64 `json:"failed"`
	Other    float64 `json:"other"` // other outcomes: deferred, suppressed, expired, cancelled, unknown
	// CallSeconds is how long a call of the provider took, on average; 0: there was none.
	// Workers have what is called together under way until the last answer.
	CallSeconds float64 `json:"call_seconds,omitempty"`
}

// ProcessSettings are those figures of a process's configuration that bound how much it
// does.
type ProcessSettings struct {
	Process     string            `json:"process,omitempty"`
	Roles       []string          `json:"roles,omitempty"`
	Channels    []ChannelSettings `json:"channels"`      // that it calls the providers of
	TimerShards int               `json:"timer_shards"`  // partitions of each minute
	CatchUpRate int               `json:"catch_up_rate"` // timers a second released of a backlog
	CallerRate  float64           `json:"caller_rate"`   // requests a second of a caller without a rate of its own
}

// ChannelSettings are the figures of a channel. 0 is what a channel does not have, or what
// a process does not know.
type ChannelSettings struct {
	Channel     string  `json:"channel"`
	Partitions  int     `json:"partitions"`             // of each of its topics
	InFlight    int     `json:"in_flight"`              // addresses at the provider at once
	Window      int     `json:"window"`                 // receivers of a claim window
	Connections int     `json:"connections,omitempty"`  // HTTP/2 connections to each provider of push
	Accounts    int     `json:"accounts,omitempty"`     // SMS accounts, or IP pools
	AccountRate float64 `json:"account_rate,omitempty"` // messages a second of each
	Parallel    int     `json:"parallel,omitempty"`     // requests at once of each account, over all processes
}

// Lateness is how late what was due came. The quantiles are upper bounds, of the
// buckets of a histogram; 0 where nothing came.
type Lateness struct {
	What string  `json:"what"` // timer, trigger
	N    float64 `json:"n"`
	P50  float64 `json:"p50_seconds"`
	P99  float64 `json:"p99_seconds"`
}

// RatePoint is the sums of Rates at one time.
type RatePoint struct {
	At       time.Time `json:"at"` // the end of its span
	Accepted float64   `json:"accepted"`
	Ended    float64   `json:"ended"` // reached and failed
}

// Account is one of the accounts, or IP pools, a provider is reached through, as
// the answering process sees it.
type Account struct {
	Provider     string     `json:"provider"`
	Process      string     `json:"process,omitempty"` // each process has an account's circuit and room for itself
	Account      string     `json:"account"`
	State        string     `json:"state"` // closed, open or half-open of its circuit; blocked: the provider asked to wait
	BlockedUntil *time.Time `json:"blocked_until,omitempty"`
	ProbeAt      *time.Time `json:"probe_at,omitempty"` // open: when the first call passes
	Reason       string     `json:"reason,omitempty"`
	Room         float64    `json:"room"`      // messages it takes at once now
	InFlight     int        `json:"in_flight"` // requests at it now
	Limit        int        `json:"limit"`     // of them: this process's part
}

// Accounts is the answer to GET /v1/ops/accounts.
type Accounts = List[Account]

// Rates returns how much all processes do now.
func (cl *Client) Rates(ctx context.Context) (Rates, error) {
	return fetch[Rates](ctx, cl, "/v1/ops/rates", nil)
}

// Accounts returns the accounts of providers, of each process that calls them.
func (cl *Client) Accounts(ctx context.Context) (Accounts, error) {
	return fetch[Accounts](ctx, cl, "/v1/ops/accounts", nil)
}

// Finding is one thing the doctor looked at.
type Finding struct {
	Check   string `json:"check"`
	Process string `json:"process,omitempty"` // what was looked at is of this process alone
	Level   string `json:"level"`             // "ok", "warn" or "fail"
	Detail  string `json:"detail"`
	Repair  string `json:"repair,omitempty"` // what to do; of level ok: nothing

	Used *float64 `json:"used,omitempty"` // of what there is, 0 to 1; nil: nothing that fills
}

// GroupLag is how far a consumer group is behind.
type GroupLag struct {
	Group    string `json:"group"`
	Topic    string `json:"topic"`
	Lag      int64  `json:"lag"`       // records not read yet
	InFlight int    `json:"in_flight"` // records read and not done
	Paused   int    `json:"paused"`    // partitions over their cap
	// LanePaused: operators have paused the group's lane.
	LanePaused bool `json:"lane_paused,omitempty"`
	// Deferred is what waits in the timer store to come to Topic again, the
	// largest first; nil: the process that answered has not counted it.
	Deferred []Deferred `json:"deferred"`
	// Members are the processes that work on the group's partitions of Topic; InFlight and
	// Paused are the sums of theirs. nil: there is one process.
	Members []GroupMember `json:"members,omitempty"`
}

// GroupMember is what one process has of a consumer group's topic.
type GroupMember struct {
	Process    string `json:"process,omitempty"`
	Partitions int    `json:"partitions"`
	InFlight   int    `json:"in_flight"`
	Paused     int    `json:"paused"` // partitions over their cap
}

// Deferred is what of a topic waits in the timer store for a later attempt: a
// retry, quiet hours, an open circuit or a blocked account.
type Deferred struct {
	Reason    string    `json:"reason"` // code of the failure or the wait
	Receivers int64     `json:"receivers"`
	Oldest    time.Time `json:"oldest_accepted_at"` // of their requests
	Next      time.Time `json:"next_at"`            // the earliest of their times
}

// Waiting sums the receivers that are deferred.
func (l *GroupLag) Waiting() (n int64) {
	for _, d := range l.Deferred {
		n += d.Receivers
	}
	return n
}
