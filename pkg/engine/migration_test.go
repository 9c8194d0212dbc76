package engine_test

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/notifyd/notifyd/pkg/engine"
)

func TestLoadMigrations(t *testing.T) {
	t.Parallel()
	load := func(second string) (ms []engine.Migration, refused any) {
		defer func() { refused = recover() }()
		files := fstest.MapFS{}
		for name, text := range map[string]string{"0001_first": "CREATE a", "0002_second": second} {
			files["migrations/"+name+".up.sql"] = &fstest.MapFile{Data: []byte(text)}
			files["migrations/"+name+".down.sql"] = &fstest.MapFile{Data: []byte("DROP")}
		}
		return engine.LoadMigrations(files, "sql"), nil
	}
	for text, want := range map[string]int{
		"CREATE b": 2, "-- It makes b.\nCREATE b": 2, "-- works with 1\nCREATE b": 1, "CREATE b;\n-- works with 1\n": 2,
		"-- works with 2\nCREATE b": 0, "-- works with 0\nCREATE b": 0,
	} {
		ms, refused := load(text)
		switch {
		case want == 0:
			if s, _ := refused.(string); !strings.Contains(s, "0002_second.up.sql says that it works with") {
				t.Errorf("%q: %+v, %v", text, ms, refused)
			}
		case refused != nil || len(ms) != 2 || ms[0].WorksWith != 1 || ms[1].WorksWith != want || ms[1].Name != "second":
			t.Errorf("%q: %+v, %v; want that it works with %d", text, ms, refused, want)
		}
	}
}
