package rig

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/jackc/pgx/v5"
	goredis "github.com/redis/go-redis/v9"
)

// Apart gives a run its own keyspace in Cassandra, database in PostgreSQL and key prefix in Redis.
// All three have the same new name, which begins with the given name. Apart creates the database,
// but not the keyspace. The returned function removes all three, and prints the name if it could
// not remove something. Apart does not change the names of topics, so a run that needs its own
// topics must start its own Kafka.
func (s *Servers) Apart(ctx context.Context, name string) (remove func()) {
	name = fmt.Sprintf("%s_%08x", name, rand.Uint32())
	s.Keyspace, s.Database, s.Prefix = name, name, name+":"
	admin := Must(pgx.Connect(ctx, s.DSN("postgres")))
	Must(admin.Exec(ctx, "CREATE DATABASE "+name))
	return func() {
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), Patience)
		defer stop()
		defer func() { _ = admin.Close(ctx) }()
		_, err := admin.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
		if err := errors.Join(err, Try(func() { s.dropKeyspace(ctx, name) }), Try(func() { s.dropKeys(ctx, name+":") })); err != nil {
			fmt.Printf("could not remove everything called %s from the servers: %v\n", name, err)
		}
	}
}

func (s *Servers) dropKeyspace(ctx context.Context, name string) {
	cl := gocql.NewCluster(strings.Split(s.Cassandra, ",")...)
	cl.Timeout, cl.ConnectTimeout = Patience, time.Minute
	session := Must(cl.CreateSession())
	defer session.Close()
	Ok(session.Query("DROP KEYSPACE IF EXISTS " + name).ExecContext(ctx))
}

func (s *Servers) dropKeys(ctx context.Context, prefix string) {
	cl := goredis.NewClient(&goredis.Options{Addr: s.Redis})
	defer cl.Close()
	keys := cl.Scan(ctx, 0, prefix+"*", 1000).Iterator()
	for keys.Next(ctx) {
		Ok(cl.Unlink(ctx, keys.Val()).Err())
	}
	Ok(keys.Err())
}
