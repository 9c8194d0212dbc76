package simulator

import (
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Credentials holds everything that a client of the simulated providers needs.
type Credentials struct {
	CAPEM    string              `json:"ca_pem"` // CA that signed the certificate of the four providers
	APNs     APNsCredentials     `json:"apns"`
	FCM      FCMCredentials      `json:"fcm"`
	Twilio   []TwilioAccount     `json:"twilio"`
	SendGrid SendGridCredentials `json:"sendgrid"`

	// CallbackSecret is the secret that signs the calls of triggers: whsec_ and base64.
	CallbackSecret string `json:"callback_secret"`
}

// APNsCredentials holds the key that signs provider tokens.
type APNsCredentials struct {
	KeyPEM string `json:"key_pem"` // the .p8 file: PKCS #8, P-256
	KeyID  string `json:"key_id"`
	TeamID string `json:"team_id"`
	Topic  string `json:"topic"`
}

// FCMCredentials holds a service account file. The file's token_uri is a URL of the simulator.
type FCMCredentials struct {
	Project            string          `json:"project"`
	ServiceAccountJSON json.RawMessage `json:"service_account"`
}

// TwilioAccount is one account with its sender number and messaging service.
type TwilioAccount struct {
	SID                 string `json:"sid"`
	Token               string `json:"token"`
	From                string `json:"from"`
	MessagingServiceSID string `json:"messaging_service_sid"`
}

// SendGridCredentials holds an API key, the IP pools, and the public key that verifies the event
// webhook. The public key has the form in which SendGrid shows it: base64 of a PKIX DER.
type SendGridCredentials struct {
	APIKey           string   `json:"api_key"`
	Pools            []string `json:"pools"`
	WebhookPublicKey string   `json:"webhook_public_key"`
}

// keyring holds the credentials together with the private keys of the simulator.
type keyring struct {
	creds    Credentials
	apns     *ecdsa.PrivateKey
	fcm      *rsa.PrivateKey
	fcmEmail string
	fcmKeyID string
	webhook  *ecdsa.PrivateKey
	access   [32]byte // key that signs FCM access tokens
	accounts map[string]*TwilioAccount
}

func newKeyring(s seed, c Config) (*keyring, error) {
	k := &keyring{access: s.derive("access tokens"), accounts: map[string]*TwilioAccount{}}
	var err error
	if k.apns, err = s.ecKey("apns"); err != nil {
		return nil, err
	}
	if k.fcm, err = s.rsaKey("fcm"); err != nil {
		return nil, err
	}
	if k.webhook, err = s.ecKey("sendgrid webhook"); err != nil {
		return nil, err
	}
	k.fcmEmail = "simulator@" + c.FCM.Project + ".iam.gserviceaccount.com"
	k.fcmKeyID = s.hexDigits("fcm key id")

	apnsPEM, err := pkcs8(k.apns)
	if err != nil {
		return nil, err
	}
	k.creds.APNs = APNsCredentials{
		KeyPEM: apnsPEM, Topic: c.APNs.Topic,
		KeyID: s.appleCode("apns key", 10), TeamID: s.appleCode("apns team", 10),
	}
	der, err := x509.MarshalPKIXPublicKey(&k.webhook.PublicKey)
	if err != nil {
		return nil, err
	}
	k.creds.SendGrid = SendGridCredentials{
		APIKey: s.apiKey(), Pools: slices.Clone(c.SendGrid.Pools),
		WebhookPublicKey: base64.StdEncoding.EncodeToString(der),
	}
	secret := s.derive("callback secret")
	k.creds.CallbackSecret = "whsec_" + base64.StdEncoding.EncodeToString(secret[:])
	k.creds.Twilio = twilioAccounts(s, c.Twilio)
	for i := range k.creds.Twilio {
		a := &k.creds.Twilio[i]
		if a.SID == "" || a.Token == "" || k.accounts[a.SID] != nil {
			return nil, notify.Invalid("bad_account", fmt.Sprintf("twilio.accounts[%d]", i), "must have a token, and a SID that no other account has")
		}
		k.accounts[a.SID] = a
	}
	return k, nil
}

func twilioAccounts(s seed, c TwilioConfig) []TwilioAccount {
	if len(c.Accounts) > 0 {
		return slices.Clone(c.Accounts)
	}
	out := make([]TwilioAccount, c.N)
	for i := range out {
		out[i] = TwilioAccount{
			SID:                 "AC" + s.hexDigits(fmt.Sprint("twilio sid", i)),
			Token:               s.hexDigits(fmt.Sprint("twilio token", i)),
			From:                fmt.Sprintf("+1500555%04d", i),
			MessagingServiceSID: "MG" + s.hexDigits(fmt.Sprint("twilio service", i)),
		}
	}
	return out
}

// bind completes the credentials that contain addresses of the simulator.
func (k *keyring) bind(ca []byte, project, tokenURL string) error {
	key, err := pkcs8(k.fcm)
	if err != nil {
		return err
	}
	account, err := json.MarshalIndent(map[string]string{
		"type": "service_account", "project_id": project, "private_key_id": k.fcmKeyID, "private_key": key,
		"client_email": k.fcmEmail, "client_id": "100000000000000000000", "token_uri": tokenURL,
		"universe_domain": "googleapis.com",
	}, "", "  ")
	if err != nil {
		return err
	}
	k.creds.CAPEM = string(ca)
	k.creds.FCM = FCMCredentials{Project: project, ServiceAccountJSON: account}
	return nil
}

// save writes the credentials to files in dir. It replaces each file in one step, so readers never
// see a part of a file.
func (c Credentials) save(dir string, u URLs) error {
	all, err := json.MarshalIndent(struct {
		URLs        URLs        `json:"urls"`
		Credentials Credentials `json:"credentials"`
	}{u, c}, "", "  ")
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		data []byte
	}{
		{"ca.pem", []byte(c.CAPEM)}, {"apns.p8", []byte(c.APNs.KeyPEM)},
		{"fcm-service-account.json", c.FCM.ServiceAccountJSON}, {"simulator.json", all},
	} {
		path := filepath.Join(dir, f.name)
		if err := os.WriteFile(path+".new", f.data, 0o600); err != nil {
			return err
		}
		if err := os.Rename(path+".new", path); err != nil {
			return err
		}
	}
	return nil
}

func stringOr(v, def string) string {
	if v == "" {
		return def
	}
	return v
}
