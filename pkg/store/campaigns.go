package store

import (
	"context"
	"math"
	"slices"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
)

// Campaigns keeps which requests belong to a campaign.
//
// It keeps a partition for each campaign: its totals and parts. One more partition names
// all campaigns, the newest first, of all and of each caller.
type Campaigns struct{ rows rows.Partitions }

// CampaignsOver returns the campaigns over p.
func CampaignsOver(p rows.Partitions) *Campaigns { return &Campaigns{p} }

func partOfCampaign(id string) rows.Part { return rows.Part{Table: tableCampaigns.Table, Name: id} }

// AddPart records that part of the campaign was accepted as base. The same
// (campaign, part) again changes nothing. A campaign of another caller is
// notify.KindNotFound.
func (c *Campaigns) AddPart(ctx context.Context, campaign, caller string, part uint32, base notify.Base, accepted, rejected int64, at int64) error {
	if campaign == "" || len(campaign) > maxCampaign {
		return notify.Invalid("bad_campaign", "campaign", "a campaign has an id of 1 to 1,024 bytes")
	}
	if err := engine.CheckCaller("bad_campaign", caller); err != nil {
		return err
	}
	in := partOfCampaign(campaign)
	end, err := c.rows.Turn(ctx, in)
	if err != nil {
		return err
	}
	defer end()
	seen := "s" + num(uint64(part))
	for {
		got, err := c.rows.Get(ctx, in, headOfCampaign, seen)
		if err != nil {
			return err
		}
		h := engine.Campaign{ID: campaign, Caller: caller, Created: at}
		if got[0] != nil {
			if h, err = unpack[engine.Campaign](rows.Row{Key: campaign, Value: got[0]}); err != nil {
				return err
			}
		}
		if h.Caller != caller {
			return notify.NotFound("campaign")
		}
		if got[1] != nil {
			return nil
		}
		if got[0] == nil {
			// Before the campaign: an entry that leads nowhere is passed over, and a
			// campaign without one would not be found.
			if _, err := c.rows.Swap(ctx, rows.Change{Part: tableCampaigns, Do: campaignEntries(&h, []byte{})}); err != nil {
				return err
			}
		}
		key := "p" + num(uint64(h.Parts))
		h.Parts++
		h.Accepted += accepted
		h.Rejected += rejected
		v, err := pack("bad_campaign", "campaign", h)
		if err != nil {
			return err
		}
		won, err := c.rows.Swap(ctx, rows.Change{
			Part: in, If: []rows.Row{{Key: headOfCampaign, Value: got[0]}},
			Do: []rows.Row{{Key: headOfCampaign, Value: v}, {Key: seen, Value: []byte{}}, {Key: key, Value: base[:]}},
		})
		if won || err != nil {
			return err
		}
	}
}

const (
	headOfCampaign = "h"
	maxCampaign    = 1 << 10 // bytes of an id
)

// campaignList begins the entries of the list of a caller's campaigns; "": of all.
func campaignList(caller string) string {
	if caller == "" {
		return "a"
	}
	return "c" + str(caller)
}

// campaignPlace is a campaign's place in a list: its time, then its id.
func campaignPlace(created int64, id string) string { return ordered(created) + id }

// campaignEntries returns the entries of a campaign in the lists, with a value; nil
// removes them.
func campaignEntries(c *engine.Campaign, value []byte) (out []rows.Row) {
	for _, list := range []string{campaignList(""), campaignList(c.Caller)} {
		out = append(out, rows.Row{Key: list + campaignPlace(c.Created, c.ID), Value: value})
	}
	return out
}

// load returns a campaign without its bases.
func (c *Campaigns) load(ctx context.Context, id string) (h engine.Campaign, stored []byte, err error) {
	return load[engine.Campaign](ctx, c.rows, partOfCampaign(id), headOfCampaign)
}

// Get returns a campaign with its bases.
func (c *Campaigns) Get(ctx context.Context, campaign string) (engine.Campaign, bool, error) {
	h, stored, err := c.load(ctx, campaign)
	if err != nil || stored == nil {
		return engine.Campaign{}, false, err
	}
	// A part that was added since the totals were read is left out of both.
	h.Bases, err = list(ctx, c.rows, partOfCampaign(campaign), rows.Range{Prefix: "p"}, h.Parts, readBase)
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

// List returns campaigns of a caller (empty: of all), the newest first and of one
// time the greatest id first, at most max of them, without their bases. It begins
// behind after, of which only Created and ID count; an empty ID means at the newest.
func (c *Campaigns) List(ctx context.Context, caller string, after engine.Campaign, max int) (out []engine.Campaign, err error) {
	prefix := campaignList(caller)
	in := rows.Range{Prefix: prefix, Back: true}
	if after.ID != "" {
		in.Before = prefix + campaignPlace(after.Created, after.ID)
	}
	for len(out) < max {
		entries, err := list(ctx, c.rows, tableCampaigns, in, max-len(out), func(r rows.Row) (string, error) { return r.Key, nil })
		if err != nil || len(entries) == 0 {
			return out, err
		}
		page, err := together(entries, func(entry string) (engine.Campaign, error) {
			place := entry[len(prefix):]
			head, err := list(ctx, c.rows, partOfCampaign(place[8:]), rows.Range{Prefix: headOfCampaign}, 1, unpack[engine.Campaign])
			if err != nil || len(head) == 0 || head[0].Created != timeAt(place) { // else another process's time won
				return engine.Campaign{}, err
			}
			return head[0], nil
		})
		if err != nil {
			return nil, err
		}
		out = append(out, slices.DeleteFunc(page, func(h engine.Campaign) bool { return h.ID == "" })...)
		in.Before = entries[len(entries)-1]
	}
	return out, nil
}

// PurgeCampaigns removes campaigns with their parts if they were created before a time,
// ms since 1970, and so was their newest part. It returns how many it removed, also with
// an error.
func (c *Contracts) PurgeCampaigns(ctx context.Context, before int64) (total int, err error) {
	all := campaignList("")
	old, err := list(ctx, c.rows, tableCampaigns, rows.Range{Prefix: all, Before: all + ordered(before)}, math.MaxInt, func(r rows.Row) (engine.Campaign, error) {
		place := r.Key[len(all):]
		return engine.Campaign{ID: place[8:], Created: timeAt(place)}, nil
	})
	for i := 0; i < len(old) && err == nil; i++ {
		var gone bool
		if gone, err = c.purgeCampaign(ctx, old[i], before); gone {
			total++
		}
	}
	return total, err
}

// purgeCampaign removes a campaign unless its newest part is young. A part that is
// added meanwhile changes the totals, and the campaign stays.
func (c *Contracts) purgeCampaign(ctx context.Context, old engine.Campaign, before int64) (bool, error) {
	in := partOfCampaign(old.ID)
	h, stored, err := CampaignsOver(c.rows).load(ctx, old.ID)
	if err != nil {
		return false, err
	}
	if h.Created != old.Created { // the entry leads nowhere
		_, err := c.rows.Swap(ctx, rows.Change{Part: tableCampaigns, Do: []rows.Row{{Key: campaignList("") + campaignPlace(old.Created, old.ID)}}})
		return false, err
	}
	newest, err := list(ctx, c.rows, in, rows.Range{Prefix: "p", Back: true}, 1, readBase)
	if err != nil || len(newest) > 0 && newest[0].Time().UnixMilli() >= before {
		return false, err
	}
	return c.rows.Swap(ctx,
		rows.Change{Part: in, If: []rows.Row{{Key: headOfCampaign, Value: stored}}, Do: []rows.Row{{Key: headOfCampaign}}, Clear: []string{"p", "s"}},
		rows.Change{Part: tableCampaigns, Do: campaignEntries(&h, nil)})
}
