package term

import (
	"runtime/debug"
	"strings"
)

// Version returns the version of this program: what the linker was told, else the
// module's version (go install MODULE@VERSION), else the commit that go build saw, as
// make build abbreviates it, else "dev".
func Version(linked string) string {
	info, ok := debug.ReadBuildInfo()
	if linked != "" || !ok {
		return orDev(linked)
	}
	return versionOf(info)
}

func orDev(v string) string {
	if v == "" {
		return "dev"
	}
	return v
}

func versionOf(info *debug.BuildInfo) string {
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	commit := set["vcs.revision"]
	if commit == "" { // not built in its repository
		return orDev(strings.TrimPrefix(info.Main.Version, "(devel)"))
	}
	const abbreviated = 7
	commit = commit[:min(len(commit), abbreviated)]
	if set["vcs.modified"] == "true" {
		commit += "-dirty"
	}
	return commit
}
