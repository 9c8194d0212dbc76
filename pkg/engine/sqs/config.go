package sqs

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	api "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Config of a Store. The tagged fields are the section sqs of the configuration file; the
// others are set by the program only. An Endpoint of http is taken for loopback only.
type Config struct {
	Region          string `koanf:"region" doc:"region; empty: the delay queue is in Redis"`
	Endpoint        string `koanf:"endpoint" is:"url" empty:"yes" doc:"URL of a server that is not AWS's"`
	Prefix          string `koanf:"prefix" default:"notifyd-" is:"queue" doc:"before the name of every queue"`
	CredentialsFile string `koanf:"credentials_file" doc:"file in the format of ~/.aws/credentials; empty: the environment, that file, or the machine's role"`

	// Timeout bounds each call, its retries included; 100 ms to 1 min.
	Timeout time.Duration `default:"10s" min:"100ms" max:"1m"`
	// Wait is how long one request waits for a message: whole seconds, 1 to 20. Longer ones
	// cost fewer requests while nothing is due, and find the backlog later.
	Wait time.Duration `default:"2s" min:"1s" max:"20s"`
	// Parallel is how many requests a call has under way; 1 to 64.
	Parallel int `default:"8" min:"1" max:"64"`
}

func bad(field, format string, args ...any) error {
	return notify.Invalid("bad_config", "sqs."+field, fmt.Sprintf(format, args...))
}

var queueName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,72}$`)

// client makes the SDK's.
func (c Config) client(ctx context.Context) (*api.Client, aws.HTTPClient, error) {
	transport := awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
		t.MaxIdleConnsPerHost = 2 * c.Parallel
	})
	from := []func(*awsconfig.LoadOptions) error{
		awsconfig.WithHTTPClient(transport),
		awsconfig.WithRetryer(func() aws.Retryer {
			return retry.NewStandard(func(o *retry.StandardOptions) {
				// Throttles and failures are tried again until the call's time is over; the
				// SDK's own allowance of retries would end that after some.
				o.MaxAttempts, o.MaxBackoff, o.RateLimiter = 12, 2*time.Second, ratelimit.None
			})
		}),
	}
	if c.Region != "" {
		from = append(from, awsconfig.WithRegion(c.Region))
	}
	if c.CredentialsFile != "" {
		if _, err := os.Stat(c.CredentialsFile); err != nil { // the SDK passes over files that are not there
			return nil, nil, bad("credentials_file", "it cannot be read: %v", err)
		}
		from = append(from, awsconfig.WithSharedCredentialsFiles([]string{c.CredentialsFile}), awsconfig.WithSharedConfigFiles(nil))
	}
	ac, err := awsconfig.LoadDefaultConfig(ctx, from...)
	if err != nil {
		return nil, nil, bad("credentials_file", "the SDK refuses its configuration: %v", err)
	}
	if ac.Region == "" {
		return nil, nil, bad("region", "it is empty, and the environment names none")
	}
	if b, ok := ac.HTTPClient.(*awshttp.BuildableClient); ok { // with the authorities of AWS_CA_BUNDLE
		ac.HTTPClient = &http.Client{ // whose connections can be closed
			Transport:     b.GetTransport(),
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	return api.NewFromConfig(ac, func(o *api.Options) {
		if c.Endpoint != "" {
			o.BaseEndpoint = &c.Endpoint
		}
	}), ac.HTTPClient, nil
}
