package term

import (
	"runtime/debug"
	"testing"
)

func TestVersion(t *testing.T) {
	t.Parallel()
	of := func(module string, settings ...string) string {
		info := &debug.BuildInfo{Main: debug.Module{Version: module}}
		for i := 0; i < len(settings); i += 2 {
			info.Settings = append(info.Settings, debug.BuildSetting{Key: settings[i], Value: settings[i+1]})
		}
		return versionOf(info)
	}
	const commit = "c786c0e1f2a3b4c5d6e7f8091a2b3c4d5e6f7081"
	for _, x := range []struct{ have, want string }{
		{Version("v1.2.3"), "v1.2.3"},
		{of("v1.4.0"), "v1.4.0"}, // go install
		{of("(devel)"), "dev"},
		{of("v0.0.0-20261123-c786c0e1f2a3", "vcs.revision", commit, "vcs.modified", "false"), "c786c0e"},
		{of("(devel)", "vcs.revision", commit, "vcs.modified", "true"), "c786c0e-dirty"},
	} {
		if x.have != x.want {
			t.Errorf("version %q, want %q", x.have, x.want)
		}
	}
}
