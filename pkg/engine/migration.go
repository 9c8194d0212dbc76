package engine

import (
	"cmp"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"
)

// Direction tells Migrate whether to apply or to undo migrations.
type Direction string

// Directions of a run of migrations.
const (
	Up   Direction = "up"     // creates missing tables; existing tables stay as they are
	Down Direction = "down"   // drops tables and their data
	Look Direction = "status" // changes nothing
)

// Migration is one step of a schema.
type Migration struct {
	Version int       // 1, 2, 3 and so on, without gaps
	Name    string    // the part after the number in the names of its files
	Applied time.Time // zero: not applied
	// WorksWith is the oldest version of the schema whose builds can still use the tables after
	// this migration. An up script sets it in its first line: "-- works with 2". Without such a
	// line WorksWith equals Version, and builds without this migration refuse the tables.
	WorksWith int

	Script map[Direction]string // the scripts of Up and Down
}

// LoadMigrations reads the scripts migrations/NNNN_name.up.ext and .down.ext from an
// embedded file system. It panics if a script is missing, if a number is not consecutive,
// or if the version in a "works with" line is not an earlier version. These are mistakes in the
// build.
func LoadMigrations(files fs.FS, ext string) (out []Migration) {
	names, err := fs.Glob(files, "migrations/*.up."+ext) // sorted
	for i, name := range names {
		stem := strings.TrimSuffix(name, ".up."+ext)
		number, rest, _ := strings.Cut(strings.TrimPrefix(stem, "migrations/"), "_")
		if n, _ := strconv.Atoi(number); n != i+1 {
			panic(fmt.Sprintf("the name of the migration %s must begin with the number %d", name, i+1))
		}
		up, err1 := fs.ReadFile(files, name)
		down, err2 := fs.ReadFile(files, stem+".down."+ext)
		err = cmp.Or(err, err1, err2)
		with := i + 1
		if _, err := fmt.Sscanf(string(up), "-- works with %d\n", &with); err == nil && (with < 1 || with > i) {
			panic(fmt.Sprintf("migration %s says that it works with %d; name a version from 1 to %d", name, with, i))
		}
		out = append(out, Migration{Version: i + 1, Name: rest, WorksWith: with, Script: map[Direction]string{Up: string(up), Down: string(down)}})
	}
	if err != nil {
		panic(err)
	}
	return out
}
