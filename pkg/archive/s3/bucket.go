// Package s3 keeps the files of the archive in a bucket of S3, or of a store
// that speaks its protocol.
package s3

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"time"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// Config of a Bucket. The tagged fields are the section archive.s3 of the configuration
// file. Prefix is put before every name, with a slash between: two stores under the same
// prefix would write files of the same names.
type Config struct {
	Bucket      string `koanf:"bucket" doc:"bucket the files are moved to; empty: they stay in archive.dir"`
	Prefix      string `koanf:"prefix" doc:"before the names of the objects; each notifyd has its own"`
	Region      string `koanf:"region" doc:"empty: that of AWS_REGION or of the credentials' profile"`
	Endpoint    string `koanf:"endpoint" is:"url" empty:"yes" doc:"URL of a store that is not AWS's"`
	PathStyle   bool   `koanf:"path_style" doc:"put the bucket into the path, as most other stores want it"`
	Credentials string `koanf:"credentials_file" doc:"file in the form of ~/.aws/credentials; empty: the environment, that file, the machine's role"`

	// Timeout bounds one file. Default 30 min.
	Timeout time.Duration
}

// Bucket takes files. It may be used by several goroutines.
type Bucket struct {
	cfg Config
	api *s3.Client
	up  *transfermanager.Client
}

// New returns a Bucket; it does not look whether it is there.
func New(ctx context.Context, cfg Config) (*Bucket, error) {
	if cfg.Bucket == "" {
		return nil, errors.New("s3: a bucket is required")
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 30 * time.Minute
	}
	var from []func(*config.LoadOptions) error
	if cfg.Credentials != "" {
		if _, err := os.Stat(cfg.Credentials); err != nil { // the SDK passes over files that are not there
			return nil, fmt.Errorf("s3: credentials: %w", err)
		}
		from = append(from, config.WithSharedCredentialsFiles([]string{cfg.Credentials}))
	}
	if cfg.Region != "" {
		from = append(from, config.WithRegion(cfg.Region))
	}
	ac, err := config.LoadDefaultConfig(ctx, from...)
	if err != nil {
		return nil, fmt.Errorf("s3: %w", err)
	}
	if ac.Region == "" {
		return nil, errors.New("s3: no region is set, and the environment names none")
	}
	b := &Bucket{cfg: cfg}
	b.api = s3.NewFromConfig(ac, func(o *s3.Options) {
		o.UsePathStyle = cfg.PathStyle
		if cfg.Endpoint != "" {
			o.BaseEndpoint = &cfg.Endpoint
		}
	})
	b.up = transfermanager.New(b.api, func(o *transfermanager.Options) {
		o.PartSizeBytes = 16 << 20 // of 10,000 at most; larger for files above 160 GB
		o.Concurrency = 2
		o.FailTimeout = time.Minute // to take back the parts of a file that failed
	})
	return b, nil
}

// sumKey is the metadata that holds the SHA-256 of a file, in hex.
const sumKey = "sha256"

// Put stores the file under name, with the SHA-256 of its content. A file that
// is there already with that sum is left as it is; where another is there, or one
// without a sum, the error is fs.ErrExist.
func (b *Bucket) Put(ctx context.Context, name, file, sum string) (err error) {
	ctx, stop := context.WithTimeout(ctx, b.cfg.Timeout)
	defer stop()
	key := path.Join(b.cfg.Prefix, name)
	switch was, err := b.sumOf(ctx, key); {
	case err != nil:
		return fmt.Errorf("s3: looking for %s in %s: %w", key, b.cfg.Bucket, err)
	case was == sum:
		return nil
	case was != "":
		return fmt.Errorf("s3: %s is in %s already, with other content: %w", key, b.cfg.Bucket, fs.ErrExist)
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close() // it was only read
	_, err = b.up.UploadObject(ctx, &transfermanager.UploadObjectInput{
		Bucket: &b.cfg.Bucket, Key: &key, Body: f, Metadata: map[string]string{sumKey: sum},
	})
	if err != nil {
		return fmt.Errorf("s3: storing %s in %s: %w", key, b.cfg.Bucket, err)
	}
	return nil
}

// sumOf returns the sum of an object; "" where there is none of that key, and
// "unknown" where somebody stored it without.
func (b *Bucket) sumOf(ctx context.Context, key string) (string, error) {
	o, err := b.api.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.cfg.Bucket, Key: &key})
	if _, none := errors.AsType[*types.NotFound](err); none {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if sum := o.Metadata[sumKey]; sum != "" {
		return sum, nil
	}
	return "unknown", nil
}
