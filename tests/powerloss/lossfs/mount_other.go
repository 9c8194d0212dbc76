//go:build !linux

package lossfs

import "errors"

var errElsewhere = errors.New("lossfs: only Linux can mount a Disk")

// Available returns an error, because only Linux can mount a Disk.
func Available() error { return errElsewhere }

// Mount returns an error, because only Linux can mount a Disk.
func (d *Disk) Mount(string) (unmount func() error, err error) { return nil, errElsewhere }
