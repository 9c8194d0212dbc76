CREATE TABLE profiles_whole (
    user_id text COLLATE "C" CONSTRAINT profiles_pkey PRIMARY KEY,
    version bigint NOT NULL,
    doc     json NOT NULL
);
INSERT INTO profiles_whole SELECT user_id, version, doc FROM profiles;
DROP TABLE profiles;
ALTER TABLE profiles_whole RENAME TO profiles;
CREATE UNIQUE INDEX profiles_by_version ON profiles (version);

CREATE OR REPLACE FUNCTION put_profile(who text, what json, expected bigint) RETURNS bigint LANGUAGE plpgsql AS $$
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
    PERFORM pg_notify('notifyd_profiles', given::text);
    RETURN given;
END $$;
DROP FUNCTION user_part(text);
DROP FUNCTION user_hash(text);
