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

// seeded is what SeedCaller gave a caller last. Secret is the digest of the secret.
type seeded struct {
	URLs   []string `json:"urls"`
	Secret string   `json:"secret"`
}

// digest stands for a secret of random bytes where it is only compared.
func digest(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// gave reports whether the secret is the one that was given last.
func (s *seeded) gave(secret string) bool { return s.Secret == digest(secret) }

func seedCaller(ctx context.Context, meta engine.Meta, callers engine.Callers, id string, urls []string, secret string) error {
	name := "seeded caller " + id
	var last seeded
	raw, err := meta.GetMeta(ctx, name)
	if err == nil && raw != nil {
		err = json.Unmarshal(raw, &last)
	}
	if err != nil {
		return fmt.Errorf("what was seeded before: %w", err)
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
	if last.apply(&c, urls, secret, time.Now().UnixMilli()) {
		// Both, until it is done: a start that is cut here must not take what it
		// did not write for taken away.
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

// apply changes a caller, and reports whether it did.
func (s *seeded) apply(c *engine.Caller, urls []string, secret string, now int64) (changed bool) {
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
	at := slices.IndexFunc(c.Secrets, func(one engine.CallerSecret) bool { return s.gave(one.Secret) })
	switch {
	case !slices.ContainsFunc(c.Secrets, func(one engine.CallerSecret) bool { return !one.Sealed() }): // none that signs
		c.Secrets = []engine.CallerSecret{{Secret: secret, Created: now}}
	case at >= 0 && !s.gave(secret): // simulators made anew, with another one
		c.Secrets = slices.Clone(c.Secrets)
		c.Secrets[at].Secret = secret
	default:
		return changed
	}
	return true
}
