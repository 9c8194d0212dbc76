package product

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	api "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/notifyd/notifyd/pkg/engine/enginetest"
)

// TestQueueInSQS checks that schedules and triggers are delivered through SQS, that the doctor
// checks all six queues, and that no log contains the secret key.
func TestQueueInSQS(t *testing.T) {
	e := servers(t)
	at := enginetest.Server(t, enginetest.SQSEnv)
	keys := filepath.Join(t.TempDir(), "credentials")
	const secret = "CANARY-sqs-41ac"
	if err := os.WriteFile(keys, []byte("[default]\naws_access_key_id = x\naws_secret_access_key = "+secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	prefix := "product-" + strings.ToLower(rand.Text()[:8]) + "-"
	client := api.New(api.Options{Region: "elasticmq", BaseEndpoint: &at, Credentials: credentials.NewStaticCredentialsProvider("x", "x", "")})
	t.Cleanup(func() {
		ctx := context.Background()
		all, err := client.ListQueues(ctx, &api.ListQueuesInput{QueueNamePrefix: &prefix})
		if err != nil {
			t.Error(err)
			return
		}
		for _, url := range all.QueueUrls {
			if _, err := client.DeleteQueue(ctx, &api.DeleteQueueInput{QueueUrl: aws.String(url)}); err != nil {
				t.Error(err)
			}
		}
	})
	f := e.fleet(t, e.main(t).with(values{"sqs.region": "elasticmq", "sqs.endpoint": at, "sqs.prefix": prefix, "sqs.credentials_file": keys}), "api,worker,operator")
	for name, role := range map[string]string{"scheduler": "scheduler", "dispatcher": "dispatcher"} {
		if _, err := f.Run(t.Context(), name, role, nil); err != nil {
			t.Fatal(err)
		}
	}
	all, err := client.ListQueues(t.Context(), &api.ListQueuesInput{QueueNamePrefix: &prefix})
	// There are two queues, each with a backlog queue and a dead-letter queue.
	if err != nil || len(all.QueueUrls) != 6 {
		t.Fatalf("queues of the installation: %v, %v", all, err)
	}
	whole(t, load(t, f, "sqs", briefly(t)), "sqs")
	looked := 0
	for _, one := range doctor(t, f.V.Client()) {
		if !strings.HasPrefix(one.Check, "sqs ") {
			continue
		}
		if looked++; one.Level == "fail" {
			t.Errorf("the doctor: %+v", one)
		}
	}
	if looked < 6 {
		t.Errorf("the doctor looked at %d queues", looked)
	}
	if err := f.Stop(); err != nil {
		t.Error(err)
	}
	e.tellsNothing(t, f, "")
	if logs, err := f.Logs(); err != nil || strings.Contains(logs, secret) {
		t.Errorf("the secret key is told, or %v", err)
	}
}

// TestDoctorMissesAQueue checks that the doctor reports queues that were never created.
func TestDoctorMissesAQueue(t *testing.T) {
	e := servers(t)
	at := enginetest.Server(t, enginetest.SQSEnv)
	v := e.main(t)
	f := e.fleet(t, v, "api") // migrates without SQS, so no SQS queue is created
	set := values{"sqs.region": "elasticmq", "sqs.endpoint": at, "sqs.prefix": "nobody-made-" + strings.ToLower(rand.Text()[:8]) + "-"}
	env := []string{"AWS_ACCESS_KEY_ID=x", "AWS_SECRET_ACCESS_KEY=x"}
	p, err := f.Run(t.Context(), "api-over-sqs", "api", env, set.set()...)
	if err != nil {
		t.Fatal(err)
	}
	failed := 0
	for _, one := range doctor(t, clientOf(f.V.Client(), p.API)) {
		if strings.HasPrefix(one.Check, "sqs ") && one.Level == "fail" {
			failed++
			if !strings.Contains(one.Repair, "migrate up") {
				t.Errorf("%+v", one)
			}
		}
	}
	if failed == 0 {
		t.Error("the doctor does not miss the queues")
	}
}
