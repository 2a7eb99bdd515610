SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

GO ?= go
# One way to build, so that what one target has compiled serves the others: with -race it takes minutes. Lint vets.
export GOFLAGS := $(GOFLAGS) -trimpath -vet=off
# What is tested: make test PKG=./lock/... ARGS='-run Lock -v'
PKG ?= $(ORDER) $(shell $(GO) list ./... | grep -v /internal/test/repo)
# go test begins the packages in this order: the longest first, then one that keeps a processor busy beside one that waits, so
# that nothing is left for the end which waits alone.
ORDER = ./consumer ./internal/daemon ./internal/cli ./outbox/relay ./internal/operator ./dedup ./deadletter ./internal/rabbit \
	./consumer/consumertest ./internal/admin/pages ./internal/legacyimport ./internal/shovel ./internal/certs \
	./deploy/examples/library ./internal/mysqldb ./internal/handler/sql ./internal/test/stack ./internal/lockers
ARGS ?=
# Servers write into memory where there is room for them: they are killed, and nobody pulls the power plug.
MEMORY = $(shell [ "$$(df --output=avail /dev/shm | tail -1)" -gt 4000000 ] 2>/dev/null && echo /dev/shm || echo $${TMPDIR:-/tmp})
# One package's tests end with a trace of all goroutines when they take longer.
TEST_TIMEOUT ?= 12m
# Packages that run at once: with more than there are cores, tests wait for the processor until their patience ends.
AT_ONCE ?= $(shell nproc)

# All of them: what there is of these names says nothing of whether they are done.
.PHONY: help deps build lint size test test-modules test-languages test-big mutants test-faults test-clock \
	test-prometheus test-locks test-clusters test-upkeep test-zookeeper test-galera test-mysql-ha test-redis-ha \
	test-browser bench bench-prune chaos soak demo site cut test-upgrade notices release test-release pin \
	test-servers bin/chaos bin/with-servers

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Install RabbitMQ, MariaDB and Redis where they are missing (as root; starts no service).
deps:
	@scripts/install-servers.sh

build: ## bin/rollbackd, and bin/consumer, which is the same
	$(GO) build -o bin/ ./cmd/...

# Checkers live for a minute: a third of their processor time was the collector's.
lint: export GOGC := 400
lint: export GOMEMLIMIT := 3GiB
lint: ## gofmt, go vet, staticcheck, and the rules of this repository
	@unformatted=$$(gofmt -l .); if [[ -n $$unformatted ]]; then echo "not formatted by gofmt:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool -modfile=tools/go.mod staticcheck ./...
	$(GO) test ./internal/test/repo # which takes five times as long under -race

size: ## lines of code and words beside the ceilings and budgets of ARCHITECTURE.md; CHECK=1 fails above a ceiling
	@$(GO) run ./internal/cmd/size $(if $(CHECK),-check)

# What else there is to test: each of these is a target of its own below.
ifdef ONLY
test: $(if $(filter mutants,$(ONLY)),mutants,test-$(ONLY))
else
test: export TMPDIR := $(MEMORY)
# A program built with -race sleeps for a second before it exits, for reports of goroutines that still run: goleak holds
# that there are none.
test: export GORACE := atexit_sleep_ms=0
# A quarter of what compilers and linkers cost was the collector's.
test: export GOGC := 400
test: export GOMEMLIMIT := 3GiB
test: deps bin/with-servers ## all tests on private servers; ONLY=big|clock|languages|locks|modules|mutants|prometheus|upgrade another part
	bin/with-servers $(GO) test -race -ldflags=-w -p $(AT_ONCE) -timeout $(TEST_TIMEOUT) $(ARGS) $(PKG)
endif

# Modules of their own, so that their libraries stay out of ours.
# The tests that need libraries of others: container files, the chart, traces (a real collector), OpenAPI, the bench, and
# of the release what is quick: licenses, and installing it from a proxy.
test-modules: deps bin/with-servers
	for module in deploy/composetest internal/test/otlp internal/test/openapi tools/sqlite bench; do \
		(cd $$module && $(GO) vet ./... && $(GO) test ./...); done
	cd tools/release && $(GO) vet ./... && $(GO) test -count=1 -run 'Notices|NothingOfTheRepository' .

# The examples of the outbox and of handler http in Python, PHP, Java and Node.
test-languages: deps bin/with-servers
	scripts/install-servers.sh languages
	ROLLBACKD_TEST_LANGUAGES=1 bin/with-servers $(GO) test -count=1 ./deploy/examples ./deploy/examples/orders

# The end-to-end tests at full size: 20,000 messages one by one; 40,000 beside a daemon that vanishes inside a
# transaction; a foreign row lock beside each kind of handler; 12 letters by key among 200,000, and by other ways among
# a million; a classic log of a million rows.
test-big: deps bin/with-servers
	ROLLBACKD_TEST_BIG=1 bin/with-servers $(GO) test -race -v -count=1 -timeout 30m -run 'BatchSize|ADaemonThatVanishes|AForeignRowLockSlows' $(ARGS) ./internal/daemon
	ROLLBACKD_TEST_BIG=1 bin/with-servers $(GO) test -v -count=1 -timeout 10m -run 'AmongMany' $(ARGS) ./deadletter ./internal/admin/pages
	ROLLBACKD_TEST_BIG=1 bin/with-servers $(GO) test -v -count=1 -timeout 30m -run 'ManyRows' $(ARGS) ./internal/legacyimport
	ROLLBACKD_TEST_BIG=1 bin/with-servers $(GO) test -v -count=1 -timeout 30m -run 'APollIsCheap' $(ARGS) ./outbox/relay

# Take away one guard of the protocol at a time: the model test must notice.
mutants: deps
	@scripts/mutants.sh

# Bad messages and bad settings, end to end and one by one; docs/tried.md says which test holds what.
BAD_MESSAGES = BadMessages|DecodeReads|WhatNobodyCanRead|KeyComesFrom|TagIs|Forged|CopyKeeps|HugeProp|HeadersThatFill|FastPathMeeting|DifferInOneByte
BAD_MESSAGES := $(BAD_MESSAGES)|Unreadable|BlamesWhatCannot|EachWayOfAnOrder|FiveCopiesAtOnce
BAD_SETTINGS = WhatLoadSays|GivesNoValue|KeySourcesAre|CheckSchemaRefuses|SchemaThatWasNever|SaysWhichArgument
FUZZ = ./internal/wire:FuzzIdentify ./internal/wire:FuzzParseKeySources ./internal/wire:FuzzReadHeaders \
	./internal/strictjson:FuzzScanner ./internal/handler/stock:FuzzDecode ./internal/handler/sql:FuzzParse ./internal/config:FuzzPasswordIsNeverShown ./internal/rabbit:FuzzWalker ./internal/rabbit:FuzzShedder
FUZZ_TIME ?= 10s

test-faults: deps bin/with-servers bin/chaos ## bad inputs, one short round of every kind of fault, the fuzz targets; SEED=n for another round
	bin/with-servers $(GO) test -race -count=1 -timeout 5m -run '$(BAD_MESSAGES)|$(BAD_SETTINGS)' ./internal/config ./internal/wire ./internal/handler/stock ./internal/daemon ./internal/rabbit ./dedup ./stock ./consumer
	bin/chaos -round -seed $(or $(SEED),20261121)
	@GO="$(GO)" scripts/fuzz.sh $(FUZZ_TIME) $(FUZZ)

# MySQL's clock jumps and comes back, by Debian's libfaketime, which is installed where it is missing.
test-clock: deps bin/with-servers
	@scripts/install-servers.sh clock
	ROLLBACKD_TEST_CLOCK=1 bin/with-servers $(GO) test -race -count=1 -timeout 5m -run 'TestTheClockOfMySQL' $(ARGS) ./internal/daemon

# Each alert fires once, in Debian's Prometheus, which is installed where it is missing.
test-prometheus: deps bin/with-servers
	@scripts/install-servers.sh prometheus
	ROLLBACKD_TEST_PROMETHEUS=1 bin/with-servers $(GO) test -count=1 -timeout 4m -parallel 16 $(ARGS) ./internal/test/prometheus # they wait

# The acceptance tests beside the other locks: redlock, and a table in MySQL.
test-locks: deps bin/with-servers
	ROLLBACKD_TEST_LOCKS=1 bin/with-servers $(GO) test -race -timeout 6m \
		-run 'TestAccept.*/lock_(redlock|mysql)' $(ARGS) ./internal/daemon

ifdef KIND
test-clusters: test-$(KIND)
else
test-clusters: deps ## what needs several nodes of RabbitMQ; KIND=galera|mysql-ha|redis-ha|upkeep|zookeeper of other servers, or at work
	ROLLBACKD_TEST_CLUSTERS=1 $(GO) test -race -timeout 5m -run Cluster $(ARGS) \
		./internal/test/stack
endif

# Three nodes of RabbitMQ that operators work on under load: nodes restarted in turn and replaced, leaders moved,
# policies changed; SEED=n for another round.
test-upkeep: deps bin/chaos
	bin/chaos -round -phases upkeep -seed $(or $(SEED),20261123)

# The lock in ZooKeeper, on Debian's, which is installed where it is missing, and the acceptance tests beside it.
test-zookeeper: deps bin/with-servers
	@scripts/install-servers.sh zookeeper
	ROLLBACKD_TEST_ZOOKEEPER=1 bin/with-servers $(GO) test -race -count=1 -timeout 4m -run 'ZooKeeper|ASessionThat|ANodeThat|LocksOfAnAccount' $(ARGS) ./internal/lockers ./internal/cli
	ROLLBACKD_TEST_ZOOKEEPER=1 bin/with-servers $(GO) test -race -count=1 -timeout 6m -run 'TestAccept.*/lock_zookeeper' $(ARGS) ./internal/daemon

# A database cluster that fails over: MariaDB with Galera, three nodes behind HAProxy, Debian's, which are installed
# where they are missing; SEED=n for another round.
test-galera: deps bin/with-servers bin/chaos
	@scripts/install-servers.sh galera
	ROLLBACKD_TEST_GALERA=1 bin/with-servers $(GO) test -race -count=1 -timeout 8m -run 'Galera' $(ARGS) ./internal/test/stack ./internal/mysqldb ./consumer
	bin/chaos -round -phases galera -rate 100 -seed $(or $(SEED),20261123)

# MySQL that fails over: group and semi-synchronous replication behind HAProxy, and a failover that loses commits; the
# servers are Debian's unstable ones, as root; SEED=n for another round.
test-mysql-ha: TREE = $(TREES)-sid
test-mysql-ha: SEED ?= 20261123
test-mysql-ha: deps bin/chaos
	@scripts/install-servers.sh haproxy
	@scripts/server-tree.sh sid "$(TREE)"
	ROLLBACKD_TEST_TREE="$(TREE)" ROLLBACKD_TEST_MYSQL_HA=1 $(GO) test -race -count=1 -timeout 8m -run 'AGroupFailsOver|AReplicaTakes|GroupReplication' $(ARGS) ./internal/test/stack ./internal/mysqldb
	ROLLBACKD_TEST_TREE="$(TREE)" bin/chaos -round -phases group -rate 100 -seed $(SEED)
	ROLLBACKD_TEST_TREE="$(TREE)" bin/chaos -round -phases semisync -rate 100 -seed $(SEED)
	ROLLBACKD_TEST_TREE="$(TREE)" bin/chaos -phases losing -seed $(SEED)

# The lock on Redis that fails over, with sentinels and as a cluster: masters killed and frozen, and the acceptance
# tests beside it.
test-redis-ha: deps bin/with-servers
	ROLLBACKD_TEST_REDIS_HA=1 bin/with-servers $(GO) test -race -count=1 -timeout 8m -parallel 6 -run 'Sentinel|RedisCluster' $(ARGS) ./lock ./internal/cli # they wait
	ROLLBACKD_TEST_REDIS_HA=1 bin/with-servers $(GO) test -race -count=1 -timeout 8m -parallel 4 -run 'TestAccept.*/lock_(sentinels|cluster)' $(ARGS) ./internal/daemon

test-browser: deps bin/with-servers ## the pages in Debian's Chromium, which is installed where it is missing, and what axe-core finds in them
	@scripts/install-servers.sh browser
	axe=$$(scripts/npm-file.sh axe-core); here=$$PWD; cd internal/test/browser && $(GO) vet ./... && \
		ROLLBACKD_TEST_AXE=$$axe $$here/bin/with-servers $(GO) test -count=1 -timeout 9m -parallel 8 . $(ARGS)

# Built and not run with go run, which does not pass signals on. bench/README.md says what BENCH_… changes.
ifdef ONLY
bench: bench-$(ONLY)
else
bench: deps ## rollbackd beside its rivals, 40 minutes: bench/RESULTS.md; ONLY=profile|scaling|prune|year|fleet; bench/README.md has the rest
	@scripts/install-servers.sh zookeeper
	cd bench && $(GO) build -o bench . && ./bench $(ARGS)
endif

# Parts that stand alone: where CPU and the database's time go (profile: bench/out/*.prof); what a message costs each
# server at several speeds (scaling); the last day of a year of retention beside the first one (year); what daemons bring
# that have little of a core each, and a rolling upgrade of them (fleet, as root, with control groups of version 1).
bench-%: deps
	cd bench && $(GO) build -o bench . && ./bench $*

# What it costs a daemon under load when 1,000,000 old rows are deleted; on a quiet machine, five to ten minutes.
bench-prune: deps
	ROLLBACKD_TEST_BIG=1 $(GO) test -v -count=1 -timeout 30m -run PruningBesideMessages ./internal/daemon

DURATION ?= 5m
chaos: deps bin/chaos ## two daemons under random faults, with people at work in the last quarter: DURATION=5m, SEED=n repeats the schedule, CHAOS='-phases 3 -rate 500'
	bin/chaos -duration $(DURATION) -seed $(or $(SEED),0) $(CHAOS)

# Hours of the same with people at work and one fault a minute; what grows fails it: bin/soak.svg and bin/soak.md.
HOURS ?= 1
soak: deps bin/chaos
	bin/chaos -phases people -duration $(HOURS)h -soak bin/soak -seed $(or $(SEED),0) $(CHAOS)

demo: deps ## a shop's life in one minute, on private servers; HANDLER=sql with statements of its own; OUTBOX=on from the order's commit on; HOLD=1 stays up
	$(GO) run ./internal/cmd/demo $(if $(HOLD),-hold) $(if $(OUTBOX),-outbox) $(HANDLER)

SITE ?= $(CURDIR)/dist/site
site: ## the documents as pages with a search, by Debian's Hugo: dist/site/, to be served by any web server
	@scripts/install-servers.sh site
	scripts/site.sh $(SITE)
	ROLLBACKD_TEST_SITE=$(SITE) $(GO) test -count=1 ./docs/site

# VERSION=0.1.0: what CHANGELOG.md has under Unreleased becomes part of that version.
cut:
	@[[ "$(VERSION)" =~ ^[0-9]+\.[0-9]+\.[0-9]+$$ ]] || { echo "make cut VERSION=0.1.0"; exit 1; }
	sed -i -e '/^## \[$(VERSION)\]/,+1d' -e "s/^## \[Unreleased\]$$/&\n\n## [$(VERSION)] - $$(date -u +%F)/" CHANGELOG.md
	sed -i -E 's/^(version|appVersion): .*/\1: $(VERSION)/' deploy/helm/rollbackd/Chart.yaml
	$(GO) test -count=1 ./internal/test/repo -run GoAPI -released

# The version before the last migration and this one, side by side on one queue.
test-upgrade: deps bin/with-servers
	ROLLBACKD_TEST_UPGRADE=1 bin/with-servers $(GO) test -v -count=1 -timeout 10m -run 'TwoVersions' $(ARGS) ./internal/daemon

# THIRD_PARTY_NOTICES: the licenses of what the binary links.
notices:
	cd tools/release && $(GO) run . -notices

ifdef DO
release: $(if $(filter test,$(DO)),test-release,$(DO))
else
release: ## binaries, packages, image, parts: dist/; KEY=file signs; DO=test, DO=notices, DO=pin, DO=cut VERSION=0.1.0
	cd tools/release && $(GO) run . $(if $(KEY),-key $(abspath $(KEY))) $(RELEASE)
endif

# Builds twice and compares, then a package's life on this machine, as root: install, start, upgrade, remove, purge.
test-release: deps bin/with-servers
	cd tools/release && $(GO) vet ./... && ROLLBACKD_TEST_RELEASE=1 $(GO) test -count=1 -timeout 90m ./...
	bin/with-servers scripts/test-deb.sh

# Write the digests that the images of deploy/ have now into its files (asks the images' registries).
pin:
	cd deploy/composetest && $(GO) run ./pin ../Dockerfile ../compose.yaml

# Built and not run with go run, which does not pass signals on.
bin/chaos bin/with-servers:
	@$(GO) build -o $@ ./internal/cmd/$(@F)

# Here all tests run in one go, those that make test leaves to test-locks and test-clusters too.
test-servers: export ROLLBACKD_TEST_LOCKS = 1
test-servers: export ROLLBACKD_TEST_CLUSTERS = 1
# The other suites are whole system trees of other Debian releases; scripts/server-tree.sh says which servers they hold.
TREES ?= /var/tmp/rollbackd
test-servers: bin/with-servers ## all tests on the servers of a Debian release: SUITE=bookworm|trixie|sid; as root for the last two
ifeq ($(SUITE),bookworm)
	@scripts/install-servers.sh
	bin/with-servers $(GO) test -race -timeout $(TEST_TIMEOUT) $(ARGS) $(PKG)
else
	@scripts/server-tree.sh "$(SUITE)" "$(TREES)-$(SUITE)"
	ROLLBACKD_TEST_TREE="$(TREES)-$(SUITE)" bin/with-servers $(GO) test -race -timeout $(TEST_TIMEOUT) $(ARGS) $(PKG)
endif
