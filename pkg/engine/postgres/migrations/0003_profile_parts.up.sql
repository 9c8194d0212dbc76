-- A worker process keeps in memory the profiles of the users of its partitions of the log.
-- So profiles are in tables by the hash that chooses the partition: a process reads only
-- the parts that it needs.

-- user_hash is the hash of pkg/notify.Partition: Kafka's murmur2 of the id, 31 bits.
CREATE FUNCTION user_hash(who text) RETURNS bigint LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    b    CONSTANT bytea  := convert_to(who, 'UTF8');
    n    CONSTANT int    := length(b);
    m    CONSTANT bigint := 1540483477;
    low  CONSTANT bigint := 4294967295; -- 32 bits
    h    bigint := 2538058380 # n::bigint;
    k    bigint;
    at   int := 0;
BEGIN
    WHILE n - at >= 4 LOOP
        k := get_byte(b, at) + get_byte(b, at + 1) * 256 + get_byte(b, at + 2) * 65536 + get_byte(b, at + 3) * 16777216::bigint;
        k := (k * m) & low;
        k := k # (k >> 24);
        k := (k * m) & low;
        h := ((h * m) & low) # k;
        at := at + 4;
    END LOOP;
    IF n > at THEN
        IF n - at = 3 THEN
            h := h # (get_byte(b, at + 2)::bigint << 16);
        END IF;
        IF n - at >= 2 THEN
            h := h # (get_byte(b, at + 1)::bigint << 8);
        END IF;
        h := ((h # get_byte(b, at)::bigint) * m) & low;
    END IF;
    h := ((h # (h >> 13)) * m) & low;
    RETURN (h # (h >> 15)) & 2147483647;
END $$;

-- user_part is the part of a user: engine.ProfileParts is 36.
CREATE FUNCTION user_part(who text) RETURNS smallint LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT (user_hash(who) % 36)::smallint
$$;

CREATE TABLE profiles_in_parts (
    user_id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    doc     json NOT NULL, -- not jsonb: what was stored comes back byte for byte
    part    smallint NOT NULL,
    CONSTRAINT profiles_key PRIMARY KEY (part, user_id)
) PARTITION BY LIST (part);
DO $$
BEGIN
    FOR i IN 0..35 LOOP
        EXECUTE format('CREATE TABLE profiles_%s PARTITION OF profiles_in_parts FOR VALUES IN (%s)', i, i);
    END LOOP;
END $$;
INSERT INTO profiles_in_parts SELECT user_id, version, doc, user_part(user_id) FROM profiles;
DROP TABLE profiles;
ALTER TABLE profiles_in_parts RENAME TO profiles;
-- The change table. A user that is changed twice is in it once, with the later version.
CREATE INDEX profiles_by_version ON profiles (version);
-- The suppression list. It searches the text of doc, because the operator -> fails on a doc
-- with \u0000 in a text.
CREATE INDEX profiles_suppressing ON profiles (user_id) WHERE strpos(doc::text, '"suppressed":{') > 0;

CREATE OR REPLACE FUNCTION put_profile(who text, what json, expected bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    home  CONSTANT smallint := user_part(who);
    given CONSTANT bigint := take_versions('profiles', 1);
BEGIN
    IF expected = 0 THEN
        INSERT INTO profiles VALUES (who, given, what, home)
        ON CONFLICT (part, user_id) DO NOTHING;
    ELSE
        UPDATE profiles SET version = given, doc = what WHERE part = home AND user_id = who AND version = expected;
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the profile was changed since it was read' USING ERRCODE = 'NTFY1';
    END IF;
    PERFORM pg_notify('notifyd_profiles', given::text); -- wakes followers once this commits
    RETURN given;
END $$;
