package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/log/embedded"
)

const text = "Your order is on its way."

// pair is a node and a bare log with the same durability.
type pair struct {
	node *node
	raw  *rawLog
	dir  string
}

func (b *bench) pair(ctx context.Context, sync bool) (*pair, error) {
	p := &pair{dir: b.folder("api")}
	cfg, err := b.config(p.dir, sync)
	if err != nil {
		return nil, err
	}
	if p.node, err = b.start(ctx, cfg, cluster.RoleAPI, nil); err != nil {
		return nil, err
	}
	d := embedded.PageCache
	if sync {
		d = embedded.Fsync
	}
	p.raw, err = b.rawLog(ctx, d, cfg.Log.Partitions["push"])
	if err != nil {
		return nil, errors.Join(err, p.node.end())
	}
	return p, nil
}

func (p *pair) end() error {
	err := errors.Join(p.node.end(), p.raw.close())
	raw, _ := filepath.Glob(filepath.Join(filepath.Dir(p.dir), "raw-*"))
	forget(append(raw, p.dir)...)
	return err
}

// fanouts measures P2: requests of 50,000 receivers in JSON over HTTP, closed
// loop, validated, split and acknowledged durable; delivery is not running, as
// on a machine with the API role alone. The reference is the log without us:
// records of 8,333 receivers.
func fanouts(ctx context.Context, b *bench) error {
	synced, err := b.pair(ctx, true)
	if err != nil {
		return err
	}
	cached, err := b.pair(ctx, false)
	if err != nil {
		return errors.Join(err, synced.end())
	}
	const per = 8333
	records := envelopes(64, per, text)
	send := func(p *pair) func(d time.Duration) (float64, error) {
		return func(d time.Duration) (float64, error) {
			return offered(offer(ctx, "P2", d, load.Step{Target: load.Fanout, Payload: load.Payload{Text: text}}, p.node.client))
		}
	}
	raw := func(p *pair) func(d time.Duration) (float64, error) {
		return func(d time.Duration) (float64, error) {
			v, err := p.raw.produce(ctx, d, records)
			return v * per, err
		}
	}
	make1 := &side{name: "generator", run: func(d time.Duration) (float64, error) {
		s, err := generated(ctx, d, load.Step{Target: load.Null, As: load.Fanout, Size: 50_000, Payload: load.Payload{Text: text}})
		if err != nil {
			return 0, err
		}
		return s.Rates.Acked, nil
	}}
	fs, pc := &side{name: "fsync", run: send(synced)}, &side{name: "page-cache", run: send(cached)}
	rfs, rpc := &side{name: "log-fsync", run: raw(synced)}, &side{name: "log-page-cache", run: raw(cached)}
	err = b.alternate("P2", b.length(3*time.Second, time.Second), fs, rfs, pc, rpc, make1)
	if err := errors.Join(err, synced.end(), cached.end()); err != nil {
		return err
	}
	b.add(result{ID: "P2", Work: fmt.Sprintf("fan-out over HTTP, fsynced; %.2f cores, %.0f ns; ref: log alone", fs.cores, fs.cost), Value: fs.best, Unit: "receivers/s", Reference: rfs.best, main: true}, atLeast(8e6, "receivers/s"))
	b.add(result{ID: "P2", Work: fmt.Sprintf("the same, page cache; %.2f cores, %.0f ns; ref: log alone", pc.cores, pc.cost), Value: pc.best, Unit: "receivers/s", Reference: rpc.best}, atLeast(12e6, "receivers/s"))
	b.add(result{ID: "P2", Work: fmt.Sprintf("making the bodies, null sink; %.0f ns", make1.cost), Value: make1.best, Unit: "receivers/s"}, info)
	return nil
}

// batches measures P3: requests of 500 different notifications, acknowledged
// fsynced. The reference is kgo into a broker with nothing of ours: records of
// the same size and durability.
func batches(ctx context.Context, b *bench) error {
	p, err := b.pair(ctx, true)
	if err != nil {
		return err
	}
	records := envelopes(4096, 1, text)
	batch := &side{name: "batch", run: func(d time.Duration) (float64, error) {
		return offered(offer(ctx, "P3", d, load.Step{Target: load.Batch, Size: 1000, Workers: inFlight / 1000, Payload: load.Payload{Text: text}}, p.node.client))
	}}
	raw := &side{name: "log", run: func(d time.Duration) (float64, error) { return p.raw.produce(ctx, d, records) }}
	err = b.alternate("P3", b.length(3*time.Second, time.Second), batch, raw)
	if err := errors.Join(err, p.end()); err != nil {
		return err
	}
	b.add(result{ID: "P3", Work: fmt.Sprintf("batches of 1,000 over HTTP, fsynced, records of %d B; %.2f cores, %.0f ns; ref: kgo into kfake, %.0f ns", len(records[0]), batch.cores, batch.cost, raw.cost), Value: batch.best, Unit: "records/s", Reference: raw.best, main: true}, ratioOf(0.6))
	return nil
}

// singles measures P4: one notification a request on 64 connections. The log is
// in page-cache mode, for the reference stores nothing: a bare net/http handler
// that parses the same JSON with the same library and answers.
func singles(ctx context.Context, b *bench) error {
	cached, err := b.pair(ctx, false)
	if err != nil {
		return err
	}
	synced, err := b.pair(ctx, true)
	if err != nil {
		return errors.Join(err, cached.end())
	}
	bare := bareServer()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() { _ = bare.Serve(ln) }() // ends with Close below
	token, _ := cached.node.client.Token(ctx)
	plain := client("http://"+ln.Addr().String(), token)
	send := func(cl *api.Client) func(d time.Duration) (float64, error) {
		return func(d time.Duration) (float64, error) {
			return offered(offer(ctx, "P4", d, load.Step{Target: load.Single, Workers: 64, Payload: load.Payload{Text: text}}, cl))
		}
	}
	pc, ref := &side{name: "page-cache", run: send(cached.node.client)}, &side{name: "bare", run: send(plain)}
	fs := &side{name: "fsync", run: send(synced.node.client)}
	err = b.alternate("P4", b.length(3*time.Second, time.Second), pc, ref, fs)
	if err := errors.Join(err, bare.Close(), cached.end(), synced.end()); err != nil {
		return err
	}
	b.add(result{ID: "P4", Work: fmt.Sprintf("single POST, 64 connections, page-cache log; %.1f us CPU; ref: bare net/http + JSON, %.1f us", pc.cost/1e3, ref.cost/1e3), Value: pc.best, Unit: "requests/s", Reference: ref.best, main: true}, ratioOf(0.75))
	b.add(result{ID: "P4", Work: fmt.Sprintf("the same, fsynced log (the reference stores nothing); %.1f us CPU", fs.cost/1e3), Value: fs.best, Unit: "requests/s", Reference: ref.best}, info)
	return nil
}

// bareServer is the reference of P4: net/http and the JSON library, nothing
// else.
func bareServer() *http.Server {
	return &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var n api.Notification
		if err := json.UnmarshalRead(r.Body, &n, json.RejectUnknownMembers(true)); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header()["Content-Type"] = []string{api.TypeJSON}
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"notification_id":"ntf_01JD0000000000000000000000","status":"ACCEPTED"}`))
	})}
}
