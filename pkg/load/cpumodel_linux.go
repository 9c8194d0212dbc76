package load

// cpuModel returns the model of the first processor. It is empty if /proc does not say it.
func cpuModel() string {
	if cpus, err := proc.CPUInfo(); err == nil && len(cpus) > 0 {
		return cpus[0].ModelName
	}
	return ""
}
