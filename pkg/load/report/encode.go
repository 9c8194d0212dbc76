package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/notifyd/notifyd/internal/atomicfile"
	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Encode writes a Result as JSON with a newline at its end.
func Encode(r *load.Result) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	if err := enc.Encode(r); err != nil {
		return nil, fmt.Errorf("write the result as JSON: %w", err)
	}
	return b.Bytes(), nil
}

// maxResult bounds what Decode reads: a day of seconds with its histograms is a
// quarter of it.
const maxResult = 1 << 30

// maxSecond is a year: what has a later one is damaged.
const maxSecond = 366 * 24 * 3600

// Decode reads what Encode wrote. Fields it does not know are left out; a schema
// it does not know, and what is no result, are errors of notify.KindInvalid.
func Decode(in io.Reader) (*load.Result, error) {
	raw, err := io.ReadAll(io.LimitReader(in, maxResult+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > maxResult {
		return nil, notify.Invalid("bad_result", "", fmt.Sprintf("is longer than %d bytes", maxResult))
	}
	r := &load.Result{}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if err := dec.Decode(r); err != nil {
		return nil, notify.Invalid("bad_result", "", fmt.Sprintf("is not the JSON of a load run: %v", err))
	}
	if dec.More() {
		return nil, notify.Invalid("bad_result", "", "something follows the result")
	}
	switch {
	case r.Schema == 0:
		return nil, notify.Invalid("bad_result", "schema", "is not there: this is not the result of a load run")
	case r.Schema != load.SchemaVersion:
		return nil, notify.Invalid("bad_result", "schema", fmt.Sprintf("is %d; this notifyctl reads %d", r.Schema, load.SchemaVersion))
	}
	// Charts and replays go from the first second to the last.
	for i := range r.Seconds {
		if s := r.Seconds[i].Second; s < 0 || s > maxSecond || i > 0 && s < r.Seconds[i-1].Second {
			return nil, notify.Invalid("bad_result", "seconds", fmt.Sprintf("row %d is of second %d: they go up, from 0 to %d", i, s, maxSecond))
		}
	}
	return r, nil
}

// WriteFile writes a Result to a file of the caller's choice, whole or not at all.
func WriteFile(name string, r *load.Result) error {
	raw, err := Encode(r)
	if err != nil {
		return err
	}
	return atomicfile.WriteFile(name, raw)
}
