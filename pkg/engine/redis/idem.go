package redis

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"

	client "github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Idem implements request.Idem.
type Idem struct{ s *Store }

// idemParts is the number of hash tags over which the keys are spread, so that every node
// of a cluster has some of the keys. If this number changes, the stored keys are not found
// any more.
const idemParts = 32

// purgeGrace is how long the server keeps a key after its time of expiry (Expires), in ms. Purge
// normally removes the key before that.
const purgeGrace = 3_600_000

// newToken returns a random token for one change of a reservation. The change stores the
// token in the reservation. If an answer does not arrive in time, the client sends the
// command again. If the second command finds its own token in the reservation, the first
// command was applied, and the second command changes nothing.
func newToken() string {
	var b [12]byte
	_, _ = rand.Read(b[:])
	return string(b[:])
}

var (
	// KEYS: reservation, ends. ARGV: token, member, now, ttl, then the 13 values of
	// reservationFields. It returns 1 if it stored the reservation, or the stored fields if the
	// key is in use. Each call also removes up to two expired members from the sorted set
	// "ends": members whose reservation keys have expired in the server. So "ends" does not
	// grow without limit if no process calls Purge.
	idemReserve = client.NewScript(`
local have = redis.call('HMGET', KEYS[1], 'exp', 'token')
if have[1] and tonumber(have[1]) > tonumber(ARGV[3]) then
  if have[2] == ARGV[1] then return 1 end
  return redis.call('HMGET', KEYS[1], ` + idemFields + `)
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'fp', ARGV[5], 'base', ARGV[6], 'acc', ARGV[7], 'fire', ARGV[8],
  'parts', ARGV[9], 'block', ARGV[10], 'ver', ARGV[11], 'owner', ARGV[12], 'lease', ARGV[13], 'exp', ARGV[14],
  'done', ARGV[15], 'status', ARGV[16], 'body', ARGV[17])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('ZADD', KEYS[2], ARGV[14], ARGV[2])
local over = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[3], 'LIMIT', 0, 2)
for _, m in ipairs(over) do
  if redis.call('EXISTS', string.sub(KEYS[1], 1, -#ARGV[2] - 1) .. m) == 0 then redis.call('ZREM', KEYS[2], m) end
end
return 1`)
	// KEYS: reservation. ARGV: token, old owner, old lease, owner, lease.
	idemTakeOver = client.NewScript(`
local have = redis.call('HMGET', KEYS[1], 'done', 'owner', 'lease', 'token')
if have[4] == ARGV[1] then return 1 end
if have[1] ~= '0' or have[2] ~= ARGV[2] or have[3] ~= ARGV[3] then return 0 end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'owner', ARGV[4], 'lease', ARGV[5])
return 1`)
	// KEYS: reservation. ARGV: owner, fire, parts, block, version.
	idemFreeze = client.NewScript(`
local have = redis.call('HMGET', KEYS[1], 'done', 'owner')
if have[1] ~= '0' or have[2] ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'fire', ARGV[2], 'parts', ARGV[3], 'block', ARGV[4], 'ver', ARGV[5])
return 1`)
	// KEYS: reservation, ends. ARGV: member, status, body, expires, purgeGrace.
	idemFinish = client.NewScript(`
local old = redis.call('HGET', KEYS[1], 'exp')
if not old then return 0 end
local ttl = redis.call('PTTL', KEYS[1]) + tonumber(ARGV[4]) - tonumber(old)
redis.call('HSET', KEYS[1], 'done', '1', 'status', ARGV[2], 'body', ARGV[3], 'exp', ARGV[4])
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.min(math.max(ttl, tonumber(ARGV[5])), ` + longestTTL + `)))
redis.call('ZADD', KEYS[2], ARGV[4], ARGV[1])
return 1`)
	// KEYS: reservation, ends. ARGV: member, owner, lease.
	idemRelease = client.NewScript(`
local have = redis.call('HMGET', KEYS[1], 'done', 'owner', 'lease')
if have[1] and (have[1] ~= '0' or have[2] ~= ARGV[2] or have[3] ~= ARGV[3]) then return 0 end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1`)
	// KEYS: ends. ARGV: prefix of reservations, now, greatest number of members to remove. It
	// returns how many members it removed from the sorted set "ends", and how many reservations
	// of these members still existed.
	idemPurge = client.NewScript(`
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[2], 'LIMIT', 0, ARGV[3])
local n = 0
for _, m in ipairs(due) do n = n + redis.call('DEL', ARGV[1] .. m) end
if #due > 0 then redis.call('ZREM', KEYS[1], unpack(due)) end
return {#due, n}`)
)

const (
	idemFields = `'fp', 'base', 'acc', 'fire', 'parts', 'block', 'ver', 'owner', 'lease', 'exp', 'done', 'status', 'body'`
	longestTTL = `100000000000` // ms: three years
)

// keys returns the two Redis keys of a reservation, and the member of the reservation in
// the sorted set of the second key. The member is a hash, because callers choose their
// idempotency keys and such a key may contain private data.
func (i Idem) keys(k engine.IdemKey) (keys []string, member string) {
	h := sha256.New()
	var n [8]byte
	for _, part := range [...]string{k.Caller, k.Route, k.Key} {
		binary.LittleEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		h.Write([]byte(part))
	}
	sum := h.Sum(nil)
	member = base64.RawURLEncoding.EncodeToString(sum)
	prefix := i.prefix(int(sum[0]) % idemParts)
	return []string{prefix + member, prefix + "ends"}, member
}

func (i Idem) prefix(part int) string { return i.s.key(fmt.Sprintf("{idem:%d}:", part)) }

// runBool runs a script that returns 1 or 0.
func (i Idem) runBool(ctx context.Context, sc *client.Script, keys []string, args ...any) (bool, error) {
	if ctx.Err() != nil {
		return false, translate(context.Cause(ctx))
	}
	n, err := sc.Run(ctx, i.s.c, keys, args...).Int()
	return n == 1, translate(err)
}

// Reserve stores r if its key is free or has expired (Expires <= nowMs), and returns r and
// true. Otherwise it returns the stored reservation and false.
func (i Idem) Reserve(ctx context.Context, r engine.Reservation, nowMs int64) (engine.Reservation, bool, error) {
	if ctx.Err() != nil {
		return engine.Reservation{}, false, translate(context.Cause(ctx))
	}
	keys, member := i.keys(r.Key)
	args := append([]any{newToken(), member, nowMs, serverTTL(r.Expires, nowMs)}, reservationFields(&r)...)
	v, err := idemReserve.Run(ctx, i.s.c, keys, args...).Result()
	if err != nil {
		return engine.Reservation{}, false, translate(err)
	}
	if l, ok := v.([]any); ok {
		stored, err := parseReservation(r.Key, l)
		return stored, false, err
	}
	return r, true, nil
}

// serverTTL returns how long the server keeps a key, in ms. It uses nowMs, the time of the
// caller's clock, because the clocks of the caller and the server may differ.
func serverTTL(expires, nowMs int64) int64 {
	left := uint64(0)
	if expires > nowMs {
		left = uint64(expires) - uint64(nowMs) // cannot wrap: expires > nowMs
	}
	most, _ := strconv.ParseUint(longestTTL, 10, 64)
	return int64(min(left, most-purgeGrace)) + purgeGrace
}

func reservationFields(r *engine.Reservation) []any {
	done := "0"
	if r.Done {
		done = "1"
	}
	return []any{
		string(r.Fingerprint[:]), string(r.Base[:]), r.Accepted, r.Fire, int(r.Partitions), r.BlockSize, int(r.Version),
		r.Owner, r.LeaseUntil, r.Expires, done, r.Status, string(r.Body),
	}
}

func parseReservation(key engine.IdemKey, l []any) (r engine.Reservation, err error) {
	fp, base := asString(element(l, 0)), asString(element(l, 1))
	if len(l) != 13 || len(fp) != len(r.Fingerprint) || len(base) != len(r.Base) {
		return r, notify.Corrupt("redis", "a reservation")
	}
	r = engine.Reservation{
		Key: key, Accepted: asInt(l[2]), Fire: asInt(l[3]), Partitions: uint16(asInt(l[4])), BlockSize: uint32(asInt(l[5])),
		Version: uint16(asInt(l[6])), Owner: asString(l[7]), LeaseUntil: asInt(l[8]), Expires: asInt(l[9]),
		Done: asString(l[10]) == "1", Status: int(asInt(l[11])),
	}
	copy(r.Fingerprint[:], fp)
	copy(r.Base[:], base)
	if body := asString(l[12]); body != "" {
		r.Body = []byte(body)
	}
	return r, nil
}

// TakeOver gives the reservation of r.Key to the given owner until leaseUntil. It does this only
// if the stored reservation is not done and still has the owner and the lease of r. Otherwise
// another process was faster, and TakeOver returns false.
func (i Idem) TakeOver(ctx context.Context, r engine.Reservation, owner string, leaseUntil int64) (bool, error) {
	keys, _ := i.keys(r.Key)
	return i.runBool(ctx, idemTakeOver, keys[:1], newToken(), r.Owner, r.LeaseUntil, owner, leaseUntil)
}

// Freeze stores the layout of a reservation: the fields Fire, Partitions, BlockSize and Version
// of r. It returns notify.KindConflict if r.Owner is not the owner of the reservation any more.
func (i Idem) Freeze(ctx context.Context, r engine.Reservation) error {
	keys, _ := i.keys(r.Key)
	ok, err := i.runBool(ctx, idemFreeze, keys[:1], r.Owner, r.Fire, int(r.Partitions), r.BlockSize, int(r.Version))
	if err == nil && !ok {
		return conflict("reservation_lost", "another process works on this request")
	}
	return err
}

// Finish stores the answer of a reservation. It returns notify.KindNotFound if the
// reservation does not exist.
func (i Idem) Finish(ctx context.Context, key engine.IdemKey, status int, body []byte, expires int64) error {
	keys, member := i.keys(key)
	ok, err := i.runBool(ctx, idemFinish, keys, member, status, body, expires, purgeGrace)
	if err == nil && !ok {
		return notify.NotFound("reservation")
	}
	return err
}

// Release removes the reservation of r.Key. The owner of the reservation calls Release if
// the request has stored nothing. Release returns notify.KindConflict if the request was
// answered, or if the stored reservation has another owner or lease than r.
func (i Idem) Release(ctx context.Context, r engine.Reservation) error {
	keys, member := i.keys(r.Key)
	ok, err := i.runBool(ctx, idemRelease, keys, member, r.Owner, r.LeaseUntil)
	if err == nil && !ok {
		return conflict("reservation_lost", "the request was answered already, or another process works on it")
	}
	return err
}

// Purge removes keys with Expires <= nowMs and returns how many it removed. It does not
// count keys that had already expired in the server.
func (i Idem) Purge(ctx context.Context, nowMs int64) (n int, err error) {
	const most = 500
	for part := range idemParts {
		for due := int64(math.MaxInt64); due >= most; {
			if ctx.Err() != nil {
				return n, translate(context.Cause(ctx))
			}
			v, err := idemPurge.Run(ctx, i.s.c, []string{i.prefix(part) + "ends"}, i.prefix(part), nowMs, most).Slice()
			if err != nil {
				return n, translate(err)
			}
			due = asInt(element(v, 0))
			n += int(asInt(element(v, 1)))
		}
	}
	return n, nil
}
