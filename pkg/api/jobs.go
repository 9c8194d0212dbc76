package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// LetterFilter selects dead letters. An empty field selects all. The digest of a plan includes the
// filter, so the order and the names of its fields must not change.
type LetterFilter struct {
	Channel  string   `json:"channel,omitempty"` // push, sms, email, trigger
	Category string   `json:"category,omitempty"`
	Class    string   `json:"class,omitempty"`
	Code     string   `json:"code,omitempty"`
	Provider string   `json:"provider,omitempty"` // without an account it includes all accounts: "twilio" includes "twilio:AC1"
	Caller   string   `json:"caller,omitempty"`
	Template string   `json:"template,omitempty"`
	State    string   `json:"state,omitempty"`    // dead, replayed, discarded
	Since    int64    `json:"since_ms,omitempty"` // last failure in [Since, Until), ms since 1970
	Until    int64    `json:"until_ms,omitempty"`
	IDs      []string `json:"ids,omitempty"`      // at most 10,000; not used in queries
	Attempts string   `json:"attempts,omitempty"` // a number, or >=, <=, > or < and a number
	// Where is a jq expression over the JSON of a letter. It selects the letters for which it
	// returns true.
	Where string `json:"where,omitempty"`
	// All confirms that an empty filter should select all letters. It is not used in queries.
	All bool `json:"all,omitempty"`
}

// filterField is one field of a filter. Only one of the fields text and ms is set: ms if the field
// of the filter is a time, otherwise text.
type filterField struct {
	name string
	text *string
	ms   *int64
}

// fields lists the fields of f in a fixed order. The names are used in queries, in flags of
// notifyctl and in the console.
func (f *LetterFilter) fields() []filterField {
	return []filterField{
		{"channel", &f.Channel, nil}, {"category", &f.Category, nil}, {"provider", &f.Provider, nil}, {"class", &f.Class, nil},
		{"code", &f.Code, nil}, {"caller", &f.Caller, nil}, {"template", &f.Template, nil}, {"state", &f.State, nil},
		{"since", nil, &f.Since}, {"until", nil, &f.Until}, {"attempts", &f.Attempts, nil}, {"where", &f.Where, nil},
	}
}

// LetterWords returns the names of the fields of a filter.
func LetterWords() (names []string) {
	for _, p := range new(LetterFilter).fields() {
		names = append(names, p.name)
	}
	return names
}

// ReadLetterFilter makes a filter. The function text returns the text for a field name. The
// function ms returns the time for a field name, in ms since 1970. If ms is nil, the filter has no
// times.
func ReadLetterFilter(text func(name string) string, ms func(name string) int64) (f LetterFilter) {
	for _, p := range f.fields() {
		switch {
		case p.text != nil:
			*p.text = text(p.name)
		case ms != nil:
			*p.ms = ms(p.name)
		}
	}
	return f
}

// Words returns the name and the text of each field that is set. Times are in RFC 3339.
func (f *LetterFilter) Words() (words [][2]string) {
	for _, p := range f.fields() {
		switch {
		case p.text != nil && *p.text != "":
			words = append(words, [2]string{p.name, *p.text})
		case p.ms != nil && *p.ms != 0:
			words = append(words, [2]string{p.name, time.UnixMilli(*p.ms).UTC().Format(time.RFC3339Nano)})
		}
	}
	return words
}

// Query returns the filter as query parameters.
func (f *LetterFilter) Query() url.Values {
	q := url.Values{}
	for _, w := range f.Words() {
		q.Set(w[0], w[1])
	}
	return q
}

// Empty reports whether f selects every dead letter.
func (f *LetterFilter) Empty() bool { return len(f.Words()) == 0 && len(f.IDs) == 0 }

// JobSpec describes what a job must do. Durations are in milliseconds.
type JobSpec struct {
	Kind   string       `json:"kind"`
	Filter LetterFilter `json:"filter"`
	// UpTo is set by the plan. The job includes only letters up to this position in the index of
	// dead letters.
	UpTo   uint64  `json:"up_to,omitempty"`
	Rate   float64 `json:"rate,omitempty"`    // letters a second, above 0, at most 20,000; default 50
	RampMs int64   `json:"ramp_ms,omitempty"` // time in which the rate grows from a tenth to the full rate
	// Canary is how many letters the job sends first. The job then waits for their outcomes before
	// it sends more. Default 10. Negative: no canary.
	Canary int `json:"canary,omitempty"`
	// AbortIf is a share of letters, 0 to 1. The job stops if more than this share of the sent
	// letters did not arrive. Default 0.2. Negative: the job never stops for that reason.
	AbortIf     float64 `json:"abort_if,omitempty"`
	MaxReplays  int     `json:"max_replays,omitempty"`
	Expired     string  `json:"expired,omitempty"`
	Collapse    string  `json:"collapse,omitempty"`
	Order       string  `json:"order,omitempty"`
	OpenCircuit string  `json:"open_circuit,omitempty"`
	ForceResend bool    `json:"force_resend,omitempty"` // includes letters that are UNKNOWN: they may arrive twice
	Report      string  `json:"report,omitempty"`       // only for reconcile: digest of the report to apply
}

// Plan describes what a job would do: a fixed set of entries and its digest.
type Plan struct {
	Spec    JobSpec                   `json:"spec"`
	Digest  string                    `json:"digest"` // digest of Spec and of all entries
	Made    int64                     `json:"made_ms"`
	Entries int                       `json:"entries"`
	Send    int                       `json:"send"`   // entries on which the job would act
	Skip    map[string]int            `json:"skip"`   // the other entries, by reason
	Counts  map[string]map[string]int `json:"counts"` // letters by class, caller, channel, provider, template and code
	// Unreachable counts the entries of Send whose messages would be suppressed now, by error code.
	// The plan looks only at the addresses in the user's profile, and ignores an address in the
	// request.
	Unreachable map[string]int  `json:"unreachable,omitempty"`
	EndsSoon    int             `json:"ends_soon"`        // entries that retention removes within a day
	EtaMs       int64           `json:"eta_ms"`           // estimated duration at the rate, without the canary
	Approval    bool            `json:"approval"`         // another operator must approve the job
	Reconcile   json.RawMessage `json:"report,omitempty"` // only for reconcile: the findings
}

// JobRequest asks the server to run the job of a plan.
type JobRequest struct {
	Spec     JobSpec         `json:"spec"`   // the spec of the plan, unchanged
	Digest   string          `json:"digest"` // the digest of the plan
	Entries  int             `json:"entries,omitempty"`
	Name     string          `json:"name,omitempty"` // unique name of the job; default: the digest
	Approval bool            `json:"needs_approval,omitempty"`
	Report   json.RawMessage `json:"report,omitempty"` // only for reconcile: the plan's report, unchanged
}

// Job is an operator's job that the server runs. If State is "done", the fields Done, Skipped,
// Exhausted and Failed add up to Planned.
type Job struct {
	ID        string         `json:"job_id"` // job_<ULID>
	Kind      string         `json:"kind"`
	Name      string         `json:"name"`
	State     string         `json:"state"` // waiting, running, paused, stopped, failed, done, cancelled
	Why       string         `json:"why,omitempty"`
	By        string         `json:"by"`
	Approved  string         `json:"approved_by,omitempty"`
	Context   string         `json:"context,omitempty"`
	Reason    string         `json:"reason,omitempty"`
	Digest    string         `json:"digest"`
	Spec      JobSpec        `json:"spec"`
	Planned   int            `json:"planned"`
	Position  int            `json:"position"` // entries that the job has processed
	Done      int            `json:"done"`     // replayed, discarded, exported or repaired
	Skipped   map[string]int `json:"skipped"`
	Exhausted int            `json:"exhausted"`
	Failed    int            `json:"failed"`
	Outcomes  Outcomes       `json:"outcomes"`
	ActiveMs  int64          `json:"active_ms"` // how long the job has run
	Reached   float64        `json:"reached"`   // letters a second while the job ran
	Created   int64          `json:"created_ms"`
	Updated   int64          `json:"updated_ms"`
}

// JobChanges lists the changes that an operator can make to a job, by the job's state.
var JobChanges = map[string][]string{
	"waiting": {"approve", "cancel"},
	"running": {"pause", "cancel"},
	"paused":  {"resume", "cancel"},
	"stopped": {"resume", "cancel"},
	"failed":  {"resume", "cancel"},
}

// Outcomes counts the outcomes of the letters that a replay sent. A job waits for the outcomes of
// at most 2,000 letters at the same time.
type Outcomes struct {
	Reached    int `json:"reached"`  // SENT or DELIVERED
	Refailed   int `json:"refailed"` // FAILED
	Suppressed int `json:"suppressed"`
	Expired    int `json:"expired"`
	Cancelled  int `json:"cancelled"`
	Unknown    int `json:"unknown"`
	Open       int `json:"open"` // letters without a final state yet
}

// OutcomeCount is one count of Outcomes, with a name to display.
type OutcomeCount struct {
	Name string
	N    int
}

// Kinds returns the counts to display, in a fixed order. It always returns the counts "reached",
// "failed again" and "open", and the other counts only if they are not 0.
func (o Outcomes) Kinds() []OutcomeCount {
	all := []OutcomeCount{
		{"reached", o.Reached}, {"failed again", o.Refailed}, {"suppressed", o.Suppressed}, {"expired", o.Expired},
		{"cancelled", o.Cancelled}, {"unknown", o.Unknown}, {"open", o.Open},
	}
	return slices.DeleteFunc(all, func(k OutcomeCount) bool {
		return k.N == 0 && k.Name != "reached" && k.Name != "failed again" && k.Name != "open"
	})
}

// Missed returns how many of the sent letters did not arrive.
func (o Outcomes) Missed() int {
	return o.Refailed + o.Suppressed + o.Expired + o.Cancelled + o.Unknown
}

// Text returns the counts of Kinds as one text. The function number formats each count. Example:
// "40 reached, 0 failed again, 0 open".
func (o Outcomes) Text(number func(int) string) string {
	var b strings.Builder
	for i, k := range o.Kinds() {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(number(k.N) + " " + k.Name)
	}
	return b.String()
}

// Skips returns how many entries were skipped.
func (j *Job) Skips() (n int) {
	for _, k := range j.Skipped {
		n += k
	}
	return n
}

// LetterGroup counts the dead letters that failed in the same way.
type LetterGroup struct {
	Channel  string         `json:"channel"`
	Provider string         `json:"provider,omitempty"`
	Class    string         `json:"class"`
	Code     string         `json:"code"`
	Template string         `json:"template,omitempty"`
	Count    int            `json:"count"`
	First    int64          `json:"first_failed_ms"`
	Last     int64          `json:"last_failed_ms"`
	EndsSoon int            `json:"ends_soon"` // letters that retention removes within a day
	Callers  map[string]int `json:"callers"`
	Sample   string         `json:"sample"`      // id of one of the letters
	LastHour int            `json:"last_hour"`   // letters of this group that failed in the last hour
	HourAgo  int            `json:"hour_before"` // letters that failed in the hour before that
}

// LetterTop groups the dead letters that a filter selects by how they failed, the largest group first.
// It also has totals.
type LetterTop struct {
	Groups   []LetterGroup  `json:"groups"`
	Total    int            `json:"total"`
	States   map[string]int `json:"states"`
	Channels map[string]int `json:"channels"`
	Callers  map[string]int `json:"callers"`
	Oldest   int64          `json:"oldest_ms,omitempty"`
	EndsSoon int            `json:"ends_soon"`
	Next     int64          `json:"next_end_ms,omitempty"` // when retention removes the first of the letters
	Other    int            `json:"other"`                 // letters that are not in Groups
}

// AuditRow is one row of the audit log: who did what, and why.
type AuditRow struct {
	Seq     uint64          `json:"seq"`
	Hash    string          `json:"hash"` // hash over this row and the hash of the row before it
	At      time.Time       `json:"at"`
	Actor   string          `json:"actor"` // the token's sub; "notifyd" for the server itself
	Action  string          `json:"action"`
	Target  string          `json:"target,omitempty"`
	Context string          `json:"context,omitempty"` // the operator's name for the server, as sent by the client
	Reason  string          `json:"reason,omitempty"`
	Request string          `json:"request_id,omitempty"`
	Filter  json.RawMessage `json:"filter,omitempty"`
	Set     json.RawMessage `json:"set,omitempty"` // the new settings, unless they contain a secret
	Digest  string          `json:"digest,omitempty"`
	Counts  map[string]int  `json:"counts,omitempty"`
	// Result is empty in a row that the server wrote before it made the change. It is "refused:
	// <code>" if the change was refused. It is "failed: <code>" if an error occurred and the change
	// may have been made.
	Result string `json:"result,omitempty"`
}

// FoldAudit returns the given rows of the audit log without those that a later row corrects. The
// server writes a row before it makes a change. If the change is then refused or fails, the server
// adds a second row. Of these two rows, FoldAudit keeps only the second. The log itself keeps both.
func FoldAudit(rows []AuditRow) []AuditRow {
	ended := map[[3]string]bool{}
	key := func(r *AuditRow) [3]string { return [3]string{r.Request, r.Action, r.Target} }
	for i := range rows {
		if r := &rows[i]; r.Request != "" && (strings.HasPrefix(r.Result, "refused: ") || strings.HasPrefix(r.Result, "failed: ")) {
			ended[key(r)] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(rows), func(r AuditRow) bool { return r.Result == "" && ended[key(&r)] })
}

// AuditCheck is the result of a check of the audit log.
type AuditCheck struct {
	Rows   uint64 `json:"rows"`
	Head   string `json:"head"`             // hash of the last row; keep it in another place
	Broken uint64 `json:"broken,omitempty"` // first row with a wrong hash; 0: no row is wrong
	Why    string `json:"why,omitempty"`
}

// Plan returns what a job would do, and changes nothing.
func (cl *Client) Plan(ctx context.Context, spec JobSpec) (Plan, error) {
	return sendJSON[Plan](ctx, cl, http.MethodPost, "/v1/ops/plans", spec, true)
}

// StartJob starts the job of a plan. If a job with this name exists already, it returns that job.
func (cl *Client) StartJob(ctx context.Context, r JobRequest) (Job, error) {
	return sendJSON[Job](ctx, cl, http.MethodPost, "/v1/ops/jobs", r, true)
}

// Job returns a job.
func (cl *Client) Job(ctx context.Context, id string) (Job, error) {
	return getJSON[Job](ctx, cl, "/v1/ops/jobs/"+url.PathEscape(id), nil)
}

// Jobs returns jobs, newest first.
func (cl *Client) Jobs(ctx context.Context, limit int) ([]Job, error) {
	q := url.Values{}
	setInt(q, "limit", int64(limit))
	list, err := getJSON[List[Job]](ctx, cl, "/v1/ops/jobs", q)
	return list.Items, err
}

// ChangeJob pauses, resumes, cancels or approves a job.
func (cl *Client) ChangeJob(ctx context.Context, id, change string) (Job, error) {
	return sendJSON[Job](ctx, cl, http.MethodPost, "/v1/ops/jobs/"+url.PathEscape(id), map[string]string{"change": change}, false)
}

// JobReport calls fn with each line of a job's report.
func (cl *Client) JobReport(ctx context.Context, id string, fn func(json.RawMessage) error) error {
	for after := uint64(0); ; {
		var out struct {
			Items []json.RawMessage `json:"items"`
			Next  uint64            `json:"next"`
		}
		q := url.Values{"limit": {"1000"}}
		if after > 0 {
			q.Set("after", strconv.FormatUint(after, 10))
		}
		if err := cl.get(ctx, "/v1/ops/jobs/"+url.PathEscape(id)+"/report", q, &out); err != nil {
			return err
		}
		for _, l := range out.Items {
			if err := fn(l); err != nil {
				return err
			}
		}
		if after = out.Next; after == 0 {
			return nil
		}
	}
}

// TopDeadLetters groups dead letters by how they failed.
func (cl *Client) TopDeadLetters(ctx context.Context, f LetterFilter, limit int) (out LetterTop, err error) {
	q := url.Values{}
	setInt(q, "limit", int64(limit))
	_, err = cl.write(ctx, call{method: http.MethodPost, path: "/v1/ops/dead-letters:top", query: q, repeatable: true}, f, &out)
	return out, err
}

// Audit returns rows of the audit log with sequence numbers higher than afterSeq, oldest first. If
// afterSeq is nil, it returns the latest rows.
func (cl *Client) Audit(ctx context.Context, afterSeq *uint64, limit int) ([]AuditRow, error) {
	q := url.Values{}
	setInt(q, "limit", int64(limit))
	if afterSeq != nil {
		q.Set("after", strconv.FormatUint(*afterSeq, 10))
	}
	list, err := getJSON[List[AuditRow]](ctx, cl, "/v1/ops/audit", q)
	return list.Items, err
}

// VerifyAudit makes the server read the whole audit log and check its chain of hashes. The
// parameter expect is "<seq>:<hash>" of a row from an earlier check; the log must still contain
// that row.
func (cl *Client) VerifyAudit(ctx context.Context, expect string) (AuditCheck, error) {
	q := url.Values{}
	setText(q, "expect", expect)
	return getJSON[AuditCheck](ctx, cl, "/v1/ops/audit:verify", q)
}
