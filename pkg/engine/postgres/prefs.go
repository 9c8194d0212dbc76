package postgres

import (
	"context"
	"encoding/json"
	"math"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Prefs implements users.ProfileStore.
type Prefs struct {
	s *Store

	mu       sync.Mutex
	lastSeen counter // the counter that Changes or Version read last; guarded by mu
}

// counter is the row from which profiles get their versions.
type counter struct {
	value    int64
	timeline string // timeline of the server at the latest change; a failover begins a new timeline
	began    int64  // the value when the timeline began
}

// Get implements users.ProfileStore.
func (p *Prefs) Get(ctx context.Context, user string) (out engine.Profile, ok bool, err error) {
	var version int64
	var doc []byte
	ok, err = p.s.queryOne(ctx, []any{&version, &doc}, `SELECT version, doc FROM profiles WHERE part = user_part($1) AND user_id = $1`, user)
	if !ok {
		return out, false, err
	}
	err = readProfile(user, version, doc, &out)
	return out, err == nil, err
}

func readProfile(user string, version int64, doc []byte, p *engine.Profile) error {
	if json.Unmarshal(doc, p) != nil {
		return corruptError("profile", user)
	}
	p.User, p.Version = user, uint64(version)
	return nil
}

// Put implements users.ProfileStore.
func (p *Prefs) Put(ctx context.Context, pr engine.Profile) (version uint64, err error) {
	doc, err := encodeProfile(&pr)
	if err != nil {
		return 0, err
	}
	if pr.Version > math.MaxInt64 {
		return 0, changedError("profile_changed", "profile")
	}
	ok, err := p.s.queryOne(ctx, []any{&version}, `SELECT put_profile($1, $2, $3)`, pr.User, doc, int64(pr.Version))
	if err == nil && !ok {
		err = corruptError("counter", "profiles")
	}
	return version, err
}

// encodeProfile returns the JSON document of a profile as it is stored. The document does
// not contain the user and the version, because these are columns.
func encodeProfile(p *engine.Profile) ([]byte, error) {
	if p.User == "" || len(p.User) > notify.MaxUserID {
		return nil, notify.Invalid("bad_user", "user_id", "must have 1 to 128 bytes")
	}
	c := *p
	c.User, c.Version = "", 0
	doc, err := json.Marshal(&c)
	if err != nil {
		e := notify.Invalid("bad_profile", "", "the profile cannot be written as JSON")
		e.Err = err
		return nil, e
	}
	return doc, nil
}

// putBatchSize is how many profiles PutMany stores in one transaction. Other writers wait
// until this transaction unlocks the counter. With this size they wait about 40 ms.
const putBatchSize = 5000

// PutMany implements users.ProfileStore.
func (p *Prefs) PutMany(ctx context.Context, ps []engine.Profile) error {
	docs := make([]string, len(ps))
	for i := range ps { // check all profiles before the first profile is stored
		doc, err := encodeProfile(&ps[i])
		if err != nil {
			return err
		}
		docs[i] = string(doc)
	}
	for len(ps) > 0 {
		n := min(len(ps), putBatchSize)
		if err := p.putBatch(ctx, ps[:n], docs[:n]); err != nil {
			return p.s.handleError(err)
		}
		ps, docs = ps[n:], docs[n:]
	}
	return nil
}

// putBatch first copies the profiles into a temporary table of the connection. Then it
// copies them from that table into the table profiles. It locks the counter only during the
// second copy.
func (p *Prefs) putBatch(ctx context.Context, ps []engine.Profile, docs []string) error {
	last := make(map[string]int, len(ps)) // if ps has two profiles of a user, the last profile wins
	for i := range ps {
		last[ps[i].User] = i
	}
	kept := make([][]any, 0, len(last))
	for i := range ps {
		if last[ps[i].User] != i {
			continue
		}
		kept = append(kept, []any{len(kept) + 1, ps[i].User, docs[i]})
	}
	return pgx.BeginFunc(ctx, p.s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `CREATE TEMPORARY TABLE IF NOT EXISTS profiles_coming (n bigint, user_id text, doc json, part smallint GENERATED ALWAYS AS (user_part(user_id)) STORED) ON COMMIT DELETE ROWS`); err != nil {
			return err
		}
		if _, err := tx.CopyFrom(ctx, pgx.Identifier{"profiles_coming"}, []string{"n", "user_id", "doc"}, pgx.CopyFromRows(kept)); err != nil {
			return err
		}
		var end int64
		if err := tx.QueryRow(ctx, `SELECT take_versions('profiles', $1)`, len(kept)).Scan(&end); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO profiles SELECT user_id, $1 + n, doc, part FROM profiles_coming ORDER BY n
			ON CONFLICT (part, user_id) DO UPDATE SET version = excluded.version, doc = excluded.doc`, end-int64(len(kept))); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `SELECT pg_notify('notifyd_profiles', $1::bigint::text)`, end)
		return err
	})
}

// Changes implements users.ProfileStore.
func (p *Prefs) Changes(ctx context.Context, since uint64, max int) (out []engine.Change, err error) {
	if max <= 0 {
		return nil, nil
	}
	// One statement reads the counter and the rows as they were at the same moment. So no
	// row has a version greater than the counter.
	var now counter
	err = p.s.queryAll(ctx, func(rows pgx.Rows) error {
		var version *int64
		var user *string
		var doc []byte
		if err := rows.Scan(&now.value, &now.timeline, &now.began, &version, &user, &doc); err != nil || user == nil {
			return err
		}
		out = append(out, engine.Change{Version: uint64(*version)})
		return readProfile(*user, *version, doc, &out[len(out)-1].Profile)
	}, func() { out = nil }, `
		SELECT c.value, c.timeline, c.began, p.version, p.user_id, p.doc
		FROM counters c LEFT JOIN (SELECT * FROM profiles WHERE version > $1 ORDER BY version LIMIT $2) p ON true
		WHERE c.name = 'profiles' ORDER BY p.version`, int64(min(since, math.MaxInt64)), max)
	if err == nil {
		err = p.checkCounter(now)
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// checkCounter stores the counter in lastSeen. If versions that Changes has returned are
// lost, it returns store_regressed. Versions are lost in a failover to a standby that
// lacked these versions. The follower must then call Version and read all profiles again.
func (p *Prefs) checkCounter(now counter) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	lowest := now.value
	if now.timeline != p.lastSeen.timeline {
		lowest = min(lowest, now.began)
	}
	if lowest < p.lastSeen.value {
		return regressedError(p.lastSeen.value, lowest)
	}
	p.lastSeen = now
	return nil
}

// Version implements users.ProfileStore.
func (p *Prefs) Version(ctx context.Context) (uint64, error) {
	var now counter
	ok, err := p.s.queryOne(ctx, []any{&now.value, &now.timeline, &now.began}, `SELECT value, timeline, began FROM counters WHERE name = 'profiles'`)
	if err == nil && !ok {
		err = corruptError("counter", "profiles")
	}
	if err != nil {
		return 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastSeen = now
	return uint64(now.value), nil
}

// Scan implements users.ProfileStore. It calls fn while it reads, so neither the server nor this
// process keeps all rows in memory.
func (p *Prefs) Scan(ctx context.Context, parts []int, fn func(*engine.Profile) error) error {
	sql, args := `SELECT user_id, version, doc FROM profiles`, []any(nil)
	if parts != nil {
		sql, args = sql+` WHERE part = ANY($1)`, []any{parts}
	}
	rows, err := p.s.pool.Query(ctx, sql, args...)
	if err != nil {
		return p.s.handleError(err)
	}
	defer rows.Close()
	for rows.Next() {
		pr := new(engine.Profile)
		if err := p.scanProfile(rows, pr); err != nil {
			return err
		}
		if err := fn(pr); err != nil {
			return err
		}
	}
	return p.s.handleError(rows.Err())
}

// scanProfile reads a row with the columns user_id, version and doc.
func (p *Prefs) scanProfile(rows pgx.Rows, pr *engine.Profile) error {
	var user string
	var version int64
	var doc []byte
	if err := rows.Scan(&user, &version, &doc); err != nil {
		return p.s.handleError(err)
	}
	return readProfile(user, version, doc, pr)
}

// GetMany implements users.ProfileStore. It finds each user with the index of the user's
// part. Without the LIMIT the planner would read whole tables when there are many users.
func (p *Prefs) GetMany(ctx context.Context, users []string) ([]engine.Profile, error) {
	return p.queryProfiles(ctx, `SELECT p.* FROM unnest($1::text[]) AS u CROSS JOIN LATERAL
		(SELECT user_id, version, doc FROM profiles WHERE part = user_part(u) AND user_id = u LIMIT 1) p`, users)
}

// Suppressing implements users.ProfileStore.
func (p *Prefs) Suppressing(ctx context.Context, after string, max int) ([]engine.Profile, error) {
	return p.queryProfiles(ctx, `SELECT user_id, version, doc FROM profiles
		WHERE strpos(doc::text, '"suppressed":{') > 0 AND user_id > $1 ORDER BY user_id LIMIT $2`, after, max)
}

func (p *Prefs) queryProfiles(ctx context.Context, sql string, args ...any) (out []engine.Profile, err error) {
	err = p.s.queryAll(ctx, func(rows pgx.Rows) error {
		out = append(out, engine.Profile{})
		return p.scanProfile(rows, &out[len(out)-1])
	}, func() { out = nil }, sql, args...)
	if err != nil {
		return nil, err
	}
	return out, nil
}
