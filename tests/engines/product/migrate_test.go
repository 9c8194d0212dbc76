package product

import (
	"strings"
	"testing"
)

// TestMigrateTellsOnce runs "migrate status" with a wrong password for Cassandra. The error must be
// printed once and must name the wrong setting. The states of the other servers must be printed,
// too.
func TestMigrateTellsOnce(t *testing.T) {
	e := servers(t)
	v := e.main(t)
	f := e.fleet(t, v, "api")
	out, err := f.Command(t.Context(), nil, "migrate", "status", "--config", f.Engines(), "--set", "cassandra.password_file="+e.file("wrong.password"))
	if err == nil || strings.Count(out, "cassandra.password_file: ") != 1 || strings.Count(out, "password are incorrect") != 1 {
		t.Errorf("%v\n%s", err, out)
	}
	if !strings.Contains(out, "kafka  ") || !strings.Contains(out, "postgres  ") {
		t.Errorf("the others are not told:\n%s", out)
	}
	e.tellsNothing(t, f, out)
}

// TestAnotherPrefixMakesNoTopics runs "migrate up" with a topic prefix that is not the prefix of
// the installation. notifyd must refuse it before it creates topics with the new prefix.
func TestAnotherPrefixMakesNoTopics(t *testing.T) {
	e := servers(t)
	f := e.fleet(t, e.main(t), "api")
	out, err := f.Command(t.Context(), nil, "migrate", "up", "--config", f.Engines(), "--set", "kafka.topic_prefix=another.")
	if err == nil || strings.Count(out, "kafka.topic_prefix") != 1 || strings.Contains(out, "kafka  ") || !strings.Contains(out, "postgres  ") {
		t.Errorf("%v\n%s", err, out)
	}
}
