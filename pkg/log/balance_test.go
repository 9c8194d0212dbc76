package log

import (
	"fmt"
	"slices"
	"testing"
)

func ownersOf(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("host-%d/%d", i, 1000+i))
	}
	return out
}

// Each owner gets its part of the partitions. The part is the same in all groups, whatever the
// members are called and in whichever order a group names them.
func TestOwnersGetTheSamePartitionsInAllGroups(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 4, 6, 12, 18, 24, 84, 100} {
		for members := 1; members <= 9; members++ {
			owners := ownersOf(members)
			out := assignPartitions(owners, n, nil)
			has := map[int]int{}
			for _, i := range out {
				has[i]++
			}
			for i := range owners {
				if has[i] < n/members || has[i] > (n+members-1)/members {
					t.Fatalf("%d partitions, %d members: %v", n, members, has)
				}
			}
			other := make([]string, members)
			for i, o := range owners {
				other[members-1-i] = o + "\x00" + fmt.Sprint("another id", i*7%members)
			}
			for p, i := range assignPartitions(other, n, nil) {
				if members-1-i != out[p] {
					t.Fatalf("%d partitions, %d members: partition %d is %d's in one group, %d's in another", n, members, p, out[p], members-1-i)
				}
			}
		}
	}
}

// Added partitions do not move the other partitions. Afterwards the parts of all owners have the
// same size.
func TestAddedPartitionsMoveNoOthers(t *testing.T) {
	t.Parallel()
	counts := []int{6, 12, 84}
	for members := 1; members <= 9; members++ {
		owners := ownersOf(members)
		before := assignPartitions(owners, counts[0], counts[:1])
		for k, n := range counts[1:] {
			after := assignPartitions(owners, n, counts[:k+1]) // the last is announced a little later
			if told := assignPartitions(owners, n, counts); !slices.Equal(told, after) {
				t.Errorf("%d members: %d partitions move when they are announced", members, n)
			}
			has := make([]int, members)
			for p, i := range after {
				if has[i]++; p < len(before) && i != before[p] {
					t.Errorf("%d members: of %d partitions %d moves", members, n, p)
				}
			}
			if slices.Max(has)-slices.Min(has) > 1 {
				t.Errorf("%d members have %v of %d partitions", members, has, n)
			}
			before = after
		}
	}
}

// A new member gets its part, and most of the other partitions stay where they are.
func TestAMemberThatComesMovesFewPartitions(t *testing.T) {
	t.Parallel()
	for _, n := range []int{18, 12, 84} {
		moved, least := 0, 0
		for members := 2; members <= 8; members++ {
			before, after := assignPartitions(ownersOf(members), n, nil), assignPartitions(ownersOf(members+1), n, nil)
			least += n / (members + 1)
			for p := range before {
				if before[p] != after[p] {
					moved++
				}
			}
		}
		if moved > 3*least {
			t.Errorf("%d partitions: %d moved, %d had to", n, moved, least)
		}
	}
}

// The users of an owner's partitions are in few parts of the store of profiles.
func TestOwnersReadFewPartsOfTheProfiles(t *testing.T) {
	t.Parallel()
	for _, n := range []int{18, 12, 84} {
		owners := ownersOf(4)
		read := make([]map[int]bool, len(owners))
		for p, i := range assignPartitions(owners, n, nil) {
			for part := range profileClasses {
				d := 36
				for b := n; b != 0; {
					d, b = b, d%b
				}
				if part%d == p%d {
					if read[i] == nil {
						read[i] = map[int]bool{}
					}
					read[i][part] = true
				}
			}
		}
		for i, parts := range read {
			if len(parts) > 18 {
				t.Errorf("%d partitions: owner %d of 4 reads %d of 36 parts", n, i, len(parts))
			}
		}
	}
}
