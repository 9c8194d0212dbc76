package intake

import (
	"context"
	"strconv"
	"strings"

	"github.com/notifyd/notifyd/pkg/request"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// campaignPart is one request of a campaign.
type campaignPart struct {
	id                 string
	part               uint32
	accepted, rejected int
}

// campaignRoute is the scope of the keys of campaign parts.
const campaignRoute = "campaign"

// campaignKey is the key of a part. It takes the place of an Idempotency-Key,
// so that a part goes out once whatever key a client makes up for its retry.
func campaignKey(caller, campaign string, part uint32) engine.IdemKey {
	return engine.IdemKey{Caller: caller, Route: campaignRoute, Key: campaign + "/" + strconv.FormatUint(uint64(part), 10)}
}

// maxParts is how many parts a campaign may have: each is a row that is read with
// every further part, and with every look at the campaign. Parts may have as many
// receivers as a fan-out.
const maxParts = 100_000

// checkCampaign checks the form of a campaign's id, and that a part comes with
// one.
func checkCampaign(id string, hasPart bool) error {
	if id == "" {
		if hasPart {
			return invalid("required", "campaign", "a part belongs to a campaign")
		}
		return nil
	}
	ulid, ok := strings.CutPrefix(id, "cmp_")
	if base, err := notify.ParseBase(ulid); !ok || err != nil || base.String() != ulid {
		return invalid("bad_campaign", "campaign", "a campaign is cmp_ and a ULID made by the client")
	}
	return nil
}

// checkCampaignOpen refuses parts of a cancelled campaign and of one that is
// another caller's, before anything is appended.
func (s *Service) checkCampaignOpen(ctx context.Context, m *request.Meta, id string) error {
	c, ok, err := s.st.Campaigns.Get(ctx, id)
	if err != nil {
		return err
	}
	switch {
	case ok && c.Caller != m.Caller:
		return notify.NotFound("campaign")
	case c.Parts >= maxParts:
		return &notify.Error{Kind: notify.KindConflict, Code: "too_many_parts", Field: "campaign", Msg: "a campaign has at most 100,000 parts: put more receivers into a part"}
	}
	_, cancelled, err := s.st.Cancels.Get(ctx, id)
	if err != nil {
		return err
	}
	if cancelled {
		return &notify.Error{Kind: notify.KindConflict, Code: "campaign_cancelled", Field: "campaign", Msg: "the campaign was cancelled and takes no more parts"}
	}
	return nil
}

// add records a part that is durable.
func (p *campaignPart) add(ctx context.Context, s *Service, m *request.Meta, l request.Basis) error {
	return s.st.Campaigns.AddPart(ctx, p.id, m.Caller, p.part, l.Base, int64(p.accepted), int64(p.rejected), l.Accepted)
}
