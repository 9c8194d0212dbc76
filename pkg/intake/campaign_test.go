package intake

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/request"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

const someCampaign = "cmp_01J9ZC4T7Y3F5Q8W2E6R1T0YXB"

func part(n int, receivers string) []byte {
	return bytes.Replace(fanout(receivers), []byte(`{"channel"`), fmt.Appendf(nil, `{"campaign":%q,"part":%d,"channel"`, someCampaign, n), 1)
}

func TestCampaign(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	send := func(m request.Meta, body []byte) (request.Answer, error) { return r.Fanout(t.Context(), m, body) }
	first, err := send(request.Meta{Caller: "c"}, part(0, `["a","b","b"]`))
	if err != nil {
		t.Fatal(err)
	}
	// The same part again, whatever Idempotency-Key comes with it.
	for _, key := range []string{"", "x", "y"} {
		if a, err := send(request.Meta{Caller: "c", Key: key}, part(0, `["a","b","b"]`)); err != nil || !a.Replayed || !bytes.Equal(a.Body, first.Body) {
			t.Errorf("part 0 with key %q: %+v, %v", key, a, err)
		}
	}
	_, err = send(request.Meta{Caller: "c"}, part(0, `["other"]`))
	refused(t, err, notify.KindMismatch, "idempotency_mismatch", "part")
	if _, err := send(request.Meta{Caller: "c"}, part(7, `["c"]`)); err != nil {
		t.Fatal(err)
	}
	c := r.campaigns.rows[someCampaign]
	if c.Parts != 2 || c.Accepted != 3 || c.Rejected != 1 || c.Caller != "c" {
		t.Errorf("campaign %+v", c)
	}
	for _, e := range r.log.envelopes(t) {
		if e.Campaign != someCampaign {
			t.Errorf("envelope of campaign %q", e.Campaign)
		}
	}

	full := c
	full.Parts = maxCampaignParts
	r.campaigns.rows[someCampaign] = full
	_, err = send(request.Meta{Caller: "c"}, part(10, `["z"]`))
	refused(t, err, notify.KindConflict, "too_many_parts", "campaign")
	if a, err := send(request.Meta{Caller: "c"}, part(7, `["c"]`)); err != nil || !a.Replayed {
		t.Errorf("a part that is there: %+v, %v", a, err)
	}
	full.Parts = maxCampaignParts - 1
	r.campaigns.rows[someCampaign] = full
	if _, err := send(request.Meta{Caller: "c"}, part(10, `["z"]`)); err != nil {
		t.Error(err)
	}
	r.campaigns.rows[someCampaign] = c

	records, keys := len(r.log.records()), r.idem.len()
	_, err = send(request.Meta{Caller: "thief"}, part(8, `["z"]`))
	refused(t, err, notify.KindNotFound, "campaign_not_found", "")
	r.cancels[someCampaign] = engine.Cancel{Scope: someCampaign, Caller: "c"}
	_, err = send(request.Meta{Caller: "c"}, part(9, `["z"]`))
	refused(t, err, notify.KindConflict, "campaign_cancelled", "campaign")
	if len(r.log.records()) != records || r.idem.len() != keys || r.campaigns.rows[someCampaign].Parts != 2 {
		t.Error("a refused part stored something")
	}
	if a, err := send(request.Meta{Caller: "c"}, part(7, `["c"]`)); err != nil || !a.Replayed {
		t.Errorf("a part that was answered before the cancel: %+v, %v", a, err)
	}
}

// A part that is in the log but not in the campaign is not answered; its repeat
// has the same ids and is counted once.
func TestCampaignStoreDown(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	r.campaigns.fail = errDown
	_, err := r.Fanout(t.Context(), request.Meta{Caller: "c"}, part(1, `["a"]`))
	if notify.KindOf(err) != notify.KindUnavailable {
		t.Fatalf("%v, want unavailable", err)
	}
	r.campaigns.fail = nil
	if _, err := r.Fanout(t.Context(), request.Meta{Caller: "c"}, part(1, `["a"]`)); err != nil {
		t.Fatal(err)
	}
	es := r.log.envelopes(t)
	if len(es) != 2 || es[0].Chunk != es[1].Chunk || r.campaigns.rows[someCampaign].Accepted != 1 {
		t.Errorf("%d records, campaign %+v", len(es), r.campaigns.rows[someCampaign])
	}
}

func TestScheduledFanout(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	body := strings.TrimSuffix(string(fanout(`["a","b","c","d","e"]`)), "}") + fmt.Sprintf(`,"scheduled_at":%q}`, time.Now().Add(time.Hour).Format(time.RFC3339))
	for range 2 {
		if _, err := r.Fanout(t.Context(), request.Meta{Caller: "c", Key: "k"}, []byte(body)); err != nil {
			t.Fatal(err)
		}
		r.idem.edit(t, func(row *engine.Reservation) { row.Done, row.LeaseUntil = false, 0 })
	}
	count, ids := uint32(0), map[string]bool{}
	for _, tm := range r.later.ts {
		var e notify.Envelope
		if err := notify.DecodeEnvelope(tm.Payload, &e); err != nil {
			t.Fatal(err)
		}
		count += e.Count
		ids[string(tm.ID)] = true
	}
	if count != 5 || len(ids) != len(r.later.ts) || len(r.log.records()) != 0 {
		t.Errorf("%d receivers in %d timers with %d ids", count, len(r.later.ts), len(ids))
	}
}
