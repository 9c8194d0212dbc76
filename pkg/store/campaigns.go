package store

import (
	"context"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
)

type campaigns struct{ rows rows.Rows }

func (c campaigns) AddPart(ctx context.Context, campaign, caller string, part uint32, base notify.Base, accepted, rejected int64, at int64) error {
	if campaign == "" || len(campaign) > maxPart {
		return notify.Invalid("bad_campaign", "campaign", "a campaign has an id")
	}
	head, seen := "h"+campaign, "s"+str(campaign)+num(uint64(part))
	for {
		got, err := c.rows.Get(ctx, tableCampaigns, head, seen)
		if err != nil {
			return err
		}
		h := engine.Campaign{ID: campaign, Caller: caller, Created: at}
		if got[0] != nil {
			if h, err = unpack[engine.Campaign](rows.Row{Key: head, Value: got[0]}); err != nil {
				return err
			}
		}
		if h.Caller != caller {
			return notify.NotFound("campaign")
		}
		if got[1] != nil {
			return nil
		}
		key := "p" + str(campaign) + num(uint64(h.Parts))
		h.Parts++
		h.Accepted += accepted
		h.Rejected += rejected
		v, err := pack("bad_campaign", "campaign", h)
		if err != nil {
			return err
		}
		won, err := c.rows.Swap(ctx, rows.Change{
			Part: tableCampaigns, If: []rows.Row{{Key: head, Value: got[0]}},
			Do: []rows.Row{{Key: head, Value: v}, {Key: seen, Value: []byte{}}, {Key: key, Value: base[:]}},
		})
		if won || err != nil {
			return err
		}
	}
}

func (c campaigns) Get(ctx context.Context, campaign string) (engine.Campaign, bool, error) {
	h, stored, err := load[engine.Campaign](ctx, c.rows, tableCampaigns, "h"+campaign)
	if err != nil || stored == nil {
		return engine.Campaign{}, false, err
	}
	// A part that was added since the totals were read is left out of both.
	h.Bases, err = list(ctx, c.rows, tableCampaigns, rows.Range{Prefix: "p" + str(campaign)}, h.Parts, readBase)
	if err != nil {
		return engine.Campaign{}, false, err
	}
	return h, true, nil
}

func readBase(r rows.Row) (notify.Base, error) {
	if len(r.Value) != len(notify.Base{}) {
		return notify.Base{}, corrupt(r.Key)
	}
	return notify.Base(r.Value), nil
}

// List reads the totals of all campaigns: ids are made by clients, so their order says
// nothing, and there are few.
func (c campaigns) List(ctx context.Context, caller string, after engine.Campaign, max int) ([]engine.Campaign, error) {
	return engine.ListCampaigns(func(yield func(engine.Campaign, error) bool) {
		err := c.rows.Scan(ctx, tableCampaigns, rows.Range{Prefix: "h"}, func(r rows.Row) (bool, error) {
			h, err := unpack[engine.Campaign](r)
			return err == nil && yield(h, nil), err
		})
		if err != nil {
			yield(engine.Campaign{}, err)
		}
	}, caller, after, max)
}

// PurgeCampaigns removes campaigns with their parts if they were created before a time,
// ms since 1970, and so was their newest part. It returns how many it removed, also with
// an error.
func (c *Contracts) PurgeCampaigns(ctx context.Context, before int64) (total int, err error) {
	var old []engine.Campaign
	err = c.rows.Scan(ctx, tableCampaigns, rows.Range{Prefix: "h"}, func(r rows.Row) (bool, error) {
		h, err := unpack[engine.Campaign](r)
		if h.Created < before {
			old = append(old, h)
		}
		return true, err
	})
	for i := 0; i < len(old) && err == nil; i++ {
		var gone bool
		if gone, err = c.purgeCampaign(ctx, old[i].ID, before); gone {
			total++
		}
	}
	return total, err
}

// purgeCampaign removes a campaign unless its newest part is young. A part that is
// added meanwhile changes the totals, and the campaign stays.
func (c *Contracts) purgeCampaign(ctx context.Context, id string, before int64) (bool, error) {
	_, stored, err := load[engine.Campaign](ctx, c.rows, tableCampaigns, "h"+id)
	if err != nil || stored == nil {
		return false, err
	}
	parts := rows.Range{Prefix: "p" + str(id), Back: true}
	newest, err := list(ctx, c.rows, tableCampaigns, parts, 1, readBase)
	if err != nil || len(newest) > 0 && newest[0].Time().UnixMilli() >= before {
		return false, err
	}
	gone := []rows.Row{{Key: "h" + id}}
	for _, in := range []rows.Range{parts, {Prefix: "s" + str(id)}} {
		more, err := removals(ctx, c.rows, tableCampaigns, in)
		if err != nil {
			return false, err
		}
		gone = append(gone, more...)
	}
	return c.rows.Swap(ctx, rows.Change{Part: tableCampaigns, If: []rows.Row{{Key: "h" + id, Value: stored}}, Do: gone})
}
