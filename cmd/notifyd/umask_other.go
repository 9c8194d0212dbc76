//go:build !unix

package main

// restrictFileModes does nothing: this system has no umask.
func restrictFileModes() {}
