SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

GO ?= go
# What is tested: make test PKG=./dedup/... ARGS='-run Lock -v'
PKG ?= ./...
ARGS ?=
# One package's tests end with a trace of all goroutines when they take longer.
TEST_TIMEOUT ?= 7m

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## install RabbitMQ, MariaDB and Redis where they are missing (as root; starts no service)
	@scripts/install-servers.sh

.PHONY: build
build: ## bin/consumer
	$(GO) build -trimpath -o bin/consumer ./cmd/consumer

.PHONY: lint
lint: ## gofmt, go vet, staticcheck
	@unformatted=$$(gofmt -l .); if [[ -n $$unformatted ]]; then echo "not formatted by gofmt:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool -modfile=tools/go.mod staticcheck ./...

.PHONY: test
test: deps lint bin/with-servers ## lint, then all tests with the race detector on private servers
	bin/with-servers $(GO) test -race -timeout $(TEST_TIMEOUT) $(ARGS) $(PKG)
	cd deploy/composetest && $(GO) vet ./... && $(GO) test ./... # a module of its own: its libraries stay out of ours

.PHONY: test-big
test-big: deps bin/with-servers ## the end-to-end tests at full size: 20,000 messages one by one, 200,000 through five kill -9
	ROLLBACKD_TEST_BIG=1 bin/with-servers $(GO) test -race -v -count=1 -timeout 30m -run 'BatchSize|KilledFiveTimes' $(ARGS) ./internal/daemon

.PHONY: demo
demo: deps ## a shop's life in one minute, on private servers
	$(GO) run ./internal/demo

# Built and not run with go run, which does not pass signals on.
.PHONY: bin/with-servers
bin/with-servers:
	@$(GO) build -o $@ ./internal/stack/cmd/with-servers
