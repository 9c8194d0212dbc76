package wheel

import (
	"math"
	"time"
)

// epoch makes ticks positive: those of 1678 to 2262 lie within 2^44 on both
// sides of 1970.
const epoch = 1 << 44

const perTick = int64(Resolution)

// nanos is t.UnixNano, with times it cannot hold moved to the nearest it can.
func nanos(t time.Time) int64 {
	const first, last = math.MinInt64 / int64(time.Second), math.MaxInt64 / int64(time.Second)
	switch s := t.Unix(); {
	case s < first:
		return first * int64(time.Second)
	case s >= last:
		return last * int64(time.Second)
	}
	return t.UnixNano()
}

// floorTick is the last tick not after t.
func floorTick(t time.Time) uint64 {
	ns := nanos(t)
	ms := ns / perTick
	if ns%perTick < 0 {
		ms--
	}
	return uint64(ms + epoch)
}

// ceilTick is the first tick not before a time in ns since 1970: a timer may
// fire in it without being early.
func ceilTick(ns int64) uint64 {
	ms := ns / perTick
	if ns%perTick > 0 {
		ms++
	}
	return uint64(ms + epoch)
}

func tickTime(tick uint64) time.Time { return time.UnixMilli(int64(tick) - epoch).UTC() }
