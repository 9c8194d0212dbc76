package product

import (
	"strings"
	"testing"
)

// TestMigrateTellsOnce checks that an error that keeps Cassandra from answering is printed once,
// with the key at fault, and that the states of the other servers are printed, too.
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

// TestAnotherPrefixMakesNoTopics: migrate up with another topic prefix than the installation
// began with is refused before topics are made for it.
func TestAnotherPrefixMakesNoTopics(t *testing.T) {
	e := servers(t)
	f := e.fleet(t, e.main(t), "api")
	out, err := f.Command(t.Context(), nil, "migrate", "up", "--config", f.Engines(), "--set", "kafka.topic_prefix=another.")
	if err == nil || strings.Count(out, "kafka.topic_prefix") != 1 || strings.Contains(out, "kafka  ") || !strings.Contains(out, "postgres  ") {
		t.Errorf("%v\n%s", err, out)
	}
}
