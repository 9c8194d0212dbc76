package app

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/metrics"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/outcomehook"
	"github.com/notifyd/notifyd/pkg/provider"
	"github.com/notifyd/notifyd/pkg/server"
	"github.com/notifyd/notifyd/pkg/users"
)

// receipts stores the receipts with which providers report the final outcome of a call.
type receipts struct {
	provs          *providers
	publicURL      string // URL at which providers reach the API
	history        history.Reader
	status         engine.Status
	prefs          *users.Service
	outcomeCallers *outcomehook.Asked
	producer       *log.Producer
	metrics        *metrics.Metrics
	log            *slog.Logger
}

// webhooks returns the handlers of receipts, by the name of the provider. Only configured providers
// have a handler.
func (rs *receipts) webhooks() map[string]server.Receipt {
	out := map[string]server.Receipt{}
	if tw := rs.provs.twilio; tw != nil {
		out["twilio"] = server.Receipt{Signature: provider.TwilioSignature, Take: func(r *http.Request, body []byte) error {
			list, err := provider.ParseTwilio(withBody(r, body), tw.AuthToken, rs.publicURL)
			return rs.storeReceipts(r.Context(), notify.SMS, list, err)
		}}
	}
	if key := rs.provs.sendgridKey; key != nil {
		out["sendgrid"] = server.Receipt{Signature: provider.SendGridSignature, Take: func(r *http.Request, body []byte) error {
			list, err := provider.ParseSendGrid(withBody(r, body), key, time.Now())
			return rs.storeReceipts(r.Context(), notify.Email, list, err)
		}}
	}
	return out
}

// storeReceipts stores receipts. Each receipt becomes a row in addition to the rows of its call.
// storeReceipts also adds dead addresses to the suppression list. If the receiver told the provider
// to stop sending, storeReceipts stores an opt-out of marketing and digest.
func (rs *receipts) storeReceipts(ctx context.Context, ch notify.Channel, list []provider.Receipt, err error) error {
	if err != nil {
		return err
	}
	var rows []notify.Row
	var ids []notify.ID
	now := time.Now().UnixMilli()
	for i := range list {
		r := &list[i]
		if r.HasRef && r.State != notify.None {
			key := notify.ReceiptKey(r.Ref.Key, r.Ref.Index, r.Ref.Addr, r.State)
			ids = append(ids, r.Ref.ID())
			rows = append(rows, notify.Row{
				Key: key, Count: 1, Done: true, Channel: ch, Updated: now, Accepted: r.Ref.ID().Base.Time().UnixMilli(),
				Default:    notify.Exception{State: r.State, Code: r.Code, Provider: r.Provider, Receipt: r.ProviderID},
				Exceptions: []notify.Exception{{Addr: r.Ref.Addr, State: r.State, Code: r.Code, Provider: r.Provider, Receipt: r.ProviderID}},
			})
		}
		if (r.DeadAddress || r.OptedOut) && r.HasRef && r.Address != "" {
			found, err := rs.history.Find(ctx, r.Ref.ID())
			if err != nil {
				rs.log.Warn("the user of a receipt is not known, so the dead address or opt-out in the receipt was not stored", "err", err)
				continue
			}
			if r.OptedOut {
				err = rs.prefs.Unsubscribe(ctx, string(found.User), ch)
			} else {
				err = rs.prefs.Suppress(ctx, string(found.User), ch, r.Address, r.Code)
			}
			if err != nil {
				return err
			}
		}
	}
	rs.metrics.ReceiptsStored(ch, len(rows))
	if len(rows) == 0 {
		return nil
	}
	if err := rs.status.Put(ctx, rows); err != nil {
		return err
	}
	// After an error the provider sends the receipt again. That is harmless: a failure that is reported
	// twice makes only one dead letter.
	if err := rs.endedByReceipt(ctx, ids, rows); err != nil {
		return err
	}
	for i := range rows {
		if rows[i].Default.State == notify.Failed {
			if err := rs.failedByReceipt(ctx, ids[i], &rows[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// failedByReceipt appends a notification to notifications-failed if its state is Failed after the
// receipt. The state is Failed only if no address was reached.
func (rs *receipts) failedByReceipt(ctx context.Context, id notify.ID, row *notify.Row) error {
	found, err := rs.history.Find(ctx, id)
	if err != nil {
		return err
	}
	all, err := rs.status.Chunk(ctx, row.Key.Chunk)
	if err != nil {
		return err
	}
	out := notify.Fold(all, row.Key.First, found.Pos)
	if out.State != notify.Failed {
		return nil // another address was reached, or its outcome is still open
	}
	e, x := &found.Envelope, &row.Default
	b, err := json.Marshal(notify.Failure{
		Version: 1, ID: id.String(), Epoch: int(row.Key.Epoch), Caller: e.Caller, Campaign: e.Campaign,
		Channel: e.Channel.String(), Category: e.Category.String(), User: string(found.User), Template: e.Content.Template,
		Class: notify.ClassPermanent.String(), Code: x.Code, Provider: x.Provider, Attempts: int(row.Key.Attempt) + 1,
		Accepted: e.Accepted, Failed: row.Updated, Expires: e.Expires, Trace: e.Trace,
		Chunk: fmt.Sprintf("%d.%d", e.Chunk.Partition, e.Chunk.Block), Topic: found.Topic, Partition: found.LogPart, Offset: found.Offset,
	})
	if err != nil {
		return err
	}
	return rs.producer.Append(ctx, []log.Record{{Topic: notify.TopicFailed, Partition: -1, Key: found.User, Value: b}})
}

// stateOf returns the outcome of a notification, which it computes from all rows of the notification.
func (rs *receipts) stateOf(ctx context.Context, id notify.ID) (notify.Outcome, error) {
	found, err := rs.history.Find(ctx, id)
	if err != nil {
		return notify.Outcome{}, err
	}
	rows, err := rs.status.Chunk(ctx, found.Envelope.Chunk)
	if err != nil {
		return notify.Outcome{}, err
	}
	return notify.Fold(rows, id.Index, found.Pos), nil
}

// endedByReceipt appends receipts to the topic of outcomes, for callers that want to be notified of
// every outcome. It omits failures, because failedByReceipt reports them.
func (rs *receipts) endedByReceipt(ctx context.Context, ids []notify.ID, rows []notify.Row) error {
	if !rs.outcomeCallers.Any() {
		return nil
	}
	var recs []log.Record
	for i := range rows {
		x := &rows[i].Default
		if x.State == notify.Failed {
			continue
		}
		found, err := rs.history.Find(ctx, ids[i])
		switch kind := notify.KindOf(err); {
		case kind == notify.KindNotFound, kind == notify.KindGone:
			continue
		case err != nil:
			return err
		}
		e := &found.Envelope
		if !rs.outcomeCallers.Tells(e.Caller) {
			continue
		}
		b, err := json.Marshal(notify.Ended{
			Version: notify.EndedVersion, Caller: e.Caller, Campaign: e.Campaign, Channel: e.Channel.String(), Category: e.Category.String(),
			Template: e.Content.Template, Trace: e.Trace, At: rows[i].Updated,
			Receivers: []notify.EndedReceiver{{
				ID: ids[i].String(), Epoch: int(rows[i].Key.Epoch), User: string(found.User), Provider: x.Provider, Attempts: int(rows[i].Key.Attempt) + 1, Look: true, Receipt: true,
			}},
		})
		if err != nil {
			return err
		}
		recs = append(recs, log.Record{Topic: notify.TopicOutcomes, Partition: 0, Key: []byte(e.Caller), Value: b})
	}
	if len(recs) == 0 {
		return nil
	}
	return rs.producer.Append(ctx, recs)
}
