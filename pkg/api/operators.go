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
	Since    *time.Time `json:"since,omitempty"`  // since when it is paused
	By       string     `json:"by,omitempty"`     // who paused it
	Reason   string     `json:"reason,omitempty"` // reason of the pause
	Lag      int64      `json:"lag"`              // records of the log that are not read yet, first attempts and retries
	InFlight int        `json:"in_flight"`        // records that are read and not done
	// Stands is the reason why no worker can make a call of this lane now, such as an open circuit.
	// It is empty if calls are possible. It ignores a pause of the lane; see Paused.
	Stands string `json:"stands,omitempty"`
}

// Lanes is the answer to GET /v1/ops/lanes.
type Lanes = List[Lane]

// Lanes lists the lanes.
func (cl *Client) Lanes(ctx context.Context) (Lanes, error) {
	return getJSON[Lanes](ctx, cl, "/v1/ops/lanes", nil)
}

// LaneChange is the body of PUT /v1/ops/lanes/{name}.
type LaneChange struct {
	Paused *bool  `json:"paused"` // required
	Reason string `json:"reason,omitempty"`
}

// SetLane pauses or resumes a lane. A pause survives restarts.
func (cl *Client) SetLane(ctx context.Context, name string, paused bool, reason string) (Lane, error) {
	return sendJSON[Lane](ctx, cl, http.MethodPut, "/v1/ops/lanes/"+url.PathEscape(name), LaneChange{&paused, reason}, true)
}

// CampaignHold is a campaign's pause and rate.
type CampaignHold struct {
	Paused bool      `json:"paused"`
	Rate   float64   `json:"rate"` // receivers a second for each channel, for all processes together; 0: no limit
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
	Accepted   int64         `json:"accepted"` // accepted receivers of all parts
	Rejected   int64         `json:"rejected"`
	Hold       *CampaignHold `json:"hold,omitempty"` // nil: not paused and no rate
}

// CampaignPage is a page of campaigns, newest first.
type CampaignPage = List[Campaign]

// Campaigns lists campaigns, newest first. Only operators may set the parameter caller. An empty
// caller means all campaigns that the token may see.
func (cl *Client) Campaigns(ctx context.Context, caller string, p Page) (CampaignPage, error) {
	q := url.Values{}
	setText(q, "caller", caller)
	setText(q, "cursor", p.After)
	setInt(q, "limit", int64(p.Limit))
	return getJSON[CampaignPage](ctx, cl, "/v1/campaigns", q)
}

// CampaignChange changes the hold of a campaign. A nil field keeps the stored value.
type CampaignChange struct {
	Paused *bool    `json:"paused,omitempty"`
	Rate   *float64 `json:"rate,omitempty"` // receivers a second, 0.1 to 10,000,000; 0: no limit
	Reason string   `json:"reason,omitempty"`
}

// SetCampaign pauses or resumes a campaign, or changes its rate. After a new rate, deferred
// receivers continue within a minute. After the end of a pause, they continue within ten minutes. A
// hold survives restarts.
func (cl *Client) SetCampaign(ctx context.Context, id string, change CampaignChange) (CampaignHold, error) {
	return sendJSON[CampaignHold](ctx, cl, http.MethodPatch, "/v1/campaigns/"+url.PathEscape(id), change, true)
}

// Suppression is an address that a provider reported as dead. No message is sent to it, for any
// caller.
type Suppression struct {
	UserID  string `json:"user_id"` // the user whose profile has the suppression
	Channel string `json:"channel"`
	Address string `json:"address"`
	Code    string `json:"code"` // the provider's code
}

// Suppressions is a page of the suppression list. Only the last page has no cursor. Other pages may
// be short or even empty.
type Suppressions = List[Suppression]

// SuppressionFilter selects suppressions. An empty field selects all.
type SuppressionFilter struct {
	UserID, Channel, Address, Code string
}

// Query returns the filter as query parameters.
func (f SuppressionFilter) Query() url.Values {
	q := url.Values{}
	for name, v := range map[string]string{"user_id": f.UserID, "channel": f.Channel, "address": f.Address, "code": f.Code} {
		setText(q, name, v)
	}
	return q
}

// SuppressionLift names an address to which messages may be sent again.
type SuppressionLift struct {
	Address string `json:"address"`
	UserID  string `json:"user_id,omitempty"` // only in this profile; empty: in every profile
}

// SuppressionLifted is the result of lifting a suppression.
type SuppressionLifted struct {
	Address         string `json:"address"`
	Lifted          int    `json:"lifted"`     // number of profiles that listed the address
	StillSuppressed bool   `json:"suppressed"` // another profile still suppresses it
}

// Suppressions lists the suppressed addresses that f selects, sorted by user and then by address.
// It needs the scope "observe".
func (cl *Client) Suppressions(ctx context.Context, f SuppressionFilter, cursor string, limit int) (Suppressions, error) {
	q := f.Query()
	setText(q, "cursor", cursor)
	setInt(q, "limit", int64(max(limit, 0)))
	return getJSON[Suppressions](ctx, cl, "/v1/ops/suppressions", q)
}

// LiftSuppression removes the suppression of an address. It needs the scope "operate".
func (cl *Client) LiftSuppression(ctx context.Context, in SuppressionLift) (SuppressionLifted, error) {
	return sendJSON[SuppressionLifted](ctx, cl, http.MethodPost, "/v1/ops/suppressions:lift", in, false)
}

// ProviderTest is the result of a test of a provider. A test that sends a message has one trial. A
// dry run has one trial for each account or pool that it tests.
type ProviderTest struct {
	Provider string          `json:"provider"`
	DryRun   bool            `json:"dry_run"` // no message was sent
	OK       bool            `json:"ok"`      // all trials are ok
	Items    []ProviderTrial `json:"items"`
}

// ProviderTrial is one call of a test.
type ProviderTrial struct {
	Account string `json:"account"` // "apns", "twilio:AC…"
	Verdict string `json:"verdict"` // ok, refused, credentials_refused, wrong_project, throttled, unreachable, unavailable
	Called  string `json:"called"`
	Status  int    `json:"status"` // HTTP status; 0: no answer arrived
	Class   string `json:"class"`  // the class that a worker would give to the answer
	Code    string `json:"code,omitempty"`
	Detail  string `json:"detail,omitempty"` // what the provider or the network said
	TookMS  int64  `json:"took_ms"`
}

// ProviderTestRequest contains the address for one real message. If To is empty, no message is
// sent.
type ProviderTestRequest struct {
	To string `json:"to,omitempty"`
}

// TestProvider tests a provider: the answering process calls the provider. If in.To is set, the
// call sends one real message. Otherwise the test is a dry run, which calls each account or pool
// that the parameter name selects. If the server's answer is lost, TestProvider repeats only a dry
// run.
func (cl *Client) TestProvider(ctx context.Context, name string, in ProviderTestRequest) (ProviderTest, error) {
	return sendJSON[ProviderTest](ctx, cl, http.MethodPost, "/v1/ops/providers/"+url.PathEscape(name)+"/test", in, in.To == "")
}

// States of a process. If something stops the work of a process, its state is the error code of
// that cause instead.
const (
	ProcessReady    = "ready"
	ProcessDraining = "draining"
	ProcessMissing  = "missing" // it no longer publishes its state, and did not announce that it ends
	ProcessUnknown  = "unknown" // the states that other processes publish cannot be read
)

// Process is a process of the cluster, as it last described itself.
type Process struct {
	Name      string    `json:"name"` // its instance name, with a suffix if two processes have the same name
	Host      string    `json:"host,omitempty"`
	Roles     []string  `json:"roles,omitempty"`
	Release   string    `json:"release,omitempty"`
	API       string    `json:"api,omitempty"`   // address of its API
	Admin     string    `json:"admin,omitempty"` // address of its metrics; empty: no metrics
	StartedAt time.Time `json:"started_at,omitzero"`
	// State is one of the states above, or the error code of the cause that stops its work, such as
	// "clock".
	State      string  `json:"state"`
	AgeSeconds float64 `json:"age_seconds"`         // seconds since it published this description
	Note       string  `json:"note,omitempty"`      // what is missing in its description, or why State is unknown
	Providers  string  `json:"providers,omitempty"` // kind of the providers that it calls: one of ProviderModes, or ProvidersNone
}

// Missing reports whether the current state of the process is not known.
func (p *Process) Missing() bool { return p.State == ProcessMissing || p.State == ProcessUnknown }

// Absence returns a sentence that says that the process did not answer.
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

// ProcessRates contains the rates of one process.
type ProcessRates struct {
	Process
	Rates []Rate     `json:"rates"` // empty if the process is missing
	Late  []Lateness `json:"late"`
}

// Sum returns the sum of the rates of the process.
func (p *ProcessRates) Sum() Rate { return SumOf(p.Rates) }

// SumOf returns the sum of the given rates. It does not set CallSeconds, which is an average.
func SumOf(rates []Rate) (sum Rate) {
	for _, r := range rates {
		sum.Accepted, sum.Reached, sum.Failed, sum.Other = sum.Accepted+r.Accepted, sum.Reached+r.Reached, sum.Failed+r.Failed, sum.Other+r.Other
	}
	return sum
}

// Rates contains the rates of all processes.
type Rates struct {
	OverSeconds float64     `json:"over_seconds"` // period that rates and lateness cover; 0: just started
	Rates       []Rate      `json:"rates"`
	Late        []Lateness  `json:"late"`
	Series      []RatePoint `json:"series"` // oldest first
	// Settings contains the settings of each process that answers.
	Settings []ProcessSettings `json:"settings"`
	// Processes lists the processes of the cluster by name, including missing processes. nil: there
	// is only one process, with its own engines.
	Processes []ProcessRates `json:"processes,omitempty"`
}

// Rate contains counts per second: of the receivers of a channel, or of triggers.
type Rate struct {
	What     string  `json:"what"`     // push, sms, email, trigger
	Accepted float64 `json:"accepted"` // made durable
	Reached  float64 `json:"reached"`  // SENT or DELIVERED; FIRED
	Failed   float64 `json:"failed"`
	Other    float64 `json:"other"` // other outcomes: deferred, suppressed, expired, cancelled, unknown
	// CallSeconds is the average duration of a call of the provider; 0: there was no call. One call
	// may send several messages. Then each of them is in flight until the provider has answered for
	// all of them.
	CallSeconds float64 `json:"call_seconds,omitempty"`
}

// ProcessSettings contains the settings of a process that limit its throughput.
type ProcessSettings struct {
	Process     string            `json:"process,omitempty"`
	Roles       []string          `json:"roles,omitempty"`
	Channels    []ChannelSettings `json:"channels"`      // channels whose providers it calls
	TimerShards int               `json:"timer_shards"`  // parts into which the timers of each minute are divided
	CatchUpRate int               `json:"catch_up_rate"` // timers of a backlog that are released a second
	CallerRate  float64           `json:"caller_rate"`   // requests a second for a caller without its own rate
}

// ChannelSettings contains the settings of a channel. 0 means that the channel has no such setting,
// or that the process does not know the setting.
type ChannelSettings struct {
	Channel     string  `json:"channel"`
	Partitions  int     `json:"partitions"`             // partitions of each of its topics
	InFlight    int     `json:"in_flight"`              // addresses that may be at the provider at the same time
	Window      int     `json:"window"`                 // receivers in a claim window
	Connections int     `json:"connections,omitempty"`  // HTTP/2 connections to each provider of push
	Accounts    int     `json:"accounts,omitempty"`     // SMS accounts, or IP pools
	AccountRate float64 `json:"account_rate,omitempty"` // messages a second for each account
	Parallel    int     `json:"parallel,omitempty"`     // concurrent requests for each account, for all processes together
}

// Lateness says how late timers or triggers were. The quantiles are upper bounds, from the buckets
// of a histogram. They are 0 if there were no timers or triggers.
type Lateness struct {
	What string  `json:"what"` // timer, trigger
	N    float64 `json:"n"`
	P50  float64 `json:"p50_seconds"`
	P99  float64 `json:"p99_seconds"`
}

// RatePoint is the sum of Rates for one period.
type RatePoint struct {
	At       time.Time `json:"at"` // end of the period
	Accepted float64   `json:"accepted"`
	Ended    float64   `json:"ended"` // reached plus failed
}

// Account is an account, or IP pool, of a provider, as the answering process sees it.
type Account struct {
	Provider string `json:"provider"`
	Process  string `json:"process,omitempty"` // each process has its own circuit and room for an account
	Account  string `json:"account"`
	// State is the state of its circuit ("closed", "open" or "half-open"), or "blocked" if the
	// provider has asked notifyd to wait.
	State        string     `json:"state"`
	BlockedUntil *time.Time `json:"blocked_until,omitempty"`
	ProbeAt      *time.Time `json:"probe_at,omitempty"` // if open: when the first call passes
	Reason       string     `json:"reason,omitempty"`
	Room         float64    `json:"room"`      // messages that its rate allows to be sent at once
	InFlight     int        `json:"in_flight"` // requests in progress
	Limit        int        `json:"limit"`     // concurrent requests that this process may make
}

// Accounts is the answer to GET /v1/ops/accounts.
type Accounts = List[Account]

// Rates returns the rates of all processes.
func (cl *Client) Rates(ctx context.Context) (Rates, error) {
	return getJSON[Rates](ctx, cl, "/v1/ops/rates", nil)
}

// Accounts returns the accounts of providers, for each process that calls them.
func (cl *Client) Accounts(ctx context.Context) (Accounts, error) {
	return getJSON[Accounts](ctx, cl, "/v1/ops/accounts", nil)
}

// Finding is the result of one check of the command "doctor".
type Finding struct {
	Check   string `json:"check"`
	Process string `json:"process,omitempty"` // set if the check is only about this process
	Level   string `json:"level"`             // "ok", "warn" or "fail"
	Detail  string `json:"detail"`
	Repair  string `json:"repair,omitempty"` // what to do; empty if Level is ok

	// Used is the share of the capacity that is in use, 0 to 1. nil: the check is not about a
	// capacity.
	Used *float64 `json:"used,omitempty"`
}

// GroupLag is the consumer lag of a consumer group.
type GroupLag struct {
	Group    string `json:"group"`
	Topic    string `json:"topic"`
	Lag      int64  `json:"lag"`       // records that are not read yet
	InFlight int    `json:"in_flight"` // records that are read and not done
	Paused   int    `json:"paused"`    // partitions that are not read now, because too many of their records are in flight
	// LanePaused means that an operator has paused the lane of the group.
	LanePaused bool `json:"lane_paused,omitempty"`
	// Deferred counts the receivers that wait in the timer store before they return to Topic, the
	// largest count first. nil: the process that answered has not counted them.
	Deferred []Deferred `json:"deferred"`
	// Members are the processes that consume the group's partitions of Topic. InFlight and Paused
	// above are the sums over all members. nil: there is only one process.
	Members []GroupMember `json:"members,omitempty"`
}

// GroupMember is the share of one process in a consumer group's topic.
type GroupMember struct {
	Process    string `json:"process,omitempty"`
	Partitions int    `json:"partitions"`
	InFlight   int    `json:"in_flight"`
	Paused     int    `json:"paused"` // as in GroupLag
}

// Deferred counts the receivers of a topic that wait in the timer store for a later attempt: a
// retry, quiet hours, an open circuit or a blocked account.
type Deferred struct {
	Reason    string    `json:"reason"` // error code of the failure, or code of the wait
	Receivers int64     `json:"receivers"`
	Oldest    time.Time `json:"oldest_accepted_at"` // accept time of the oldest of their requests
	Next      time.Time `json:"next_at"`            // earliest time at which one of them returns
}

// Waiting returns the number of deferred receivers.
func (l *GroupLag) Waiting() (n int64) {
	for _, d := range l.Deferred {
		n += d.Receivers
	}
	return n
}
