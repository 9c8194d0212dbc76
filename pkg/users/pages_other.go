//go:build !linux

package users

func preferLargePages([]byte) {}

func makeLargePages([]byte) {}
