package cassandra

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

type campaigns struct{ s *Store }

func (c campaigns) head(ctx context.Context, id string) (out engine.Campaign, ok bool, err error) {
	var parts int64
	out.ID = id
	ok, err = c.s.getSerial(ctx, `SELECT caller, created, parts, accepted, rejected FROM campaigns WHERE id = ? LIMIT 1`, []any{id}, &out.Caller, &out.Created, &parts, &out.Accepted, &out.Rejected)
	out.Parts = int(parts)
	if err != nil || !ok {
		return engine.Campaign{}, false, err
	}
	return out, true, nil
}

func (c campaigns) AddPart(ctx context.Context, campaign, caller string, part uint32, base notify.Base, accepted, rejected int64, at int64) error {
	if campaign == "" || len(campaign) > 1<<10 {
		return notify.Invalid("bad_campaign", "campaign", "a campaign has an id of 1 to 1,024 bytes")
	}
	unlock, err := c.s.locks.lock(ctx, "campaign/"+campaign)
	if err != nil {
		return err
	}
	defer unlock()
	counted := func() (bool, error) {
		var ord int64
		return c.s.getSerial(ctx, `SELECT ord FROM campaigns WHERE id = ? AND part = ?`, []any{campaign, int64(part)}, &ord)
	}
	for try := 0; ; try++ {
		h, ok, err := c.head(ctx, campaign)
		if err == nil && ok && h.Caller != caller {
			err = notify.NotFound("campaign")
		}
		var there bool
		if err == nil {
			there, err = counted()
		}
		if err != nil || there {
			return err
		}
		if !ok {
			h = engine.Campaign{ID: campaign, Caller: caller, Created: at}
			// Before the campaign: an entry that leads nowhere is passed over, and a
			// campaign without one would not be found.
			if err := addToList(ctx, c.s, 0, campaignEntry(listCampaigns, &h), campaignEntry(listOf(listCampaigns, caller), &h)); err != nil {
				return err
			}
		}
		parts := int64(h.Parts)
		won, err := c.s.settle(ctx, "campaign "+campaign, func() (verdict, error) {
			if there, err := counted(); err != nil || there {
				return done, err // by us, or by one who added the same part
			}
			if now, _, err := c.head(ctx, campaign); err != nil || now.Parts == h.Parts {
				return undone, err
			}
			return lost, nil
		},
			stmt{
				`UPDATE campaigns SET caller = ?, created = ?, parts = ?, accepted = ?, rejected = ? WHERE id = ? IF parts = ?`,
				[]any{h.Caller, h.Created, parts + 1, h.Accepted + accepted, h.Rejected + rejected, campaign, orNull(parts)},
			},
			stmt{`INSERT INTO campaigns (id, part, ord, base) VALUES (?, ?, ?, ?)`, []any{campaign, int64(part), parts, base[:]}})
		if err != nil || won {
			return err
		}
		if err := pause(ctx, try); err != nil {
			return err
		}
	}
}

const listCampaigns = "campaigns"

// campaignEntry is a campaign's entry of a list: its time, then its id.
func campaignEntry(list string, c *engine.Campaign) listEntry {
	return listEntry{list, c.Created, append(binary.BigEndian.AppendUint64(nil, uint64(c.Created)), c.ID...)}
}

func (c campaigns) List(ctx context.Context, caller string, after engine.Campaign, max int) ([]engine.Campaign, error) {
	var behind []byte
	if after.ID != "" {
		behind = campaignEntry("", &after).key
	}
	return pick(ctx, c.s, listOf(listCampaigns, caller), behind, after.Created, max, func(key []byte) (engine.Campaign, bool, error) {
		if len(key) <= 8 {
			return engine.Campaign{}, false, corrupt("the list of campaigns")
		}
		h, ok, err := c.head(ctx, string(key[8:]))
		return h, ok && h.Created == int64(binary.BigEndian.Uint64(key)), err // else another process's time won
	})
}

func (c campaigns) Get(ctx context.Context, campaign string) (engine.Campaign, bool, error) {
	if campaign == "" {
		return engine.Campaign{}, false, nil
	}
	h, ok, err := c.head(ctx, campaign)
	if err != nil || !ok {
		return engine.Campaign{}, false, err
	}
	type part struct {
		ord  int64
		base notify.Base
	}
	var parts []part
	err = c.s.rows(ctx, func(scan func(...any) bool) error {
		var p part
		for b := []byte(nil); scan(&p.ord, &b); {
			if len(b) != len(p.base) {
				return corrupt("a part of " + campaign)
			}
			if p.base = notify.Base(b); p.ord < int64(h.Parts) { // added since
				parts = append(parts, p)
			}
		}
		return nil
	}, `SELECT ord, base FROM campaigns WHERE id = ?`, campaign)
	if err != nil {
		return engine.Campaign{}, false, err
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.ord, b.ord) })
	for _, p := range parts {
		h.Bases = append(h.Bases, p.base)
	}
	return h, true, nil
}
