package cassandra

// mergeFirst returns the first n of sorted lists, in order.
func mergeFirst[V any](lists [][]V, cmp func(a, b V) int, n int) (out []V) {
	for len(out) < n {
		best := -1
		for i := range lists {
			if len(lists[i]) > 0 && (best < 0 || cmp(lists[i][0], lists[best][0]) < 0) {
				best = i
			}
		}
		if best < 0 {
			return out
		}
		out = append(out, lists[best][0])
		lists[best] = lists[best][1:]
	}
	return out
}
