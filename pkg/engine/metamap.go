package engine

import (
	"context"
	"encoding/json"
	"fmt"
)

// ReadMetaMap returns the map that is stored in meta under the given name, and its stored
// bytes (row). Both are empty if no map is stored. It returns an error if the stored bytes
// are not the JSON of a map with values of type V.
func ReadMetaMap[V any](ctx context.Context, meta Meta, name string) (all map[string]V, row []byte, err error) {
	row, err = meta.GetMeta(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	all = map[string]V{}
	if len(row) > 0 {
		if err := json.Unmarshal(row, &all); err != nil {
			return nil, nil, fmt.Errorf("the stored value of %q cannot be read: %w", name, err)
		}
	}
	return all, row, nil
}

// ChangeMetaMap changes the map that is stored in meta under the given name and returns
// the new map. The function edit changes the map and returns true, or it returns false if
// there is nothing to store. If another process stores a new map between the read and the
// write, ChangeMetaMap reads that map and calls edit again, so no process loses its
// change.
func ChangeMetaMap[V any](ctx context.Context, meta Meta, name string, edit func(all map[string]V) bool) (map[string]V, error) {
	for {
		all, row, err := ReadMetaMap[V](ctx, meta, name)
		if err != nil || !edit(all) {
			return all, err
		}
		next, err := json.Marshal(all)
		if err != nil {
			return nil, err
		}
		if stored, err := meta.SwapMeta(ctx, name, row, next); err != nil || stored {
			return all, err
		}
	}
}
