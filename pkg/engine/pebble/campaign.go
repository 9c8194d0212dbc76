package pebble

import (
	"context"
	"encoding/binary"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Campaigns returns the contract of campaigns.
func (s *Store) Campaigns() engine.Campaigns { return campaigns{s} }

type campaigns struct{ s *Store }

func (c campaigns) head(id string) (out engine.Campaign, ok bool, err error) {
	k := key(tCampaign, id)
	v, err := c.s.get(k)
	if err != nil || v == nil {
		return out, false, err
	}
	out, err = campaignOf(k, v)
	return out, err == nil, err
}

// campaignOf decodes the row of a campaign's totals.
func campaignOf(k, v []byte) (engine.Campaign, error) {
	d := reader{b: v}
	out := engine.Campaign{
		ID: string(k[1:]), Caller: d.string(), Created: d.int(),
		Parts: int(d.uint()), Accepted: d.int(), Rejected: d.int(),
	}
	if !d.done() {
		return engine.Campaign{}, corrupt("campaign", k)
	}
	return out, nil
}

// List implements engine.Campaigns. It reads the totals of all campaigns: ids are
// made by clients, so their order says nothing, and there are few.
func (c campaigns) List(ctx context.Context, caller string, after engine.Campaign, max int) ([]engine.Campaign, error) {
	return engine.ListCampaigns(func(yield func(engine.Campaign, error) bool) {
		err := c.s.each(under([]byte{tCampaign}), func(k, v []byte) (bool, error) {
			out, err := campaignOf(k, v)
			if err != nil {
				return false, err
			}
			return yield(out, ctx.Err()), nil
		})
		if err != nil {
			yield(engine.Campaign{}, translate(err))
		}
	}, caller, after, max)
}

func (c campaigns) AddPart(ctx context.Context, campaign, caller string, part uint32, base notify.Base, accepted, rejected int64, at int64) error {
	if campaign == "" || len(campaign) > 1<<16-1 {
		return notify.Invalid("bad_campaign", "campaign", "a campaign has an id")
	}
	k := key(tCampaign, campaign)
	unlock, err := c.s.locks.lock(ctx, string(k))
	if err != nil {
		return err
	}
	h, ok, err := c.head(campaign)
	if err == nil && ok && h.Caller != caller {
		err = notify.NotFound("campaign")
	}
	seenKey := binary.BigEndian.AppendUint32(appendStr([]byte{tPartSeen}, campaign), part)
	var seen []byte
	if err == nil {
		seen, err = c.s.get(seenKey)
	}
	if err != nil || seen != nil {
		unlock()
		return err
	}
	if !ok {
		h = engine.Campaign{Caller: caller, Created: at}
	}
	partKey := binary.BigEndian.AppendUint32(appendStr([]byte{tPart}, campaign), uint32(h.Parts))
	h.Parts++
	h.Accepted += accepted
	h.Rejected += rejected
	v := appendLen(nil, h.Caller)
	v = appendInt64(v, h.Created)
	v = binary.AppendUvarint(v, uint64(h.Parts))
	v = appendInt64(v, h.Accepted)
	v = appendInt64(v, h.Rejected)
	return c.s.commit.write(ctx, func(tx tx) {
		tx.set(k, v)
		tx.set(seenKey, nil)
		tx.set(partKey, binary.BigEndian.AppendUint32(base[:len(base):len(base)], part))
	}, func(error) { unlock() })
}

func (c campaigns) Get(ctx context.Context, campaign string) (engine.Campaign, bool, error) {
	h, ok, err := c.head(campaign)
	if err != nil || !ok || len(campaign) > 1<<16-1 {
		return engine.Campaign{}, false, err
	}
	// A part that was added since the totals were read is left out of both.
	err = c.s.each(under(appendStr([]byte{tPart}, campaign)), func(k, v []byte) (bool, error) {
		if len(v) != 20 {
			return false, corrupt("part", k)
		}
		h.Bases = append(h.Bases, notify.Base(v[:16]))
		return len(h.Bases) < h.Parts, ctx.Err()
	})
	if err != nil {
		return engine.Campaign{}, false, translate(err)
	}
	return h, true, nil
}
