# "make" lists the targets. A target installs the tools that it needs beyond Go, git and
# bash into ./bin.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

GOLANGCI_VERSION := v2.15.0
PROTOC_GEN_GO_VERSION := v1.36.12
CYCLONEDX_VERSION := v1.10.0

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
FUZZTIME ?= 20s
KILLS ?= 20
TRIALS ?= 10
ONLY ?=
MUTANT ?=
NODES ?= 1
SHORT ?=
SERVERS ?=
USERS ?=
PKGS ?= ./...

BIN := $(CURDIR)/bin
TESTFLAGS := -timeout 40m $(if $(SHORT),-short)

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: go ## Build bin/notifyd and bin/notifyctl: static, the same bytes from the same sources
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w -X main.linkedVersion=$(VERSION)' -o '$(BIN)/' ./cmd/notifyd ./cmd/notifyctl

.PHONY: sbom
sbom: build ## Write bin/*.cdx.json: the modules in each binary and their licences (CycloneDX)
	for b in notifyd notifyctl; do go run github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@$(CYCLONEDX_VERSION) bin -json -licenses -version '$(VERSION)' -output "$(BIN)/$$b.cdx.json" "$(BIN)/$$b"; done

.PHONY: test
test: go ## Run all tests; SHORT=1 leaves out the long ones, PKGS=./pkg/timer/wheel picks some
	go test $(TESTFLAGS) $(PKGS)

.PHONY: race
race: go cc ## Run all tests with the race detector; SHORT=1, PKGS= as for test
	CGO_ENABLED=1 go test -race $(TESTFLAGS) $(PKGS)

.PHONY: lint
lint: go $(BIN)/golangci-lint-$(GOLANGCI_VERSION) ## Check format, vet and golangci-lint (installed when missing)
	@out=$$(gofmt -l $(wildcard cmd pkg internal tests examples dashboards docs) *.go); if [ -n "$$out" ]; then echo "gofmt -w these files:"; echo "$$out"; exit 1; fi
	go vet ./...
	$(BIN)/golangci-lint-$(GOLANGCI_VERSION) run --allow-parallel-runners ./...

.PHONY: fuzz
fuzz: go ## Run every fuzz target for FUZZTIME (20s); ONLY="pkg/api pkg/intake" picks packages
	FUZZTIME='$(FUZZTIME)' ONLY='$(ONLY)' scripts/fuzz.sh

.PHONY: bench
bench: go ## Measure against the references in docs/performance.md; ONLY=P2 runs one
	ONLY='$(ONLY)' scripts/bench.sh

.PHONY: scorecard
scorecard: go ## Prove the promises of the README in about MINUTES (10): writes a signed file and a page to bench/; ONLY="lateness replay" picks proofs, SCORECARD_KEY=file is the key that signs
	go run ./tests/scorecard -minutes '$(or $(MINUTES),10)' $(if $(ONLY),-only '$(ONLY)')

.PHONY: scenarios
scenarios: go ## Run the load scenarios; SHORT=1 runs each for seconds to see that it works, ONLY="smoke steady" picks some
	SHORT='$(SHORT)' ONLY='$(ONLY)' scripts/scenarios.sh

.PHONY: ledger
ledger: go ## Show that the ledger of a load run counts a billion notifications exactly in 1 GiB of memory (needs 20 GB of disk); SHORT=1: ten million
	go run ./tests/ledger $(if $(SHORT),-n 10000000)

.PHONY: demo
demo: go ## Start everything, send a little of each kind, show the outcomes
	scripts/demo.sh

.PHONY: demo-engines
demo-engines: go ## The same on Kafka, Cassandra, Redis and PostgreSQL, with separate processes for the roles
	scripts/demo-engines.sh

.PHONY: replay
replay: go ## Replay 100,000 dead letters while the process is killed; SHORT=1: 10,000
	go run ./tests/replay $(if $(SHORT),-letters 10000 -rate 1000 -kills 3) $(if $(filter-out file,$(origin KILLS)),-kills '$(KILLS)') $(if $(SEED),-seed '$(SEED)')

.PHONY: browser
browser: go ## Drive the operator page with Chromium (installed when missing)
	scripts/browser.sh

.PHONY: hlog-java
hlog-java: go ## Compare the percentiles of a .hlog with those of the Java HdrHistogram (needs Java, Maven)
	scripts/hlog-java.sh

.PHONY: torture
torture: go ## Kill the process KILLS (20) times under load and check that nothing is lost
	KILLS='$(KILLS)' scripts/torture.sh

.PHONY: outage
outage: go ## Stop the process for 10 minutes while 100,000 triggers become due; SHORT=1: 20 s, 5,000
	go run ./tests/outage $(if $(SHORT),-n 5000 -stop 20s) $(if $(MUTANT),-mutant '$(MUTANT)')

.PHONY: attack
attack: go ## Try every attack of the table on real servers (root); ONLY="url token" picks groups, MUTANT=any-address breaks a mechanism first, MUTANT=all breaks each in turn
	@MUTANT='$(MUTANT)' ONLY='$(ONLY)' scripts/attack.sh

.PHONY: mutants
mutants: go ## Break one mechanism at a time and check that torture and powerloss notice (root, /dev/fuse)
	KILLS='$(if $(filter file,$(origin KILLS)),6,$(KILLS))' scripts/mutants.sh

.PHONY: powerloss
powerloss: go ## Simulate TRIALS (10) power cuts under the log and under the whole process (root, /dev/fuse)
	TRIALS='$(TRIALS)' scripts/powerloss.sh

.PHONY: engines
engines: ## Install and start real servers on loopback ports: Kafka, Cassandra, Redis, PostgreSQL, SQS; NODES=3 starts three nodes, ONLY='kafka redis' picks servers
	@NODES='$(NODES)' ONLY='$(ONLY)' scripts/engines.sh start

.PHONY: engines-stop
engines-stop: ## Stop the servers of make engines; their data stay in .engines
	@ONLY='$(ONLY)' scripts/engines.sh stop

.PHONY: test-engines
test-engines: go ## Run the suites of every engine on the servers of make engines; a skipped test is a failure
	@ONLY='$(ONLY)' scripts/test-engines.sh $(TESTFLAGS)

.PHONY: bench-engines
bench-engines: go ## Compare notifyd's use of those servers with their own tools or the bare driver; SHORT=1, ONLY="kafka redis" picks servers, ONLY=chain measures the whole chain
	@SHORT='$(SHORT)' ONLY='$(ONLY)' scripts/bench-engines.sh

.PHONY: faults
faults: go ## Kill, empty, pause and cut off those servers and processes under load; SHORT=1: 10 s each, NODES=3: kill one node of three for good, ONLY="kafka redis" picks faults
	@SHORT='$(SHORT)' ONLY='$(ONLY)' scripts/faults.sh

.PHONY: rolling
rolling: go ## Restart every process over those servers, one after the other, under load; ROUNDS=3 repeats it, FROM=HEAD^ upgrades them from another commit
	@ROUNDS='$(ROUNDS)' FROM='$(FROM)' scripts/rolling.sh

.PHONY: growth
growth: go ## Raise the number of timer shards and partitions of three processes over those servers, under load; FROM=16 TO=256
	@FROM='$(FROM)' TO='$(TO)' scripts/growth.sh

.PHONY: scaleout
scaleout: go ## Compare the rates of 1, 2 and 4 processes, each with a share of a core, over those servers (root); SHORT=1, NODES=3, ONLY="singles fanouts triggers" picks loads
	@SHORT='$(SHORT)' ONLY='$(ONLY)' scripts/scaleout.sh

.PHONY: loadfleet
loadfleet: go ## Load an installation over those servers from three agents in network namespaces (root) under a load grant: kill an agent, revoke the grant
	@scripts/loadfleet.sh

.PHONY: overload
overload: go ## Send notifyd four times the fan-outs it can take, and codes beside them; SHORT=1: 10 s, not judged, SERVERS=1: on the servers of make engines
	@SHORT='$(SHORT)' SERVERS='$(SERVERS)' MUTANT='$(MUTANT)' scripts/overload.sh

.PHONY: agents
agents: go ## Show that four load agents send four times as much as one, each limited to a share of a core (root)
	go run ./tests/agents

.PHONY: users20m
users20m: go ## Show how much of 20 million users each of 4 workers holds in memory, and that opt-outs bind, over those servers (6 GB of disk); USERS=2000000
	@USERS='$(USERS)' scripts/users20m.sh

.PHONY: rules
rules: go ## Test the alerts of dashboards/rules on recorded series with the engine of Prometheus
	cd dashboards/ruletest && go test -count=1 $(TESTFLAGS) .

.PHONY: dashboards
dashboards: go ## Generate dashboards/grafana and the rules of the objectives again
	go run ./dashboards/build

.PHONY: cover
cover: go ## Write coverage.out and coverage.html
	go test $(TESTFLAGS) -coverprofile=coverage.out -coverpkg=./pkg/... $(PKGS)
	go tool cover -html=coverage.out -o coverage.html
	@go tool cover -func=coverage.out | tail -1

.PHONY: proto
proto: go $(BIN)/protoc-gen-go ## Generate the Go code of proto/ again (needs protoc)
	@command -v protoc >/dev/null || { echo "protoc is missing: install the package protobuf-compiler"; exit 1; }
	find proto -name '*.proto' -exec protoc --plugin='$(BIN)/protoc-gen-go' --go_out=. --go_opt=paths=source_relative {} +

.PHONY: clean
clean: ## Remove the files that the other targets made
	rm -rf '$(BIN)' coverage.out coverage.html

.PHONY: go
go:
	@command -v go >/dev/null || { echo "Go is missing: install $$(sed -n 's/^go /Go /p' go.mod) or later from https://go.dev/dl/ and put it on the PATH"; exit 1; }

.PHONY: cc
cc:
	@command -v "$$(go env CC)" >/dev/null || { echo "The race detector needs a C compiler: install the package gcc"; exit 1; }

# The file's name has the version, so that make installs a new version by itself.
$(BIN)/golangci-lint-$(GOLANGCI_VERSION): | go
	GOBIN='$(BIN)' go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	mv '$(BIN)/golangci-lint' '$@'

$(BIN)/protoc-gen-go: | go
	GOBIN='$(BIN)' go install google.golang.org/protobuf/cmd/protoc-gen-go@$(PROTOC_GEN_GO_VERSION)
