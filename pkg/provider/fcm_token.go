package provider

import (
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/notifyd/notifyd/pkg/notify"
)

const (
	fcmScope       = "https://www.googleapis.com/auth/firebase.messaging"
	fcmMinTokenAge = time.Minute
)

// ServiceAccount contains the content of a Google service account's JSON key file.
type ServiceAccount struct {
	Project  string
	Email    string
	KeyID    string
	TokenURL string
	Key      *rsa.PrivateKey
}

// ParseServiceAccount parses a service account's JSON key file.
func ParseServiceAccount(file []byte) (ServiceAccount, error) {
	var f struct {
		Type     string `json:"type"`
		Project  string `json:"project_id"`
		Email    string `json:"client_email"`
		KeyID    string `json:"private_key_id"`
		Key      string `json:"private_key"`
		TokenURI string `json:"token_uri"`
	}
	bad := notify.Invalid("bad_key", "fcm.key", "must be the JSON key file of a service account")
	if json.Unmarshal(file, &f) != nil || f.Type != "service_account" {
		return ServiceAccount{}, bad
	}
	block, _ := pem.Decode([]byte(f.Key))
	if block == nil {
		return ServiceAccount{}, bad
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		if k, err = x509.ParsePKCS1PrivateKey(block.Bytes); err != nil {
			return ServiceAccount{}, bad
		}
	}
	key, ok := k.(*rsa.PrivateKey)
	if !ok {
		return ServiceAccount{}, bad
	}
	return ServiceAccount{Project: f.Project, Email: f.Email, KeyID: f.KeyID, TokenURL: f.TokenURI, Key: key}, nil
}

// mint gets an access token from the token endpoint, in exchange for a signed assertion (RFC 7523).
func (f *FCM) mint(ctx context.Context) (string, time.Time, time.Time, error) {
	var never time.Time
	now := time.Now()
	t := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.MapClaims{
		"iss": f.cfg.Account.Email, "scope": fcmScope, "aud": f.cfg.TokenURL,
		"iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
	})
	if f.cfg.Account.KeyID != "" {
		t.Header["kid"] = f.cfg.Account.KeyID
	}
	assertion, err := t.SignedString(f.cfg.Account.Key)
	if err != nil {
		return "", never, never, &notify.Error{Kind: notify.KindUnauthorized, Code: "fcm_bad_key", Msg: "cannot sign the request for an access token with the key of the service account", Err: err}
	}
	u, err := url.Parse(f.cfg.TokenURL)
	if err != nil {
		return "", never, never, err
	}
	form := url.Values{"grant_type": {"urn:ietf:params:oauth:grant-type:jwt-bearer"}, "assertion": {assertion}}
	h := http.Header{"Content-Type": {"application/x-www-form-urlencoded"}, "User-Agent": agentHeader}
	a, fail := exchange(ctx, f.oauth, f.cfg.Endpoint.Timeout, u, h, []byte(form.Encode()))
	if fail != nil {
		// A lost answer is not ambiguous, because requesting a token twice does no harm.
		return "", never, never, notify.Unavailable("fcm_oauth", 0, fail.err)
	}
	var got struct {
		Token   string  `json:"access_token"`
		Expires float64 `json:"expires_in"`
	}
	switch {
	case a.status == 429 || a.status >= 500:
		return "", never, never, notify.Unavailable("fcm_oauth", a.retryAfter(now), errors.New("the token endpoint of FCM answered "+httpCode(a.status)))
	case a.status != 200 || json.Unmarshal(a.body, &got) != nil || got.Token == "":
		return "", never, never, &notify.Error{Kind: notify.KindUnauthorized, Code: "fcm_oauth_refused", Msg: "the token endpoint of FCM refused the service account; it answered " + httpCode(a.status)}
	}
	life := time.Duration(min(max(got.Expires, 60), 24*3600) * float64(time.Second))
	return got.Token, now.Add(life * 3 / 4), now.Add(life - min(life/10, time.Minute)), nil
}
