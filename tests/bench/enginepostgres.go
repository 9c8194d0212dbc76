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
)

const (
	profileUsers    = 20_000
	postgresCallers = 16 // the pool's default size
)

// postgresFigures measures preferences in a database of its own. The peer upserts
// and reads the same documents by their user; it numbers no changes, so nobody
// could follow them. P10 asks nothing of these: the lines are for information.
func postgresFigures(ctx context.Context, b *bench, at string) (err error) {
	name := fmt.Sprintf("bench_%08x", rand.Uint32())
	u, err := url.Parse(at)
	if err != nil {
		return err
	}
	u.Path = "/" + name
	admin, err := pgx.Connect(ctx, at)
	if err != nil {
		return err
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		if _, err := admin.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
			b.notef("the database %s is left behind: %v", name, err)
		}
		_ = admin.Close(ctx)
	}()
	if _, err := admin.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return err
	}
	store, err := postgres.Open(ctx, postgres.Config{DSN: u.String(), MaxConns: postgresCallers, Timeout: time.Minute})
	if err != nil {
		return err
	}
	defer store.Close()
	if _, err := store.Migrate(ctx, postgres.Up); err != nil {
		return err
	}
	pc, err := pgxpool.ParseConfig(u.String())
	if err != nil {
		return err
	}
	pc.MaxConns = postgresCallers
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, `CREATE TABLE bare (user_id text PRIMARY KEY, doc json NOT NULL)`); err != nil {
		return err
	}
	return (&postgresBench{b, store.Prefs(), pool}).measure(ctx)
}

type postgresBench struct {
	*bench
	prefs engine.Prefs
	pool  *pgxpool.Pool
}

func (p *postgresBench) measure(ctx context.Context) error {
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
		doc, err := json.Marshal(&many[i])
		if err != nil {
			return err
		}
		rows[i] = []any{many[i].User, string(doc)}
	}
	err := p.floods(ctx, 1, "postgres_import", "profiles imported", "profiles/s", "COPY into a table and from there into place", info,
		func(ctx context.Context, _ int) (int, error) { return len(many), p.prefs.PutMany(ctx, many) },
		func(ctx context.Context, _ int) (int, error) { return len(rows), p.copyIn(ctx, rows) })
	if err != nil {
		return err
	}
	versions := make([]atomic.Uint64, profileUsers) // as far as they are known
	err = p.floods(ctx, postgresCallers, "postgres_put", fmt.Sprintf("profiles stored one by one, %d at a time, changes numbered", postgresCallers), "profiles/s", "INSERT ON CONFLICT", info,
		func(ctx context.Context, _ int) (int, error) {
			i := rand.IntN(profileUsers)
			pr := prof(i)
			pr.Version = versions[i].Load()
			v, err := p.prefs.Put(ctx, pr)
			if notify.KindOf(err) == notify.KindConflict { // not known yet, or another caller's
				pr, _, err = p.prefs.Get(ctx, pr.User)
				versions[i].Store(pr.Version)
				return 0, err
			}
			versions[i].Store(v)
			return 1, err
		},
		func(ctx context.Context, _ int) (int, error) {
			pr := prof(rand.IntN(profileUsers))
			doc, err := json.Marshal(&pr)
			if err == nil {
				_, err = p.pool.Exec(ctx, `INSERT INTO bare VALUES ($1, $2) ON CONFLICT (user_id) DO UPDATE SET doc = excluded.doc`, pr.User, doc)
			}
			return 1, err
		})
	if err != nil {
		return err
	}
	return p.floods(ctx, postgresCallers, "postgres_get", fmt.Sprintf("profiles read one by one, %d at a time", postgresCallers), "profiles/s", "SELECT by the key", info,
		func(ctx context.Context, _ int) (int, error) {
			_, _, err := p.prefs.Get(ctx, user(rand.IntN(profileUsers)))
			return 1, err
		},
		func(ctx context.Context, _ int) (int, error) {
			var doc []byte
			var pr engine.Profile
			err := p.pool.QueryRow(ctx, `SELECT doc FROM bare WHERE user_id = $1`, user(rand.IntN(profileUsers))).Scan(&doc)
			if err == nil {
				err = json.Unmarshal(doc, &pr)
			}
			return 1, err
		})
}

func (p *postgresBench) copyIn(ctx context.Context, rows [][]any) error {
	return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `CREATE TEMPORARY TABLE coming (user_id text, doc json) ON COMMIT DROP`); err != nil {
			return err
		}
		if _, err := tx.CopyFrom(ctx, pgx.Identifier{"coming"}, []string{"user_id", "doc"}, pgx.CopyFromRows(rows)); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO bare SELECT * FROM coming ON CONFLICT (user_id) DO UPDATE SET doc = excluded.doc`)
		return err
	})
}
