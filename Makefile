# "make" lists the targets. Everything a target needs beyond Go, git and bash it
# installs into ./bin.

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
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: go ## Build bin/notifyd and bin/notifyctl: static, the same bytes from the same sources
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w -X main.linked=$(VERSION)' -o '$(BIN)/' ./cmd/notifyd ./cmd/notifyctl

.PHONY: sbom
sbom: build ## Write bin/*.cdx.json: what modules each binary is made of, with licences (CycloneDX)
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
fuzz: go ## Run every fuzz target for FUZZTIME (20s); ONLY="pkg/api pkg/intake" those of some packages
	FUZZTIME='$(FUZZTIME)' ONLY='$(ONLY)' scripts/fuzz.sh

.PHONY: bench
bench: go ## Measure against the references in docs/performance.md; ONLY=P2 runs one
	ONLY='$(ONLY)' scripts/bench.sh

.PHONY: scorecard
scorecard: go ## Prove what the README promises for about MINUTES (10): one signed file and a page in bench/; ONLY="lateness replay" some, SCORECARD_KEY=file signs
	go run ./tests/scorecard -minutes '$(or $(MINUTES),10)' $(if $(ONLY),-only '$(ONLY)')

.PHONY: scenarios
scenarios: go ## Run the load scenarios; SHORT=1: each for seconds, to see that it works, ONLY="smoke steady" some
	SHORT='$(SHORT)' ONLY='$(ONLY)' scripts/scenarios.sh

.PHONY: ledger
ledger: go ## Show that the ledger of a load run counts a billion notifications exactly, in 1 GiB of memory (20 GB of disk); SHORT=1: ten million
	go run ./tests/ledger $(if $(SHORT),-n 10000000)

.PHONY: demo
demo: go ## Start everything, send a little of each kind, show what became of it
	scripts/demo.sh

.PHONY: demo-engines
demo-engines: go ## The same on Kafka, Cassandra, Redis and PostgreSQL, roles in processes of their own
	scripts/demo-engines.sh

.PHONY: replay
replay: go ## Replay 100,000 dead letters while the process is killed; SHORT=1: 10,000
	go run ./tests/replay $(if $(SHORT),-letters 10000 -rate 1000 -kills 3) $(if $(filter-out file,$(origin KILLS)),-kills '$(KILLS)') $(if $(SEED),-seed '$(SEED)')

.PHONY: browser
browser: go ## Drive the operator page with Chromium (installed when missing)
	scripts/browser.sh

.PHONY: hlog-java
hlog-java: go ## Hold the percentiles of a .hlog against the Java HdrHistogram (Java, Maven)
	scripts/hlog-java.sh

.PHONY: torture
torture: go ## Kill the process KILLS (20) times under load and check that nothing was lost
	KILLS='$(KILLS)' scripts/torture.sh

.PHONY: outage
outage: go ## Stop the process for 10 minutes while 100,000 triggers become due; SHORT=1: 20 s, 5,000
	go run ./tests/outage $(if $(SHORT),-n 5000 -stop 20s) $(if $(MUTANT),-mutant '$(MUTANT)')

.PHONY: attack
attack: go ## Make every try of the table of attacks against real servers (root); MUTANT=any-address: break a mechanism first, MUTANT=all: each; ONLY="url token" some
	@MUTANT='$(MUTANT)' ONLY='$(ONLY)' scripts/attack.sh

.PHONY: mutants
mutants: go ## Break one mechanism at a time and check that torture and powerloss notice (root, /dev/fuse)
	KILLS='$(if $(filter file,$(origin KILLS)),6,$(KILLS))' scripts/mutants.sh

.PHONY: powerloss
powerloss: go ## Cut the power TRIALS (10) times under the log and the process (root, /dev/fuse)
	TRIALS='$(TRIALS)' scripts/powerloss.sh

.PHONY: engines
engines: ## Install and start real servers on loopback ports: Kafka, Cassandra, Redis, PostgreSQL, SQS; NODES=3, ONLY='kafka redis'
	@NODES='$(NODES)' ONLY='$(ONLY)' scripts/engines.sh start

.PHONY: engines-stop
engines-stop: ## Stop them; their data stay in .engines
	@ONLY='$(ONLY)' scripts/engines.sh stop

.PHONY: test-engines
test-engines: go ## Run the suites of every engine on the servers of make engines: there a skip is a failure
	@ONLY='$(ONLY)' scripts/test-engines.sh $(TESTFLAGS)

.PHONY: bench-engines
bench-engines: go ## Measure our use of those servers beside their own tools or the bare driver; SHORT=1, ONLY="kafka redis" or ONLY=chain
	@SHORT='$(SHORT)' ONLY='$(ONLY)' scripts/bench-engines.sh

.PHONY: faults
faults: go ## Kill, empty, pause and cut off those servers, and processes, under load; SHORT=1: for 10 s each, NODES=3: one of three for good, ONLY="kafka redis" some
	@SHORT='$(SHORT)' ONLY='$(ONLY)' scripts/faults.sh

.PHONY: rolling
rolling: go ## Restart every process over those servers, one after the other, under load; ROUNDS=3, FROM=HEAD^: upgrade them from another commit
	@ROUNDS='$(ROUNDS)' FROM='$(FROM)' scripts/rolling.sh

.PHONY: growth
growth: go ## Raise the number of timer shards of three processes over those servers, under load; FROM=16 TO=256
	@FROM='$(FROM)' TO='$(TO)' scripts/growth.sh

.PHONY: scaleout
scaleout: go ## Show what 1, 2 and 4 processes, each with a share of a core, do over those servers (root); SHORT=1, NODES=3, ONLY="singles fanouts triggers" some
	@SHORT='$(SHORT)' ONLY='$(ONLY)' scripts/scaleout.sh

.PHONY: loadfleet
loadfleet: go ## Load an installation over those servers from three agents in network namespaces (root), by consent: kill one, revoke the grant
	@scripts/loadfleet.sh

.PHONY: overload
overload: go ## Give notifyd four times the fan-outs it can take, codes beside them; SHORT=1: 10 s, not judged, SERVERS=1: on the servers of make engines
	@SHORT='$(SHORT)' SERVERS='$(SERVERS)' MUTANT='$(MUTANT)' scripts/overload.sh

.PHONY: agents
agents: go ## Show that four load agents send four times what one sends, each held to a share of a core (root)
	go run ./tests/agents

.PHONY: users20m
users20m: go ## Show over those servers what 4 workers hold of 20 million users, and that opt-outs bind (6 GB of disk); USERS=2000000
	@USERS='$(USERS)' scripts/users20m.sh

.PHONY: rules
rules: go ## Run the alerts of dashboards/rules against recorded series with Prometheus' engine
	cd dashboards/ruletest && go test -count=1 $(TESTFLAGS) .

.PHONY: dashboards
dashboards: go ## Write dashboards/grafana and the rules of the objectives again
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
clean: ## Remove what the other targets made
	rm -rf '$(BIN)' coverage.out coverage.html

.PHONY: go
go:
	@command -v go >/dev/null || { echo "Go is missing: install $$(sed -n 's/^go /Go /p' go.mod) or later from https://go.dev/dl/ and put it on the PATH"; exit 1; }

.PHONY: cc
cc:
	@command -v "$$(go env CC)" >/dev/null || { echo "The race detector needs a C compiler: install the package gcc"; exit 1; }

# The version is in the file's name, so that a new one is installed by itself.
$(BIN)/golangci-lint-$(GOLANGCI_VERSION): | go
	GOBIN='$(BIN)' go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	mv '$(BIN)/golangci-lint' '$@'

$(BIN)/protoc-gen-go: | go
	GOBIN='$(BIN)' go install google.golang.org/protobuf/cmd/protoc-gen-go@$(PROTOC_GEN_GO_VERSION)
