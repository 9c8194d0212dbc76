package postgres

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// Config is the configuration of a Store. The fields with a koanf tag are settings in the
// section postgres of the configuration file. The other fields are set only by the program.
// If DSN has several hosts, the Store uses the host that accepts writes. If PasswordFile is
// set, a password in DSN is ignored.
type Config struct {
	DSN          string `koanf:"dsn" secret:"yes" doc:"address of the database (DSN), e.g. postgres://user@host1:5432,host2:5432/notifyd; a DSN with a password must come from the environment: NOTIFYD__POSTGRES__DSN"`
	DSNFile      string `koanf:"dsn_file" doc:"file with the DSN, instead of dsn"`
	PasswordFile string `koanf:"password_file" doc:"file with the password; read before each connection"`
	CAFile       string `koanf:"ca_file" doc:"PEM of the CA that signed the server's certificate; if set, connections use TLS with verification"`
	CertFile     string `koanf:"cert_file" doc:"PEM of the certificate that notifyd shows to a server that asks for one; if set, connections use TLS with verification"`
	KeyFile      string `koanf:"key_file" doc:"PEM of the private key of cert_file"`
	Plaintext    bool   `koanf:"plaintext" doc:"allow connections without verified TLS to hosts beyond loopback; only on a network that is trusted"`

	// MaxConns is the greatest number of connections in the pool, 1 to 1000.
	MaxConns int `default:"16" min:"1" max:"1000"`
	// Timeout is the longest time of each call except Scan, PutMany, Migrate and Doctor; 10
	// ms to 1 min. An attempt to connect to a host may take at most half of Timeout. So if
	// the first host hangs, a call still has time to try the next host.
	Timeout time.Duration `default:"2s" min:"10ms" max:"1m"`
	// Application is the name of the connections in pg_stat_activity.
	Application string `default:"notifyd"`
}

func configError(field, format string, args ...any) error {
	return notify.Invalid("bad_config", "postgres."+field, fmt.Sprintf(format, args...))
}

// poolConfig checks c and returns the configuration of the pool and of the listener.
func (c Config) poolConfig() (*pgxpool.Config, error) {
	if err := setting.Err("postgres", &c); err != nil {
		return nil, err
	}
	if c.DSN == "" {
		return nil, configError("dsn", "the DSN is empty; name a server, such as postgres://notifyd@db-1:5432,db-2:5432/notifyd")
	}
	pool, err := pgxpool.ParseConfig(c.withTLS())
	if err != nil {
		return nil, configError("dsn", "%s", dsnProblem(err))
	}
	cc := pool.ConnConfig
	if !c.Plaintext {
		if err := checkVerified(&cc.Config); err != nil {
			return nil, err
		}
	}
	pool.MaxConns = int32(c.MaxConns)
	pool.MaxConnLifetimeJitter = 5 * time.Minute
	cc.RuntimeParams["application_name"] = c.Application
	cc.ConnectTimeout = c.Timeout / 2 // for each host, so that a call can try the next host
	// Refuse standbys, even if the DSN allows standbys, because a standby may return old
	// rows.
	cc.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	if c.PasswordFile != "" {
		if _, err := c.readPassword(); err != nil {
			return nil, err
		}
		pool.BeforeConnect = func(_ context.Context, cc *pgx.ConnConfig) (err error) {
			cc.Password, err = c.readPassword()
			return err
		}
	}
	return pool, nil
}

// withTLS adds the TLS files and sslmode=verify-full to the DSN and returns the result.
// With verify-full the driver checks that each host's certificate has the name of the host.
func (c Config) withTLS() string {
	if c.CAFile == "" && c.CertFile == "" {
		return c.DSN
	}
	set := [][2]string{{"sslmode", "verify-full"}}
	for _, kv := range [][2]string{{"sslrootcert", c.CAFile}, {"sslcert", c.CertFile}, {"sslkey", c.KeyFile}} {
		if kv[1] != "" {
			set = append(set, kv)
		}
	}
	if u, err := url.Parse(c.DSN); err == nil && strings.HasPrefix(u.Scheme, "postgres") {
		q := u.Query()
		for _, kv := range set {
			q.Set(kv[0], kv[1])
		}
		u.RawQuery = q.Encode()
		return u.String()
	}
	dsn := c.DSN
	for _, kv := range set {
		dsn += " " + kv[0] + "='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(kv[1]) + "'"
	}
	return dsn
}

// checkVerified returns an error if the DSN has a host on another machine and the connection
// would not check the certificate of that host.
func checkVerified(cc *pgconn.Config) error {
	hosts := []*pgconn.FallbackConfig{{Host: cc.Host, TLSConfig: cc.TLSConfig}}
	for _, h := range append(hosts, cc.Fallbacks...) {
		ip, err := netip.ParseAddr(h.Host)
		local := strings.HasPrefix(h.Host, "/") || h.Host == "localhost" || err == nil && ip.IsLoopback()
		if local || h.TLSConfig != nil && !h.TLSConfig.InsecureSkipVerify {
			continue
		}
		return configError("dsn", "the connection to %s would not be verified: set sslmode=verify-full or ca_file, or plaintext: true on a network that is trusted", h.Host)
	}
	return nil
}

func (c Config) readPassword() (string, error) {
	b, err := os.ReadFile(c.PasswordFile)
	if err != nil {
		return "", configError("password_file", "the file cannot be read: %v", err)
	}
	p := strings.TrimRight(string(b), "\r\n")
	if p == "" {
		return "", configError("password_file", "the file %s is empty", c.PasswordFile)
	}
	return p, nil
}

// dsnProblem returns what is wrong with a DSN. The result does not contain the DSN, because
// the DSN may contain a password.
func dsnProblem(err error) string {
	e, ok := errors.AsType[*pgconn.ParseConfigError](err)
	if _, isURL := errors.AsType[*url.Error](err); !ok || isURL { // the text of a url.Error has the DSN
		return "the DSN must be a URL or a list of key=value pairs"
	}
	text := e.Error()
	return text[strings.LastIndex(text, "`: ")+len("`: "):]
}
