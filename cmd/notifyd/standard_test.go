package main

import (
	"log"
	"log/slog"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/app"
)

// Packages that write with Go's standard loggers write into notifyd's log, in
// its format. Not parallel: those loggers are the process's.
func TestStandardLoggers(t *testing.T) {
	was, flags, out := slog.Default(), log.Flags(), log.Writer()
	defer func() {
		slog.SetDefault(was)
		log.SetFlags(flags)
		log.SetOutput(out)
		slog.SetLogLoggerLevel(slog.LevelInfo)
	}()
	var b output
	cfg := app.Default()
	cfg.Logging.Level, cfg.Logging.Format = "warn", "json"
	redirectStandardLoggers(newLogger(&b, &cfg))
	log.Print("a line of a library")
	slog.Warn("another", "n", 1)
	for _, want := range []string{`"level":"WARN","msg":"a line of a library"`, `"msg":"another","n":1`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%s lacks %s", b.String(), want)
		}
	}
}
