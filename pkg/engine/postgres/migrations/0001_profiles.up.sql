-- A counter holds the number of the latest change. A writer first locks the row of its
-- counter and keeps the lock until its commit. So changes become visible in the order of
-- their versions: a follower that has seen a version misses none before it.
CREATE TABLE counters (
    name     text COLLATE "C" PRIMARY KEY,
    value    bigint NOT NULL,
    -- The server's timeline of the latest change, and the value at which this
    -- timeline began: after a failover to a standby that lacked commits, numbers
    -- are given a second time, and followers must notice.
    timeline text NOT NULL DEFAULT '',
    began    bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 10); -- few rows that change all the time
INSERT INTO counters (name, value) VALUES ('profiles', 0);

CREATE FUNCTION take_versions(which text, n bigint) RETURNS bigint LANGUAGE sql AS $$
    UPDATE counters SET
        value = value + n,
        began = CASE WHEN timeline = now_on THEN began ELSE value END,
        timeline = now_on
    FROM left(pg_walfile_name(pg_current_wal_lsn()), 8) AS now_on
    WHERE name = which
    RETURNING value
$$;

CREATE TABLE profiles (
    user_id text COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL,
    doc     json NOT NULL -- not jsonb: what was stored comes back byte for byte
);
-- The change table. A user that is changed twice is in it once, with the later version.
CREATE UNIQUE INDEX profiles_by_version ON profiles (version);

-- put_profile is one round trip, so that the counter is locked only until the commit.
-- expected is the version that must be stored; 0: there is no profile.
CREATE FUNCTION put_profile(who text, what json, expected bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    given bigint := take_versions('profiles', 1);
BEGIN
    IF expected = 0 THEN
        INSERT INTO profiles VALUES (who, given, what)
        ON CONFLICT (user_id) DO NOTHING;
    ELSE
        UPDATE profiles SET version = given, doc = what WHERE user_id = who AND version = expected;
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the profile was changed since it was read' USING ERRCODE = 'NTFY1';
    END IF;
    PERFORM pg_notify('notifyd_profiles', given::text); -- wakes followers once this commits
    RETURN given;
END $$;
