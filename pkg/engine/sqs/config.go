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

// Config is the configuration of a Store. The fields with a koanf tag are settings in the
// section sqs of the configuration file. The other fields are set only by the program.
// Endpoint may be an http URL only if its host is a loopback address.
type Config struct {
	Region          string `koanf:"region" doc:"region of AWS; empty: the delay queue is in Redis"`
	Endpoint        string `koanf:"endpoint" is:"url" empty:"yes" doc:"URL of a server that replaces AWS, e.g. a local one; empty: AWS"`
	Prefix          string `koanf:"prefix" default:"notifyd-" is:"queue" doc:"prefix of the name of every queue"`
	CredentialsFile string `koanf:"credentials_file" doc:"file in the format of ~/.aws/credentials; empty: the environment, ~/.aws/credentials, or the role of the machine"`

	// Timeout is the longest time of a call, retries included; 100 ms to 1 min.
	Timeout time.Duration `default:"10s" min:"100ms" max:"1m"`
	// Wait is how long one request waits for a message: whole seconds, 1 to 20. With a
	// longer Wait, Receive sends fewer requests while no message is due, but it finds a new
	// message of the backlog later.
	Wait time.Duration `default:"2s" min:"1s" max:"20s"`
	// Parallel is how many requests of one call may run at the same time; 1 to 64.
	Parallel int `default:"8" min:"1" max:"64"`
}

func configError(field, format string, args ...any) error {
	return notify.Invalid("bad_config", "sqs."+field, fmt.Sprintf(format, args...))
}

var queueName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,72}$`)

// newClient returns a client of the SDK, and the HTTP client that it uses.
func (c Config) newClient(ctx context.Context) (*api.Client, aws.HTTPClient, error) {
	transport := awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
		t.MaxIdleConnsPerHost = 2 * c.Parallel
	})
	from := []func(*awsconfig.LoadOptions) error{
		awsconfig.WithHTTPClient(transport),
		awsconfig.WithRetryer(func() aws.Retryer {
			return retry.NewStandard(func(o *retry.StandardOptions) {
				// Throttled and failed requests are retried until the Timeout of the call. The rate
				// limiter of the SDK is off, because it would stop the retries earlier.
				o.MaxAttempts, o.MaxBackoff, o.RateLimiter = 12, 2*time.Second, ratelimit.None
			})
		}),
	}
	if c.Region != "" {
		from = append(from, awsconfig.WithRegion(c.Region))
	}
	if c.CredentialsFile != "" {
		if _, err := os.Stat(c.CredentialsFile); err != nil { // the SDK ignores a missing file
			return nil, nil, configError("credentials_file", "the file cannot be read: %v", err)
		}
		from = append(from, awsconfig.WithSharedCredentialsFiles([]string{c.CredentialsFile}), awsconfig.WithSharedConfigFiles(nil))
	}
	ac, err := awsconfig.LoadDefaultConfig(ctx, from...)
	if err != nil {
		return nil, nil, configError("credentials_file", "the AWS SDK cannot load its configuration: %v", err)
	}
	if ac.Region == "" {
		return nil, nil, configError("region", "no region is set: set sqs.region or the environment variable AWS_REGION")
	}
	if b, ok := ac.HTTPClient.(*awshttp.BuildableClient); ok { // now with the CAs of AWS_CA_BUNDLE, which the SDK has added
		ac.HTTPClient = &http.Client{ // an http.Client can close its connections, a BuildableClient cannot
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
