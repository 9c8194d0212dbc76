package cassandra

import (
	"context"
	"log/slog"
	"strconv"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
)

// driverLog writes the log messages of the driver to Config.Logger. It logs errors of the driver
// only as warnings, because the calls also return these errors. The messages contain no values of
// statements.
type driverLog struct{ to *slog.Logger }

func (l driverLog) log(level slog.Level, msg string, fields []gocql.LogField) {
	if !l.to.Enabled(context.Background(), level) {
		return
	}
	attrs := make([]slog.Attr, 0, len(fields))
	for _, f := range fields {
		attrs = append(attrs, slog.String(f.Name, f.Value.String()))
	}
	l.to.LogAttrs(context.Background(), level, "cassandra: "+msg, attrs...)
}

func (l driverLog) Error(msg string, fields ...gocql.LogField) { l.log(slog.LevelWarn, msg, fields) }
func (l driverLog) Warning(msg string, fields ...gocql.LogField) {
	l.log(slog.LevelWarn, msg, fields)
}
func (l driverLog) Info(msg string, fields ...gocql.LogField)  { l.log(slog.LevelDebug, msg, fields) }
func (l driverLog) Debug(msg string, fields ...gocql.LogField) { l.log(slog.LevelDebug, msg, fields) }

func itoa(n int) string { return strconv.Itoa(n) }
