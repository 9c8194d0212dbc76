package engine

import (
	"cmp"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"
)

// Direction says what a migration does.
type Direction string

// The directions.
const (
	Up   Direction = "up"     // makes what is missing; what is there stays as it is
	Down Direction = "down"   // takes tables back, and what is in them
	Look Direction = "status" // changes nothing
)

// Migration is one step of a schema.
type Migration struct {
	Version int       // 1 for the first; no number is left out
	Name    string    // of its file
	Applied time.Time // zero: it is not
	// WorksWith is the number of the oldest migration whose builds work with the tables of this
	// one too. The first line of an up script may say so: "-- works with 2". Version: builds that
	// do not know this migration refuse its tables.
	WorksWith int

	Script map[Direction]string // up and down
}

// LoadMigrations reads the files migrations/NNNN_name.up.ext and .down.ext that a
// program carries. It panics if one is missing or says of itself what cannot be.
func LoadMigrations(files fs.FS, ext string) (out []Migration) {
	names, err := fs.Glob(files, "migrations/*.up."+ext) // sorted
	for i, name := range names {
		stem := strings.TrimSuffix(name, ".up."+ext)
		number, rest, _ := strings.Cut(strings.TrimPrefix(stem, "migrations/"), "_")
		if n, _ := strconv.Atoi(number); n != i+1 {
			panic(fmt.Sprintf("migration %s is not number %d", name, i+1))
		}
		up, err1 := fs.ReadFile(files, name)
		down, err2 := fs.ReadFile(files, stem+".down."+ext)
		err = cmp.Or(err, err1, err2)
		with := i + 1
		if _, err := fmt.Sscanf(string(up), "-- works with %d\n", &with); err == nil && (with < 1 || with > i) {
			panic(fmt.Sprintf("migration %s works with %d, which is not before it", name, with))
		}
		out = append(out, Migration{Version: i + 1, Name: rest, WorksWith: with, Script: map[Direction]string{Up: string(up), Down: string(down)}})
	}
	if err != nil {
		panic(err)
	}
	return out
}
