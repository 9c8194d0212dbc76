package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/atomicfile"
	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/server"
	"github.com/notifyd/notifyd/pkg/term"
)

func newToken(p *program) *cobra.Command {
	var key, caller, users, issuer, audience string
	var scopes []string
	var ttl time.Duration
	c := &cobra.Command{
		Use: "token", Short: "Sign a token with a key file", Args: cobra.NoArgs,
		Long: `token signs a token for a caller. The server verifies the token with the same file:
auth.key_file for a private key (PEM), auth.hs256_file for an HS256 secret. If you
have an identity provider, use its tokens and auth.jwks_url instead.`,
		RunE: func(*cobra.Command, []string) error {
			if key == "" || caller == "" {
				return term.Usage("token needs --key and --caller")
			}
			if ttl <= 0 || ttl > 31*24*time.Hour {
				return term.Usage("--ttl %s must be above 0 and at most 31 days, because servers refuse other tokens", ttl)
			}
			if _, err := os.Stat(key); os.IsNotExist(err) {
				if err := writeSigningKey(key); err != nil {
					return err
				}
				fmt.Fprintf(p.err, "made a new key in %s\n", key)
			}
			token, err := signToken(key, server.TokenSpec{Caller: caller, Users: users, Scopes: scopes, Issuer: issuer, Audience: audience, TTL: ttl})
			if err != nil {
				return err
			}
			fmt.Fprintln(p.out, token)
			return nil
		},
	}
	d := app.Default()
	c.Flags().StringVar(&key, "key", "", "file with the signing key: a private key (PEM) or an HS256 secret; if the file is missing, token makes a private key")
	c.Flags().StringVar(&caller, "caller", "", "name of the caller that uses the token (claim sub)")
	c.Flags().StringSliceVar(&scopes, "scope", []string{"send", "read"}, "rights of the token: "+strings.Join(api.Scopes[:], ", "))
	c.Flags().StringVar(&users, "users", "", "allow only users whose ids begin with this, e.g. shop: (claim users); the token then has no scope operate or observe")
	c.Flags().StringVar(&issuer, "issuer", d.Auth.Issuer, "claim iss of the token; must equal the setting auth.issuer")
	c.Flags().StringVar(&audience, "audience", d.Auth.Audience, "claim aud of the token; must equal the setting auth.audience")
	c.Flags().DurationVar(&ttl, "ttl", 24*time.Hour, "how long the token is valid; at most 31 days")
	return c
}

func writeSigningKey(path string) error {
	key, err := server.NewSigningKey()
	if err != nil {
		return err
	}
	// Write the key atomically. notifyd cannot start with an incomplete key, and a new key would
	// make all earlier tokens invalid.
	return atomicfile.WriteFile(path, key)
}

func signToken(key string, spec server.TokenSpec) (string, error) {
	s, err := server.OpenSigner(key)
	if err != nil {
		return "", err
	}
	spec.Now = time.Now()
	return s.Sign(spec)
}
