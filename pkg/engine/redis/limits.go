package redis

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Limits implements limit.Limits.
type Limits struct{ s *Store }

var (
	// KEYS: bucket. ARGV: n, rate, burst. Lua truncates the numbers that it returns and
	// prints only 14 digits, so tokens are stored as strings of 17 digits. The key of a
	// bucket expires when the bucket is full again. A bucket with rate 0 never expires.
	takeTokens = newScript(`
local n, rate, burst = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local have = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(have[1]) or burst, tonumber(have[2]) or now
if now > at then
  tokens = tokens + (now - at) / 1000000 * rate
  at = now
end
tokens = math.min(tokens, burst)
local got = math.min(n, math.floor(tokens + 1e-9))
tokens = math.max(tokens - got, 0)
redis.call('HSET', KEYS[1], 'tokens', string.format('%.17g', tokens), 'at', string.format('%.0f', at))
if rate > 0 then
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.min((burst - tokens) / rate * 1000 + 1000, 1e12)))
else
  redis.call('PERSIST', KEYS[1])
end
local wait = '0'
if got < n then
  if rate <= 0 or (1 - tokens) / rate > 9e9 then wait = '-1'
  else wait = string.format('%.0f', math.ceil((1 - tokens) / rate * 1000000)) end
end
return {got, wait}`)
	// KEYS: account. ARGV: the end of the block, µs since 1970.
	blockAccount = newScript(`
local till = tonumber(redis.call('GET', KEYS[1]) or '0')
local to = tonumber(ARGV[2])
if to <= till or to <= now then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', string.format('%.0f', math.ceil((to - now) / 1000)))
return 1`)
)

// Take removes up to n tokens from a bucket and returns how many it removed. The parameter rate
// is the number of tokens that the bucket gets per second, and burst is the greatest number that
// it can hold. If Take removed fewer than n tokens, the result wait is the time until the next
// token. A new bucket is full. A bucket with a rate of 0 or less is never refilled. Take returns
// notify.KindInvalid if n is negative, burst is less than 1 or rate is not a number.
func (l Limits) Take(ctx context.Context, bucket string, n int, rate float64, burst int) (got int, wait time.Duration, err error) {
	if n < 0 || burst < 1 || math.IsNaN(rate) {
		return 0, 0, notify.Invalid("bad_limit", "burst", fmt.Sprintf("the burst of a bucket must be at least 1, its rate a number, and the number of tokens to take at least 0; the burst is %d, the rate %g, the number of tokens %d", burst, rate, n))
	}
	rate = min(max(rate, 0), 1e15) // tonumber of Lua cannot read an infinite rate
	v, err := l.s.run(ctx, takeTokens, []string{l.s.key("bucket:" + bucket)}, n, strconv.FormatFloat(rate, 'g', -1, 64), burst)
	if err != nil {
		return 0, 0, err
	}
	us := asInt(element(asList(v), 1))
	if us < 0 {
		return int(asInt(element(asList(v), 0))), math.MaxInt64, nil
	}
	return int(asInt(element(asList(v), 0))), time.Duration(us) * time.Microsecond, nil
}

// Block blocks an account until the given time, with a precision of a microsecond. If the account
// is already blocked until a later time, Block changes nothing.
func (l Limits) Block(ctx context.Context, account string, end time.Time) error {
	_, err := l.s.run(ctx, blockAccount, []string{l.s.key("blocked:" + account)}, end.UnixMicro())
	return err
}

// Blocked returns for each account when its block ends. It returns the zero time for an
// account that is not blocked.
func (l Limits) Blocked(ctx context.Context, accounts []string) ([]time.Time, error) {
	if ctx.Err() != nil {
		return nil, translate(context.Cause(ctx))
	}
	// One GET for each account, in one pipeline: in a cluster the keys are on several nodes.
	cmds, err := l.s.c.Pipelined(ctx, func(p client.Pipeliner) error {
		for _, a := range accounts {
			p.Get(ctx, l.s.key("blocked:"+a))
		}
		return nil
	})
	if err != nil && !errors.Is(err, client.Nil) {
		return nil, translate(err)
	}
	out := make([]time.Time, len(accounts))
	for i, cmd := range cmds {
		us, err := cmd.(*client.StringCmd).Int64()
		switch {
		case errors.Is(err, client.Nil):
		case err != nil:
			return nil, translate(err)
		default:
			out[i] = time.UnixMicro(us)
			if clock := l.s.cfg.clock; clock != nil && !out[i].After(clock()) {
				out[i] = time.Time{} // according to the test's clock the key has expired
			}
		}
	}
	return out, nil
}
