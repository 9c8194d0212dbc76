package setting

import (
	"errors"
	"log/slog"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

type section struct {
	Format string `koanf:"form" default:"json" oneof:"json text xml"`
}

type sample struct {
	Wait     time.Duration `default:"2s" min:"10ms" max:"1m"`
	MaxBytes int64         `default:"64MiB" min:"1KiB"`
	Share    float64       `default:"0.5" above:"0" max:"1"`
	Rate     float64       `koanf:"rate" default:"50_000" above:"0"`
	Kind     uint8         `default:"1" max:"3"`
	Sync     bool          `default:"true"`
	Proxies  []string      `is:"even"`
	Names    []string      `default:"a,b"`
	LocalDC  string        `is:"even" empty:"yes"`
	Section  section       `koanf:"part"`
	Inner    struct {
		N int `default:"7"`
	} // no section
	Left string       `koanf:"-" default:"x"`
	Log  *slog.Logger `default:"discard"`
	own  int          `default:"5"`
}

func TestFill(t *testing.T) {
	t.Parallel()
	c := Fill(sample{Share: 0.25})
	if c.Wait != 2*time.Second || c.MaxBytes != 64<<20 || c.Share != 0.25 || c.Rate != 50_000 || c.Kind != 1 || !c.Sync ||
		!slices.Equal(c.Names, []string{"a", "b"}) || c.Section.Format != "json" || c.Log == nil {
		t.Errorf("%+v", c)
	}
	if c.Inner.N != 0 || c.Left != "" || c.own != 0 || c.Proxies != nil {
		t.Errorf("filled what has no default, or is not to be filled: %+v", c)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	forms := map[string]func(string) string{"even": func(s string) string {
		if len(s)%2 == 0 {
			return ""
		}
		return s + " is odd"
	}}
	f := func(change func(c *sample), want ...Fault) {
		t.Helper()
		c := Fill(sample{})
		change(&c)
		if got := Check(&c, forms); !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	f(func(*sample) {})
	f(func(c *sample) { c.Wait, c.Share, c.Kind = time.Minute, 1, 3 })
	f(func(c *sample) { c.Wait, c.MaxBytes = time.Millisecond, 1023 },
		Fault{"wait", "1ms is not between 10ms and 1m"}, Fault{"max_bytes", "1023 is not at least 1KiB"})
	f(func(c *sample) { c.Wait, c.Share, c.Rate, c.Kind = 61*time.Second, 0, -1, 4 },
		Fault{"wait", "1m1s is not between 10ms and 1m"}, Fault{"share", "0 is not above 0, at most 1"}, Fault{"rate", "-1 is not above 0"}, Fault{"kind", "4 is not at most 3"})
	f(func(c *sample) { c.Share = math.NaN() }, Fault{"share", "NaN is not above 0, at most 1"})
	f(func(c *sample) { c.Proxies, c.LocalDC = []string{"ab", "a", "abc"}, "x" },
		Fault{"proxies", "a is odd"}, Fault{"proxies", "abc is odd"}, Fault{"local_dc", "x is odd"})
	f(func(c *sample) { c.Section.Format = "" }, Fault{"part.form", `"" is not json, text or xml`})
}

func TestErr(t *testing.T) {
	t.Parallel()
	type one struct {
		N int `min:"1"`
	}
	if err := Err("store", &one{1}); err != nil {
		t.Error(err)
	}
	var e *notify.Error
	if err := Err("store", &one{}); !errors.As(err, &e) || e.Kind != notify.KindInvalid || e.Code != "bad_config" || e.Field != "store.n" || e.Msg != "0 is not at least 1" {
		t.Errorf("%v", err)
	}
}
