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

// Config of a Store. The tagged fields are the section postgres of the configuration
// file; the others are set by the program only. Of several hosts in DSN the one that
// accepts writes is used. PasswordFile wins over a password in DSN.
type Config struct {
	DSN          string `koanf:"dsn" secret:"yes" doc:"how to connect: postgres://user@host1:5432,host2:5432/notifyd; with a password in it only from the environment, NOTIFYD__POSTGRES__DSN"`
	DSNFile      string `koanf:"dsn_file" doc:"file with it, in place of dsn"`
	PasswordFile string `koanf:"password_file" doc:"file with the password; read before each connection"`
	CAFile       string `koanf:"ca_file" doc:"PEM of the CA that signed the server's certificate; set, TLS with verification is used"`
	CertFile     string `koanf:"cert_file" doc:"PEM of our certificate, where the server asks for one"`
	KeyFile      string `koanf:"key_file" doc:"PEM of its key"`
	Plaintext    bool   `koanf:"plaintext" doc:"connect to hosts beyond loopback without verified TLS, on a network that is trusted"`

	// MaxConns bounds the pool, 1 to 1000.
	MaxConns int `default:"16" min:"1" max:"1000"`
	// Timeout bounds each call but Scan, PutMany, Migrate and Doctor, and each connection
	// attempt to a host; 10 ms to 1 min. A primary that hangs is noticed by it.
	Timeout time.Duration `default:"2s" min:"10ms" max:"1m"`
	// Application names the connections in pg_stat_activity.
	Application string `default:"notifyd"`
}

func bad(field, format string, args ...any) error {
	return notify.Invalid("bad_config", "postgres."+field, fmt.Sprintf(format, args...))
}

// pool checks c and returns what the pool and the listener connect with.
func (c Config) pool() (*pgxpool.Config, error) {
	if err := setting.Err("postgres", &c); err != nil {
		return nil, err
	}
	if c.DSN == "" {
		return nil, bad("dsn", "it is empty; name a server, such as postgres://notifyd@db-1:5432,db-2:5432/notifyd")
	}
	pool, err := pgxpool.ParseConfig(c.withTLS())
	if err != nil {
		return nil, bad("dsn", "%s", reason(err))
	}
	cc := pool.ConnConfig
	if !c.Plaintext {
		if err := verified(&cc.Config); err != nil {
			return nil, err
		}
	}
	pool.MaxConns = int32(c.MaxConns)
	pool.MaxConnLifetimeJitter = 5 * time.Minute
	cc.RuntimeParams["application_name"] = c.Application
	cc.ConnectTimeout = c.Timeout / 2 // of each host: the one behind a dead one is tried within a call
	// Whatever the DSN says: a standby answers with the past.
	cc.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	if c.PasswordFile != "" {
		if _, err := c.password(); err != nil {
			return nil, err
		}
		pool.BeforeConnect = func(_ context.Context, cc *pgx.ConnConfig) (err error) {
			cc.Password, err = c.password()
			return err
		}
	}
	return pool, nil
}

// withTLS adds the files to the DSN: the driver then checks each host by its name.
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

// verified refuses hosts that would be talked to without knowing that it is them.
func verified(cc *pgconn.Config) error {
	hosts := []*pgconn.FallbackConfig{{Host: cc.Host, TLSConfig: cc.TLSConfig}}
	for _, h := range append(hosts, cc.Fallbacks...) {
		ip, err := netip.ParseAddr(h.Host)
		local := strings.HasPrefix(h.Host, "/") || h.Host == "localhost" || err == nil && ip.IsLoopback()
		if local || h.TLSConfig != nil && !h.TLSConfig.InsecureSkipVerify {
			continue
		}
		return bad("dsn", "the connection to %s would not be verified: set sslmode=verify-full or ca_file, or plaintext: true on a network that is trusted", h.Host)
	}
	return nil
}

func (c Config) password() (string, error) {
	b, err := os.ReadFile(c.PasswordFile)
	if err != nil {
		return "", bad("password_file", "it cannot be read: %v", err)
	}
	p := strings.TrimRight(string(b), "\r\n")
	if p == "" {
		return "", bad("password_file", "%s is empty", c.PasswordFile)
	}
	return p, nil
}

// reason is what is wrong with a DSN, without the DSN: it may hold a password.
func reason(err error) string {
	e, ok := errors.AsType[*pgconn.ParseConfigError](err)
	if _, isURL := errors.AsType[*url.Error](err); !ok || isURL { // which shows all of it
		return "it is no URL and no list of key=value pairs"
	}
	text := e.Error()
	return text[strings.LastIndex(text, "`: ")+len("`: "):]
}
