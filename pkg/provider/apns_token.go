package provider

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/notifyd/notifyd/pkg/notify"
)

// APNs refuses a token that is older than an hour. It also refuses a key that signs tokens more
// often than every 20 minutes.
const (
	apnsRenewToken  = 45 * time.Minute
	apnsTokenLife   = 58 * time.Minute
	apnsMinTokenAge = 20 * time.Minute
)

// ParseAPNsKey parses the .p8 file that Apple issues: PKCS #8 in PEM.
func ParseAPNsKey(p8 []byte) (*ecdsa.PrivateKey, error) {
	bad := notify.Invalid("bad_key", "apns.key", "must be an ECDSA key in PKCS #8 and PEM, as in Apple's .p8 file")
	block, _ := pem.Decode(p8)
	if block == nil {
		return nil, bad
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, bad
	}
	key, ok := k.(*ecdsa.PrivateKey)
	if !ok {
		return nil, bad
	}
	return key, nil
}

func apnsMint(key *ecdsa.PrivateKey, team, kid string) func(context.Context) (string, time.Time, time.Time, error) {
	return func(context.Context) (string, time.Time, time.Time, error) {
		now := time.Now()
		t := jwt.NewWithClaims(jwt.SigningMethodES256, jwt.MapClaims{"iss": team, "iat": now.Unix()})
		t.Header = map[string]any{"alg": "ES256", "kid": kid}
		s, err := t.SignedString(key)
		if err != nil {
			err = &notify.Error{Kind: notify.KindUnauthorized, Code: "apns_bad_key", Msg: "cannot sign the token for APNs", Err: err}
		}
		return s, now.Add(apnsRenewToken), now.Add(apnsTokenLife), err
	}
}
