package store

import (
	"context"
	"math"
	"slices"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
)

// Campaigns records which requests belong to a campaign.
//
// Each campaign has a partition with its totals and parts. One more partition has lists of campaigns,
// ordered by time: one list of all campaigns, and one list for each caller.
type Campaigns struct{ rows rows.Partitions }

// CampaignsOver returns the Campaigns that are stored in p.
func CampaignsOver(p rows.Partitions) *Campaigns { return &Campaigns{p} }

func partOfCampaign(id string) rows.Partition {
	return rows.Partition{Table: tableCampaigns.Table, Name: id}
}

// AddPart adds a part to a campaign. The parameter part is the number of the part, and base is the
// base under which the part was accepted. If the same (campaign, part) was added before, AddPart
// changes nothing. It returns notify.KindNotFound if the campaign belongs to another caller.
func (c *Campaigns) AddPart(ctx context.Context, campaign, caller string, part uint32, base notify.Base, accepted, rejected int64, at int64) error {
	if campaign == "" || len(campaign) > maxCampaign {
		return notify.Invalid("bad_campaign", "campaign", "the id of a campaign must have 1 to 1,024 bytes")
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
		got, err := c.rows.Get(ctx, in, campaignTotalsKey, seen)
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
			// The list entries are written before the campaign. Readers skip an entry without a
			// campaign, but they could not find a campaign without an entry.
			if _, err := c.rows.Swap(ctx, rows.Change{Part: tableCampaigns, Set: campaignEntries(&h, []byte{})}); err != nil {
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
			Part: in, Expect: []rows.Row{{Key: campaignTotalsKey, Value: got[0]}},
			Set: []rows.Row{{Key: campaignTotalsKey, Value: v}, {Key: seen, Value: []byte{}}, {Key: key, Value: base[:]}},
		})
		if won || err != nil {
			return err
		}
	}
}

const (
	campaignTotalsKey = "h"
	maxCampaign       = 1 << 10 // bytes of a campaign's id
)

// campaignListPrefix returns the key prefix of the list of a caller's campaigns. If caller is "", it
// returns the prefix of the list of all campaigns.
func campaignListPrefix(caller string) string {
	if caller == "" {
		return "a"
	}
	return "c" + str(caller)
}

// campaignKey returns the second part of a campaign's key in a list. The first part is
// campaignListPrefix.
func campaignKey(created int64, id string) string { return orderedTime(created) + id }

// campaignEntries returns the rows of a campaign in the two lists: the list of all campaigns, and
// the list of its caller. Each row gets the given value. With a nil value, the rows remove the
// campaign from the lists.
func campaignEntries(c *engine.Campaign, value []byte) (out []rows.Row) {
	for _, list := range []string{campaignListPrefix(""), campaignListPrefix(c.Caller)} {
		out = append(out, rows.Row{Key: list + campaignKey(c.Created, c.ID), Value: value})
	}
	return out
}

// load returns a campaign without its bases, and its totals in the form in which they are stored.
func (c *Campaigns) load(ctx context.Context, id string) (h engine.Campaign, stored []byte, err error) {
	return loadRecord[engine.Campaign](ctx, c.rows, partOfCampaign(id), campaignTotalsKey)
}

// Get returns a campaign with its bases, or false if there is no such campaign.
func (c *Campaigns) Get(ctx context.Context, campaign string) (engine.Campaign, bool, error) {
	h, stored, err := c.load(ctx, campaign)
	if err != nil || stored == nil {
		return engine.Campaign{}, false, err
	}
	// Another process may have added a part after the totals were read. The limit h.Parts leaves
	// out the base of that part, so the number of bases equals the field Parts of the totals.
	h.Bases, err = scanList(ctx, c.rows, partOfCampaign(campaign), rows.Range{Prefix: "p"}, h.Parts, readBase)
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

// List returns up to max campaigns of a caller, without their bases, newest first. Campaigns of the
// same time are sorted by id, in descending order. If caller is "", it returns campaigns of all
// callers. The list begins after the campaign that has the Created and ID of the parameter after.
// If this ID is empty, it begins with the newest campaign.
func (c *Campaigns) List(ctx context.Context, caller string, after engine.Campaign, max int) (out []engine.Campaign, err error) {
	prefix := campaignListPrefix(caller)
	in := rows.Range{Prefix: prefix, Back: true}
	if after.ID != "" {
		in.Before = prefix + campaignKey(after.Created, after.ID)
	}
	for len(out) < max {
		entries, err := scanList(ctx, c.rows, tableCampaigns, in, max-len(out), func(r rows.Row) (string, error) { return r.Key, nil })
		if err != nil || len(entries) == 0 {
			return out, err
		}
		page, err := getConcurrently(entries, func(entry string) (engine.Campaign, error) {
			place := entry[len(prefix):]
			head, err := scanList(ctx, c.rows, partOfCampaign(place[8:]), rows.Range{Prefix: campaignTotalsKey}, 1, unpack[engine.Campaign])
			if err != nil || len(head) == 0 || head[0].Created != timeAt(place) { // Created differs if another process created the campaign first; this entry is then skipped
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

// PurgeCampaigns removes old campaigns with their parts. A campaign is old if it and its newest
// part were created before cutoff (ms since 1970). PurgeCampaigns returns how many campaigns it
// removed, also with an error.
func (c *Contracts) PurgeCampaigns(ctx context.Context, cutoff int64) (total int, err error) {
	all := campaignListPrefix("")
	old, err := scanList(ctx, c.rows, tableCampaigns, rows.Range{Prefix: all, Before: all + orderedTime(cutoff)}, math.MaxInt, func(r rows.Row) (engine.Campaign, error) {
		place := r.Key[len(all):]
		return engine.Campaign{ID: place[8:], Created: timeAt(place)}, nil
	})
	for i := 0; i < len(old) && err == nil; i++ {
		var gone bool
		if gone, err = c.purgeCampaign(ctx, old[i], cutoff); gone {
			total++
		}
	}
	return total, err
}

// purgeCampaign removes a campaign and its parts, unless its newest part was made at cutoff or
// later. If another process adds a part at the same time, the totals change, the swap fails, and
// the campaign is not removed.
func (c *Contracts) purgeCampaign(ctx context.Context, old engine.Campaign, cutoff int64) (bool, error) {
	in := partOfCampaign(old.ID)
	h, stored, err := CampaignsOver(c.rows).load(ctx, old.ID)
	if err != nil {
		return false, err
	}
	if h.Created != old.Created { // the list entry has no campaign
		_, err := c.rows.Swap(ctx, rows.Change{Part: tableCampaigns, Set: []rows.Row{{Key: campaignListPrefix("") + campaignKey(old.Created, old.ID)}}})
		return false, err
	}
	newest, err := scanList(ctx, c.rows, in, rows.Range{Prefix: "p", Back: true}, 1, readBase)
	if err != nil || len(newest) > 0 && newest[0].Time().UnixMilli() >= cutoff {
		return false, err
	}
	return c.rows.Swap(ctx,
		rows.Change{Part: in, Expect: []rows.Row{{Key: campaignTotalsKey, Value: stored}}, Set: []rows.Row{{Key: campaignTotalsKey}}, Clear: []string{"p", "s"}},
		rows.Change{Part: tableCampaigns, Set: campaignEntries(&h, nil)})
}
