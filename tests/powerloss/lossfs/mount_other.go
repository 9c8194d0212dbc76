//go:build !linux

package lossfs

import "errors"

var errElsewhere = errors.New("lossfs: only Linux mounts it")

// Available says that a Disk cannot be mounted here.
func Available() error { return errElsewhere }

// Mount fails.
func (d *Disk) Mount(string) (unmount func() error, err error) { return nil, errElsewhere }
