DROP FUNCTION put_profile(text, json, bigint);
DROP TABLE profiles;
DROP FUNCTION take_versions(text, bigint);
DROP TABLE counters;
