package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/postgres"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

const (
	profileUsers    = 20_000
	postgresCallers = 16 // the pool's default size
)

// postgresFigures measures the store of preferences in a new database. The peer writes and reads
// the same documents by user. It gives the changes no numbers, so other processes could not follow
// them. The lines of these measurements have no bound; they are for information.
func postgresFigures(ctx context.Context, b *bench, address string) {
	name := fmt.Sprintf("bench_%08x", rand.Uint32())
	u := rig.Must(url.Parse(address))
	u.Path = "/" + name
	admin := rig.Must(pgx.Connect(ctx, address))
	defer func() {
		ctx := context.WithoutCancel(ctx)
		if _, err := admin.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
			b.notef("could not remove the database %s: %v", name, err)
		}
		_ = admin.Close(ctx)
	}()
	rig.Must(admin.Exec(ctx, "CREATE DATABASE "+name))
	store := rig.Must(postgres.Open(ctx, postgres.Config{DSN: u.String(), MaxConns: postgresCallers, Timeout: time.Minute}))
	defer store.Close()
	rig.Must(store.Migrate(ctx, engine.Up))
	pc := rig.Must(pgxpool.ParseConfig(u.String()))
	pc.MaxConns = postgresCallers
	pool := rig.Must(pgxpool.NewWithConfig(ctx, pc))
	defer pool.Close()
	rig.Must(pool.Exec(ctx, `CREATE TABLE bare (user_id text PRIMARY KEY, doc json NOT NULL)`))
	(&postgresBench{b, store.Prefs(), pool}).measure(ctx)
}

type postgresBench struct {
	*bench
	prefs *postgres.Prefs
	pool  *pgxpool.Pool
}

func (p *postgresBench) measure(ctx context.Context) {
	user := func(i int) string { return "u" + strconv.Itoa(i) }
	prof := func(i int) engine.Profile {
		pr := profile(i, inProfiles)
		pr.User, pr.OptOut, pr.TimeZone = user(i), []string{"marketing"}, "Europe/Berlin"
		return pr
	}
	many := make([]engine.Profile, profileUsers)
	rows := make([][]any, profileUsers)
	for i := range many {
		many[i] = prof(i)
		rows[i] = []any{many[i].User, string(rig.Must(json.Marshal(&many[i])))}
	}
	p.compareFloods(ctx, versus{key: "postgres_import", work: "profiles imported", unit: "profiles/s", peer: "COPY into another table and from there into place", callers: 1},
		func(ctx context.Context, _ int) int { return rig.Must(len(many), p.prefs.PutMany(ctx, many)) },
		func(ctx context.Context, _ int) int { return p.copyIn(ctx, rows) })
	versions := make([]atomic.Uint64, profileUsers) // last known version of each user's profile; 0: not known
	one := versus{unit: "profiles/s", callers: postgresCallers}
	one.key, one.peer = "postgres_put", "INSERT ON CONFLICT"
	one.work = fmt.Sprintf("profiles stored, one a call, %d calls at a time, each change numbered", postgresCallers)
	p.compareFloods(ctx, one, func(ctx context.Context, _ int) int {
		i := rand.IntN(profileUsers)
		pr := prof(i)
		pr.Version = versions[i].Load()
		v, err := p.prefs.Put(ctx, pr)
		if notify.KindOf(err) == notify.KindConflict { // the version is not known yet, or another caller has changed it
			pr, _ = rig.Must2(p.prefs.Get(ctx, pr.User))
			versions[i].Store(pr.Version)
			return 0
		}
		rig.Ok(err)
		versions[i].Store(v)
		return 1
	}, func(ctx context.Context, _ int) int {
		pr := prof(rand.IntN(profileUsers))
		rig.Must(p.pool.Exec(ctx, `INSERT INTO bare VALUES ($1, $2) ON CONFLICT (user_id) DO UPDATE SET doc = excluded.doc`, pr.User, rig.Must(json.Marshal(&pr))))
		return 1
	})
	one.key, one.peer = "postgres_get", "SELECT by the key"
	one.work = fmt.Sprintf("profiles read, one a call, %d calls at a time", postgresCallers)
	p.compareFloods(ctx, one, func(ctx context.Context, _ int) int {
		rig.Must2(p.prefs.Get(ctx, user(rand.IntN(profileUsers))))
		return 1
	}, func(ctx context.Context, _ int) int {
		var doc []byte
		var pr engine.Profile
		rig.Ok(p.pool.QueryRow(ctx, `SELECT doc FROM bare WHERE user_id = $1`, user(rand.IntN(profileUsers))).Scan(&doc))
		return rig.Must(1, json.Unmarshal(doc, &pr))
	})
}

func (p *postgresBench) copyIn(ctx context.Context, rows [][]any) int {
	rig.Ok(pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		return rig.Try(func() {
			rig.Must(tx.Exec(ctx, `CREATE TEMPORARY TABLE coming (user_id text, doc json) ON COMMIT DROP`))
			rig.Must(tx.CopyFrom(ctx, pgx.Identifier{"coming"}, []string{"user_id", "doc"}, pgx.CopyFromRows(rows)))
			rig.Must(tx.Exec(ctx, `INSERT INTO bare SELECT * FROM coming ON CONFLICT (user_id) DO UPDATE SET doc = excluded.doc`))
		})
	}))
	return len(rows)
}
