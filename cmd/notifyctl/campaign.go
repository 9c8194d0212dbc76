package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/atomicfile"
	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

func newCampaign(p *program) *cobra.Command {
	c := &cobra.Command{
		Use: "campaign", Short: "List campaigns, pause them and set their rate",
		Long: `While a campaign is paused, none of its receivers is called and no attempt is used.
Receivers can expire meanwhile. Deferred receivers continue within ten minutes after
resume, and within one minute after a change of the rate. Pause and rate survive
restarts.`,
	}
	c.AddCommand(newCampaignList(p), &cobra.Command{
		Use: "show CAMPAIGN", Short: "Count a campaign's receivers by state", Args: term.Exact("a campaign id"),
		Example: "  notifyctl campaign show cmp_01K3ZV7Q0N8M2D4R6T8W0Y2A4C",
		RunE: p.withClient(func(ctx context.Context, cl *api.Client, args []string) error {
			return showCampaign(ctx, p, cl, args[0])
		}),
	})
	set := func(s *cobra.Command, to func(args []string) (api.CampaignChange, error)) {
		reason := s.Flags().String("reason", "", "why; kept with the change")
		s.RunE = func(s *cobra.Command, args []string) error {
			in, err := to(args)
			if err != nil {
				return err
			}
			in.Reason = *reason
			return confirmAndChange(p, changes, s.Name()+" campaign "+args[0], in.Reason, func(cl *api.Client) (api.CampaignHold, error) {
				return cl.SetCampaign(s.Context(), args[0], in)
			}, func(h *api.CampaignHold) error {
				return p.printer().Print(h, term.Table{{"CAMPAIGN", "STATE", "SINCE", "BY", "WHY"}, {args[0], holdText(h), p.timeText(h.Since), h.By, h.Reason}})
			})
		}
		c.AddCommand(s)
	}
	paused := func(is bool) func([]string) (api.CampaignChange, error) {
		return func([]string) (api.CampaignChange, error) { return api.CampaignChange{Paused: &is}, nil }
	}
	set(&cobra.Command{
		Use: "pause CAMPAIGN", Short: "Stop calling receivers of a campaign until it is resumed", Args: term.Exact("a campaign id"),
		Example: "  notifyctl campaign pause cmp_01K3ZV7Q0N8M2D4R6T8W0Y2A4C --reason 'a wrong price'",
	}, paused(true))
	set(&cobra.Command{
		Use: "resume CAMPAIGN", Short: "Continue a paused campaign", Args: term.Exact("a campaign id"),
		Example: "  notifyctl campaign resume cmp_01K3ZV7Q0N8M2D4R6T8W0Y2A4C",
	}, paused(false))
	set(&cobra.Command{
		Use: "rate CAMPAIGN RATE", Short: "Set how many receivers of a campaign are called per second; 0: no limit",
		Args: term.Exact("a campaign id", "a rate"), Example: "  notifyctl campaign rate cmp_01K3ZV7Q0N8M2D4R6T8W0Y2A4C 500 --reason 'the shop is slow'",
	}, func(args []string) (api.CampaignChange, error) {
		rate, err := strconv.ParseFloat(args[1], 64)
		if err != nil {
			return api.CampaignChange{}, notify.Invalid("bad_rate", "RATE", strconv.Quote(args[1])+" is not a number of receivers per second")
		}
		return api.CampaignChange{Rate: &rate}, nil
	})
	return c
}

func newCampaignList(p *program) *cobra.Command {
	var caller string
	c := newListing(p, &cobra.Command{Short: "List campaigns, newest first", Example: "  notifyctl campaign ls --limit 10"}, &listing[api.Campaign]{
		get: func(ctx context.Context, cl *api.Client, after string, n int) (api.CampaignPage, error) {
			return cl.Campaigns(ctx, caller, api.Page{After: after, Limit: n})
		},
		columns: columns[api.Campaign]{head: "CAMPAIGN  CREATED  CALLER  PARTS  ACCEPTED  REJECTED  HOLD", row: func(c *api.Campaign) []string {
			hold := ""
			if c.Hold != nil {
				hold = holdText(c.Hold)
			}
			return []string{c.CampaignID, p.timeText(c.CreatedAt), c.Caller, count(c.Parts), count(c.Accepted), count(c.Rejected), hold}
		}},
	})
	c.Flags().StringVar(&caller, "caller", "", "only this caller's (operators)")
	return c
}

// holdText returns the pause and the rate of a campaign as text.
func holdText(h *api.CampaignHold) string {
	text := "open"
	if h.Paused {
		text = "paused"
	}
	if h.Rate > 0 {
		text += fmt.Sprintf(", %g/s", h.Rate)
	}
	return text
}

// campaignState is the stored progress of a campaign that this machine sends. It is written after
// every part. After a crash, the next run skips the parts that are done. It repeats a part that was
// being sent at the crash. The server does not store that part twice, because a part has the
// campaign's id and the part's number as its idempotency key.
type campaignState struct {
	Campaign string     `json:"campaign"`
	Server   string     `json:"server"`
	Created  time.Time  `json:"created"`
	Fanout   api.Fanout `json:"fanout"` // the content; the first run sets ScheduledAt and ExpiresAt, and later runs keep these times
	PartSize int        `json:"part_size"`

	// The file of receivers. A resumed run needs the same file, because the server refuses a
	// repeated part that contains other receivers than the first time.
	File   string `json:"file"`   // "-": standard input
	Size   int64  `json:"size"`   // bytes; -1: unknown
	Head   string `json:"head"`   // SHA-256 of the file's first 64 KiB
	Format string `json:"format"` // format of the receivers
	Total  int64  `json:"total"`  // receivers in the file; 0: unknown

	// All parts before Next are done. Ahead lists the few later parts that are also done.
	Next     uint32           `json:"next"`
	Ahead    []uint32         `json:"ahead,omitempty"`
	Stored   int64            `json:"stored"` // receivers in the parts that are done
	Accepted int64            `json:"accepted"`
	Rejected int64            `json:"rejected"`
	Reasons  map[string]int64 `json:"reasons,omitempty"` // by code: number of rejected receivers
	Complete bool             `json:"complete"`

	path string
}

func campaignFile(getenv func(string) string, id string) string {
	base := cmp.Or(getenv("XDG_STATE_HOME"), filepath.Join(getenv("HOME"), ".local", "state"))
	return filepath.Join(base, "notifyctl", "campaigns", id+".json")
}

// openCampaign reads the state of a campaign. It returns nil if this machine has none.
func openCampaign(getenv func(string) string, id string) (*campaignState, error) {
	s := &campaignState{path: campaignFile(getenv, id)}
	b, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("%s: %w", s.path, err)
	}
	return s, nil
}

// save writes the state atomically. After a crash, the file contains either the old or the new
// state.
func (s *campaignState) save() error {
	b, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return err
	}
	if err := atomicfile.MkdirAll(filepath.Dir(s.path)); err != nil {
		return err
	}
	return atomicfile.WriteFile(s.path, append(b, '\n'))
}

// isPartDone reports whether the server has stored a part.
func (s *campaignState) isPartDone(part uint32) bool {
	return part < s.Next || slices.Contains(s.Ahead, part)
}

// markPartDone records that the server has stored a part. If the part closes a gap, Next advances
// to the first part that is not done, and the parts below it are removed from Ahead.
func (s *campaignState) markPartDone(part uint32) {
	if !s.isPartDone(part) {
		s.Ahead = append(s.Ahead, part)
	}
	for i := slices.Index(s.Ahead, s.Next); i >= 0; i = slices.Index(s.Ahead, s.Next) {
		s.Ahead = slices.Delete(s.Ahead, i, i+1)
		s.Next++
	}
}

// partsDone returns how many parts are done.
func (s *campaignState) partsDone() int { return int(s.Next) + len(s.Ahead) }

// checkSameSource returns an error if the server or the file is not the same as in the first run.
func (s *campaignState) checkSameSource(server, file, head string, size int64) error {
	bad := func(format string, args ...any) error {
		return &term.Error{Exit: term.ExitConflict, Err: fmt.Errorf("campaign %s "+format, append([]any{s.Campaign}, args...)...)}
	}
	switch {
	case s.Server != server:
		return bad("was started on %s, not on %s", s.Server, server)
	case s.Size >= 0 && size >= 0 && s.Size != size:
		return bad("was started with a file of %s bytes, but %s has %s bytes, so its parts would be different", count(s.Size), label(file), count(size))
	case s.Head != head:
		return bad("was started with another file than %s: their first bytes differ", label(file))
	}
	return nil
}

// sha256Hex returns the SHA-256 of b in hexadecimal digits.
func sha256Hex(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
