package main

import (
	"context"
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
	"github.com/notifyd/notifyd/tests/internal/rig"
)

const text = "Your order is on its way."

// pair has a node, and an embedded log without a node (raw). Both have the same durability.
type pair struct {
	node *node
	raw  *rawLog
	dir  string
}

func (b *bench) pair(ctx context.Context, sync bool) *pair {
	p := &pair{dir: b.folder("api")}
	cfg := b.config(p.dir, sync)
	p.node = b.start(ctx, cfg, cluster.RoleAPI, nil)
	d := embedded.PageCache
	if sync {
		d = embedded.Fsync
	}
	p.raw = b.rawLog(ctx, d, cfg.Log.Partitions["push"])
	return p
}

func (p *pair) end() {
	p.node.end()
	p.raw.close()
	raw, _ := filepath.Glob(filepath.Join(filepath.Dir(p.dir), "raw-*"))
	removeFolders(append(raw, p.dir)...)
}

// rate returns one side of a comparison. It sends the load st to a server and measures accepted
// receivers per second.
func rate(ctx context.Context, name string, cl *api.Client, st load.Step) *side {
	st.Payload = load.Payload{Text: text}
	return &side{name: name, run: func(d time.Duration) float64 { return offer(ctx, name, d, st, cl).Rates.Acked }}
}

// measureFanouts measures P2: requests of 50,000 receivers in JSON over HTTP, in a closed loop. The
// node validates and splits each request and answers when the records are durable. The node has
// only the API role, so nothing is delivered. The reference is the log without a node: a client
// appends records of 8,333 receivers.
func measureFanouts(ctx context.Context, b *bench) {
	synced, cached := b.pair(ctx, true), b.pair(ctx, false)
	const per = 8333
	records := envelopes(64, per, text)
	raw := func(name string, p *pair) *side {
		return &side{name: name, run: func(d time.Duration) float64 { return per * p.raw.produce(ctx, d, records) }}
	}
	make1 := &side{name: "generator", run: func(d time.Duration) float64 {
		return generate(ctx, d, load.Step{Target: load.Null, As: load.Fanout, Size: 50_000, Payload: load.Payload{Text: text}}).Rates.Acked
	}}
	fan := load.Step{Target: load.Fanout}
	fs, pc := rate(ctx, "fsync", synced.node.client, fan), rate(ctx, "page-cache", cached.node.client, fan)
	rfs, rpc := raw("log-fsync", synced), raw("log-page-cache", cached)
	b.alternate("P2", b.length(3*time.Second, time.Second), fs, rfs, pc, rpc, make1)
	synced.end()
	cached.end()
	b.add(result{ID: "P2", Work: fmt.Sprintf("fan-out over HTTP, fsynced; %.2f cores, %.0f ns of processor time per receiver; ref: log alone", fs.cores, fs.cost), Value: fs.best, Unit: "receivers/s", Reference: rfs.best, main: true}, atLeast(8e6, "receivers/s"))
	b.add(result{ID: "P2", Work: fmt.Sprintf("the same, page cache; %.2f cores, %.0f ns; ref: log alone", pc.cores, pc.cost), Value: pc.best, Unit: "receivers/s", Reference: rpc.best}, atLeast(12e6, "receivers/s"))
	b.add(result{ID: "P2", Work: fmt.Sprintf("the generator makes the same requests and sends them to the null sink; %.0f ns", make1.cost), Value: make1.best, Unit: "receivers/s"}, info)
}

// measureBatches measures P3: requests of 1,000 different notifications. The node answers after the
// records are fsynced. The reference is the log without a node: a kgo client appends records of the
// same size and durability.
func measureBatches(ctx context.Context, b *bench) {
	p := b.pair(ctx, true)
	records := envelopes(4096, 1, text)
	batch := rate(ctx, "batch", p.node.client, load.Step{Target: load.Batch, Size: 1000, Workers: inFlight / 1000})
	raw := &side{name: "log", run: func(d time.Duration) float64 { return p.raw.produce(ctx, d, records) }}
	b.alternate("P3", b.length(3*time.Second, time.Second), batch, raw)
	p.end()
	b.add(result{ID: "P3", Work: fmt.Sprintf("batches of 1,000 over HTTP, fsynced, records of %d B; %.2f cores, %.0f ns; ref: log alone, %.0f ns", len(records[0]), batch.cores, batch.cost, raw.cost), Value: batch.best, Unit: "records/s", Reference: raw.best, main: true}, ratioOf(0.6))
}

// measureSingleRequests measures P4: requests of one notification on 64 connections. The reference
// is a net/http handler that only parses the same JSON with the same library and answers. It stores
// nothing. So the measured node does not fsync its log. A node that fsyncs its log is measured for
// information.
func measureSingleRequests(ctx context.Context, b *bench) {
	cached, synced := b.pair(ctx, false), b.pair(ctx, true)
	bare := bareServer()
	ln := rig.Must(net.Listen("tcp", "127.0.0.1:0"))
	go func() { _ = bare.Serve(ln) }() // ends when Close is called below
	token, _ := cached.node.client.Token(ctx)
	plain := client("http://"+ln.Addr().String(), token)
	single := load.Step{Target: load.Single, Workers: 64}
	pc, ref, fs := rate(ctx, "page-cache", cached.node.client, single), rate(ctx, "bare", plain, single), rate(ctx, "fsync", synced.node.client, single)
	b.alternate("P4", b.length(3*time.Second, time.Second), pc, ref, fs)
	rig.Ok(bare.Close())
	cached.end()
	synced.end()
	b.add(result{ID: "P4", Work: fmt.Sprintf("single POST, 64 connections, page-cache log; %.1f us CPU; ref: bare net/http + JSON, %.1f us", pc.cost/1e3, ref.cost/1e3), Value: pc.best, Unit: "requests/s", Reference: ref.best, main: true}, ratioOf(0.75))
	b.add(result{ID: "P4", Work: fmt.Sprintf("the same, fsynced log (the reference stores nothing); %.1f us CPU", fs.cost/1e3), Value: fs.best, Unit: "requests/s", Reference: ref.best}, info)
}

// bareServer returns the reference of P4. It uses only net/http and the JSON library.
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
