# What a developer types; `make` alone lists it. A machine needs Go, gcc (for
# the race detector), make and bash; all tools come as Go modules, at the
# versions that tools.mod pins. Tests with real stores need what make deps fetches;
# without it they are skipped, but in make test-stores.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL: # the steps share the cores, and are timed

# With this tag the metrics of raft and of its store go to one sink.
TAGS := -tags hashicorpmetrics
TOOL := go tool -modfile=tools.mod
BUF := go tool -modfile=buf.mod buf
STEP := @scripts/step
GOTEST := scripts/gotest $(TAGS) -race

# Whole clusters in virtual time, with many seeds: a few of them run under the
# race detector with the fast packages, all of them without it.
SCENARIOS := ./node/nodetest

# Packages whose tests run real sockets and processes, or load the machine: they
# come last and one after the other. The others run in virtual time or take a
# moment.
REAL := ./node ./transport/gateway ./bench ./internal/drill ./cmd/...
FAST = $(filter-out $(shell go list $(REAL)) %/internal/arch,$(shell go list ./...))

# Packages with tests that need a real store, DynamoDB Local: make test-stores runs
# them all, make test only what they test without one.
# Tests of the binary that need a real store.
STORE_COMMANDS := 'TestArbitrated(Birth|MajorityLost)|TestArbiterTable|TestServeByArbiter|TestAdopt|TestDrillsOnDynamoDB'
STORES := ./internal/dynamolocal ./arbiter/dynamodb

# make build RELEASE=1.2.3 names a release other than the source's own.
RELEASE :=
LDFLAGS := $(if $(RELEASE),-ldflags "-X github.com/coordd/coordd/internal/version.Release=$(RELEASE)")

# For make soak: the time for each fuzz target, the seeds for each scenario. For
# make sim: the seeds, a number or a range such as 1-20000.
FUZZTIME := 2m
SEEDS := 10000

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/coordd, which needs no shared library
	CGO_ENABLED=0 go build $(TAGS) $(LDFLAGS) -o bin/coordd ./cmd/coordd

.PHONY: deps
deps: ## fetch what tests with real stores need: DynamoDB Local, and Java where it is missing
	$(STEP) 'test dependencies' scripts/deps

.PHONY: demo
demo: ## two workers compete for a lease of a local cluster
	@scripts/demo.sh

.PHONY: fmt
fmt: ## format all Go code
	$(TOOL) gofumpt -w .

.PHONY: test
test: lint test-fast test-scenarios test-sim test-real bench-smoke test-demo ## everything a change must pass, in about 25 minutes

.PHONY: lint
lint: ## gofumpt, vet, staticcheck, the arch test
	$(STEP) gofumpt scripts/unformatted $(TOOL) gofumpt -l .
	$(STEP) vet go vet $(TAGS) ./...
	$(STEP) staticcheck $(TOOL) staticcheck $(TAGS) ./...
	$(STEP) arch scripts/gotest $(TAGS) -count=1 ./internal/arch

.PHONY: test-fast
test-fast: ## unit, property and virtual-time tests, with the race detector
	$(STEP) 'test, fast packages' env COORDD_STORES=0 $(GOTEST) -timeout 10m $(FAST)

.PHONY: test-scenarios
test-scenarios: ## whole clusters in virtual time, 100 seeds a scenario
	$(STEP) 'test, scenarios' scripts/gotest $(TAGS) -timeout 15m $(SCENARIOS)

.PHONY: test-sim
test-sim:
	@$(MAKE) --no-print-directory sim SEEDS=1-20000

.PHONY: sim
sim: ## the protocol simulated in virtual time, SEEDS=1-20000
	$(STEP) 'simulation, seeds $(SEEDS)' env COORDD_SIM_SEEDS=$(if $(findstring -,$(SEEDS)),$(SEEDS),1-$(SEEDS)) scripts/gotest $(TAGS) -count=1 -timeout 24h -run '^TestSeeds$$' ./internal/sim

.PHONY: test-stores
test-stores: ## tests with real stores, in at most 8 minutes; needs make deps
	$(STEP) 'test, real stores' env COORDD_STORES=1 $(GOTEST) -count=1 -p 1 -timeout 8m $(STORES)
	$(STEP) 'test, nodes with real stores' env COORDD_STORES=1 scripts/gotest $(TAGS) -count=1 -parallel 4 -timeout 8m ./node/storetest
	$(STEP) 'test, commands with real stores' env COORDD_STORES=1 scripts/gotest $(TAGS) -count=1 -timeout 8m -run $(STORE_COMMANDS) ./cmd/coordd

.PHONY: test-real
test-real: ## tests with real processes, one package after the other
	$(STEP) 'test, real processes' env COORDD_STORES=0 $(GOTEST) -count=1 -p 1 -timeout 20m $(REAL)

.PHONY: bench
bench: ## measure a whole cluster beside what bounds it, about 10 minutes; ARGS="-quick", ARGS=-help
	go run $(TAGS) ./bench $(ARGS)

.PHONY: bench-smoke
bench-smoke: ## every benchmark once, to see that it runs
	$(STEP) 'benchmarks, once' go test $(TAGS) -run '^$$' -bench . -benchtime 1x -timeout 5m ./...

.PHONY: test-demo
test-demo:
	$(STEP) demo scripts/demo.sh

.PHONY: soak
soak: cross test-k8slock fuzz generate-check ## by hand: fuzzing by time (FUZZTIME), thousands of seeds (SEEDS), cross-builds
	$(STEP) 'test, $(SEEDS) seeds' env COORDD_SEEDS=$(SEEDS) scripts/gotest $(TAGS) -count=1 -timeout 24h $(SCENARIOS)
	$(STEP) 'lint of the protos' $(BUF) lint

# A module of its own, since client-go is large. Its first build takes minutes.
.PHONY: test-k8slock
test-k8slock: ## the lock for client-go's leader election
	@cd client/k8slock && ../../scripts/step 'go.mod, client/k8slock' go mod tidy -diff
	@cd client/k8slock && ../../scripts/step 'vet, client/k8slock' go vet $(TAGS) ./...
	@sc="$$($(TOOL) -n staticcheck)" && cd client/k8slock && ../../scripts/step 'staticcheck, client/k8slock' "$$sc" $(TAGS) ./...
	@cd client/k8slock && ../../scripts/step 'test, client/k8slock' ../../scripts/gotest $(TAGS) -race -count=1 -timeout 20m ./...

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME
	$(STEP) 'fuzz, $(FUZZTIME) each' scripts/fuzz $(FUZZTIME) $(TAGS)

.PHONY: cross
cross: ## build for linux/arm64 and darwin/arm64, vet for darwin
	$(STEP) 'build for linux/arm64' env CGO_ENABLED=0 GOOS=linux GOARCH=arm64 go build $(TAGS) -o /dev/null ./cmd/coordd
	$(STEP) 'build for darwin/arm64' env CGO_ENABLED=0 GOOS=darwin GOARCH=arm64 go build $(TAGS) -o /dev/null ./cmd/coordd
	$(STEP) 'vet for darwin/arm64' env CGO_ENABLED=0 GOOS=darwin GOARCH=arm64 go vet $(TAGS) ./...

.PHONY: generate
generate: ## regenerate what comes of the protos: Go code, HTTP face, OpenAPI
	$(BUF) generate

.PHONY: generate-cli
generate-cli: ## write docs/cli.md anew from the commands
	go test $(TAGS) -count=1 -run '^TestCLIDocs$$' ./cmd/coordd -update

.PHONY: generate-check
generate-check:
	$(STEP) 'generated code' scripts/generated $(BUF)

.PHONY: model
model: ## check the models of the protocol; needs spin, takes hours
	cd docs/model && ./check-model.sh && ./check-delegation.sh && ./check-client.sh
