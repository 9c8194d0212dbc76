//go:build !linux

package prefs

func preferLargePages([]byte) {}

func makeLargePages([]byte) {}
