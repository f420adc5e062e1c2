# make help lists the targets. Nothing here installs anything but golangci-lint into bin/, by the Go toolchain.
SHELL       := bash
VERSION     := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LINT        := bin/golangci-lint
LINT_VERSION := v2.15.0
FUZZTIME    ?= 30s
export CGO_ENABLED := 1

.PHONY: help build demo test check lint fuzz sdk browser bench clean tools
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

tools: # what a user's machine must have
	@command -v go >/dev/null || { echo "Go 1.26 or later is missing: https://go.dev/doc/install" >&2; exit 1; }
	@command -v $${CC:-gcc} >/dev/null || { echo "a C compiler is missing (SQLite is C): install gcc, for example with apt-get install gcc libc6-dev" >&2; exit 1; }

build: tools ## bin/basegate
	go build -trimpath -ldflags '-X basegate/cli.version=$(VERSION)' -o bin/basegate .

demo: build ## build and run the demo: mock models, an account, a key
	bin/basegate demo

test: tools ## every test that needs no container, with the race detector
	go test -race ./...
	go test -run 'Alloc|TestMemoryDoesNotGrowWithTheBody' ./validate ./keys # the race detector would distort these
	go test -race -tags e2e ./e2e

check: lint test ## what a commit must pass

lint: tools $(LINT) ## gofmt, go vet, golangci-lint
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "gofmt these: $$unformatted" >&2; exit 1; }
	go vet ./... && go vet -tags e2e ./...
	$(LINT) run ./...

$(LINT):
	GOBIN=$(CURDIR)/bin go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)

fuzz: tools ## every fuzz target for FUZZTIME (30s)
	@set -e; grep -rl --include='*_test.go' '^func Fuzz' . | while read -r file; do \
		grep -oE '^func Fuzz[A-Za-z0-9]*' "$$file" | cut -d' ' -f2 | while read -r target; do \
			echo "== $$target"; go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$(dirname "$$file")" </dev/null; \
		done; done

sdk: build ## the official OpenAI SDKs (Python, Node) against the demo
	e2e/sdk/run

browser: build ## the console in Chromium, against the demo
	e2e/browser/run

bench: build ## figures beside httputil.ReverseProxy
	go run ./bench $(BENCH_FLAGS)

clean: ## remove what was built
	rm -rf bin
