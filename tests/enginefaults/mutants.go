package main

import (
	"maps"
	"slices"

	"github.com/notifyd/notifyd/tests/internal/victim"
)

// mutants each break one mechanism. The fault that is named must notice.
var mutants = map[string]victim.Mutant{
	// kafka: what the log does not take is not spilled.
	"no-spill": {
		File: "pkg/intake/store.go",
		Old:  "if notify.KindOf(err) == notify.KindUnavailable && s.st.Spill != nil {",
		New:  "if notify.KindOf(err) == notify.KindUnavailable && s.st.Spill == nil {",
	},
	// frozen: a broker that does not answer is waited for.
	"patient-append": {
		File: "pkg/app/open.go",
		Old:  "pc.AppendTimeout = n.cfg.Kafka.AppendTimeout",
		New:  "pc.AppendTimeout = time.Minute",
	},
	// node, with -nodes 3: every copy has to answer.
	"all-copies": {
		File: "pkg/engine/cassandra/store.go",
		Old:  "cons: gocql.LocalQuorum, serial",
		New:  "cons: gocql.All, serial",
	},
	// leader: a dead owner's shards are left alone for a minute.
	"long-lease": {
		File: "pkg/timer/config.go",
		Old:  "LeaseTTL    time.Duration `default:\"5s\"`",
		New:  "LeaseTTL    time.Duration `default:\"1m\"`",
	},
	// redis: what is released again is called again.
	"forget-rows": {
		File: "pkg/worker/partition.go",
		Old:  "\t\tif row.Key != (notify.RowKey{}) && row.Digest == j.row.Digest {",
		New:  "\t\trow = &notify.Row{}\n\t\tif row.Key != (notify.RowKey{}) && row.Digest == j.row.Digest {",
	},
	// cut-log: an owner that the group does not answer believes that it owns.
	"lasting-hold": {
		File: "pkg/stream/held.go",
		Old:  "\t\tif c.holds(m.limit, time.Now()) {",
		New:  "\t\tif !c.sent.IsZero() {",
	},
	// paused: rows have the time of their write, not that of the owner's tenure.
	"wall-clock": {
		File: "pkg/engine/cassandra/tenures.go",
		Old:  "\treturn r.Stamp, nil",
		New:  "\treturn time.Now().UnixMicro(), nil",
	},
}

func mutantNames() []string { return slices.Sorted(maps.Keys(mutants)) }
