package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// seeded holds the values that SeedCaller last gave to a caller. Secret is a digest of the secret.
type seeded struct {
	URLs   []string `json:"urls"`
	Secret string   `json:"secret"`
}

// digest returns a digest of a secret of random bytes. It is used only to compare secrets.
func digest(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// matches reports whether the given secret is the one that SeedCaller gave last.
func (s *seeded) matches(secret string) bool { return s.Secret == digest(secret) }

func seedCaller(ctx context.Context, meta engine.Meta, callers engine.Callers, id string, urls []string, secret string) error {
	name := "seeded caller " + id
	var last seeded
	raw, err := meta.GetMeta(ctx, name)
	if err == nil && raw != nil {
		err = json.Unmarshal(raw, &last)
	}
	if err != nil {
		return fmt.Errorf("the stored row %s cannot be read: %w", name, err)
	}
	c, _, err := callers.Get(ctx, id)
	if err != nil {
		return err
	}
	c.ID = id
	now := seeded{urls, digest(secret)}
	note := func(s seeded) error {
		raw, err := json.Marshal(s)
		if err != nil {
			return err
		}
		return meta.PutMeta(ctx, name, raw)
	}
	if last.applyTo(&c, urls, secret, time.Now().UnixMilli()) {
		// Until the caller is stored, the row has the old and the new URLs. Suppose that the row had
		// only the new URLs and the process crashed here. The next start would then believe that an
		// operator had removed URLs that were never written.
		if err := note(seeded{slices.Concat(last.URLs, urls), last.Secret}); err != nil {
			return err
		}
		if err := callers.Put(ctx, c); err != nil {
			return err
		}
	}
	if slices.Equal(now.URLs, last.URLs) && now.Secret == last.Secret {
		return nil
	}
	return note(now)
}

// applyTo gives the callback URLs and the signing secret to the caller c, and reports whether this
// has changed c.
func (s *seeded) applyTo(c *engine.Caller, urls []string, secret string, now int64) (changed bool) {
	kept := slices.ContainsFunc(s.URLs, func(u string) bool { return slices.Contains(c.CallbackURLs, u) })
	if first := s.Secret == ""; first || kept {
		list := slices.DeleteFunc(slices.Clone(c.CallbackURLs), func(u string) bool {
			return slices.Contains(s.URLs, u) && !slices.Contains(urls, u)
		})
		for _, u := range urls {
			if !slices.Contains(list, u) {
				list = append(list, u)
			}
		}
		changed = !slices.Equal(list, c.CallbackURLs)
		c.CallbackURLs = list
	}
	at := slices.IndexFunc(c.Secrets, func(one engine.CallerSecret) bool { return s.matches(one.Secret) })
	switch {
	case !slices.ContainsFunc(c.Secrets, func(one engine.CallerSecret) bool { return !one.Sealed() }): // the caller has no usable secret
		c.Secrets = []engine.CallerSecret{{Secret: secret, Created: now}}
	case at >= 0 && !s.matches(secret): // the simulators were made again, with another secret
		c.Secrets = slices.Clone(c.Secrets)
		c.Secrets[at].Secret = secret
	default:
		return changed
	}
	return true
}
