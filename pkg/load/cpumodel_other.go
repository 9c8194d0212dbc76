//go:build !linux

package load

// cpuModel returns an empty string, because only Linux has /proc/cpuinfo.
func cpuModel() string { return "" }
