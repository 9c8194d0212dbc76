// Package s3 stores the files of the archive in a bucket of S3, or of a store with the same
// protocol.
package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strings"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// Config configures a Bucket. The tagged fields are the section archive.s3 of the configuration
// file. Every object name begins with Prefix and a slash. Two archives must not use the same
// prefix, because they would write files with the same names.
type Config struct {
	Bucket      string `koanf:"bucket" doc:"bucket that the files are moved to; empty: they stay in archive.dir"`
	Prefix      string `koanf:"prefix" doc:"prefix of the objects' names; two archives must not use the same prefix"`
	Region      string `koanf:"region" doc:"region of the bucket; empty: AWS_REGION or the region of the credentials' profile"`
	Endpoint    string `koanf:"endpoint" is:"url" empty:"yes" doc:"URL of an S3-compatible store; empty: AWS"`
	PathStyle   bool   `koanf:"path_style" doc:"put the name of the bucket into the path of URLs, not into the host name; most stores other than AWS need this"`
	Credentials string `koanf:"credentials_file" doc:"file in the format of ~/.aws/credentials; empty: the environment, ~/.aws/credentials, or the role of the machine"`

	// Timeout is the time limit for the transfer of one file. Default 30 min.
	Timeout time.Duration
}

// Bucket stores files in a bucket. It is safe for concurrent use.
type Bucket struct {
	cfg Config
	api *s3.Client
	up  *transfermanager.Client
}

// New returns a Bucket. It does not check that the bucket exists. It returns an error if the
// name or the region is missing or the credentials cannot be loaded.
func New(ctx context.Context, cfg Config) (*Bucket, error) {
	if cfg.Bucket == "" {
		return nil, errors.New("s3: no bucket is configured; set archive.s3.bucket")
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 30 * time.Minute
	}
	var from []func(*config.LoadOptions) error
	if cfg.Credentials != "" {
		if _, err := os.Stat(cfg.Credentials); err != nil { // the SDK ignores a missing file without an error
			return nil, fmt.Errorf("s3: archive.s3.credentials_file: %w", err)
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
		return nil, errors.New("s3: no region is configured; set archive.s3.region or AWS_REGION")
	}
	b := &Bucket{cfg: cfg}
	b.api = s3.NewFromConfig(ac, func(o *s3.Options) {
		o.UsePathStyle = cfg.PathStyle
		if cfg.Endpoint != "" {
			o.BaseEndpoint = &cfg.Endpoint
		}
	})
	b.up = transfermanager.New(b.api, func(o *transfermanager.Options) {
		o.PartSizeBytes = 16 << 20 // at most 10,000 parts; parts are larger for files above 160 GB
		o.Concurrency = 2
		o.FailTimeout = time.Minute // time to delete the parts of a failed upload
	})
	return b, nil
}

// sumKey is the metadata key of a file's SHA-256, in hexadecimal.
const sumKey = "sha256"

// Put stores a file under the given name, together with the parameter sum, the SHA-256 of its
// content. If an object with this name and sum exists, Put does nothing. If an object with this
// name has another sum or no sum, Put returns an fs.ErrExist error. If two calls run at the same
// time, only one stores its file, provided that the store supports If-None-Match (S3 does).
func (b *Bucket) Put(ctx context.Context, name, file, sum string) error {
	ctx, stop := context.WithTimeout(ctx, b.cfg.Timeout)
	defer stop()
	key := path.Join(b.cfg.Prefix, name)
	if there, err := b.hasSum(ctx, key, sum); there || err != nil {
		return err
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close() // the file is only read: an error of Close loses no data
	err = b.upload(ctx, key, sum, f)
	switch statusOf(err) {
	// Another process was faster. Or an earlier try of this call succeeded and its answer was lost.
	case http.StatusPreconditionFailed, http.StatusConflict:
		if there, err := b.hasSum(ctx, key, sum); there || err != nil {
			return err
		}
	}
	if err != nil {
		return fmt.Errorf("s3: storing %s in the bucket %s: %w", key, b.cfg.Bucket, err)
	}
	return nil
}

// Has reports whether the bucket has an object with this name and sum.
func (b *Bucket) Has(ctx context.Context, name, sum string) (bool, error) {
	there, err := b.hasSum(ctx, path.Join(b.cfg.Prefix, name), sum)
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	return there, err
}

// hasSum reports whether an object with this key and sum exists. It returns an fs.ErrExist error if
// the object has another sum.
func (b *Bucket) hasSum(ctx context.Context, key, sum string) (bool, error) {
	switch was, err := b.sumOf(ctx, key); {
	case err != nil:
		return false, fmt.Errorf("s3: looking for %s in the bucket %s: %w", key, b.cfg.Bucket, err)
	case was != "" && was != sum:
		return false, fmt.Errorf("s3: the bucket %s already has %s, but with other content: %w", b.cfg.Bucket, key, fs.ErrExist)
	default:
		return was != "", nil
	}
}

// upload stores a file only if no object has this key. If the store does not support that
// condition, upload repeats the request without it.
func (b *Bucket) upload(ctx context.Context, key, sum string, f *os.File) error {
	in := &transfermanager.UploadObjectInput{Bucket: &b.cfg.Bucket, Key: &key, Body: f, Metadata: map[string]string{sumKey: sum}, IfNoneMatch: new("*")}
	_, err := b.up.UploadObject(ctx, in)
	if statusOf(err) != http.StatusNotImplemented {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	in.IfNoneMatch = nil
	_, err = b.up.UploadObject(ctx, in)
	return err
}

// statusOf returns the HTTP status of the store's answer, or 0 if err is not an answer.
func statusOf(err error) int {
	if e, ok := errors.AsType[*awshttp.ResponseError](err); ok {
		return e.HTTPStatusCode()
	}
	return 0
}

// sumOf returns the stored sum of an object. It returns "" if there is no object, and "unknown"
// if the object has no sum.
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

// Copy downloads the objects whose names begin with namePrefix. It skips names that are smaller
// than firstName. It writes each object to a file with the same name in the folder dir.
func (b *Bucket) Copy(ctx context.Context, namePrefix, firstName, dir string) error {
	prefix := ""
	if b.cfg.Prefix != "" {
		prefix = b.cfg.Prefix + "/"
	}
	root, err := os.OpenRoot(dir) // with a Root, an object's key cannot lead out of the folder
	if err != nil {
		return err
	}
	defer root.Close() // all files are closed already
	begin := prefix + namePrefix
	for pages := s3.NewListObjectsV2Paginator(b.api, &s3.ListObjectsV2Input{Bucket: &b.cfg.Bucket, Prefix: &begin}); pages.HasMorePages(); {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return fmt.Errorf("s3: listing %s in the bucket %s: %w", begin, b.cfg.Bucket, err)
		}
		for i := range page.Contents {
			name, ours := strings.CutPrefix(*page.Contents[i].Key, prefix)
			if !ours || name < firstName || strings.HasSuffix(name, "/") {
				continue
			}
			if err := b.download(ctx, root, *page.Contents[i].Key, name); err != nil {
				return fmt.Errorf("s3: reading %s in the bucket %s: %w", *page.Contents[i].Key, b.cfg.Bucket, err)
			}
		}
	}
	return nil
}

// download writes an object to a file.
func (b *Bucket) download(ctx context.Context, root *os.Root, key, name string) error {
	ctx, stop := context.WithTimeout(ctx, b.cfg.Timeout)
	defer stop()
	o, err := b.api.GetObject(ctx, &s3.GetObjectInput{Bucket: &b.cfg.Bucket, Key: &key})
	if err != nil {
		return err
	}
	defer o.Body.Close() // the body is only read: an error of Close loses no data
	if err := root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, o.Body)
	return errors.Join(err, f.Close())
}
