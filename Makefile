# Everything a newcomer types. Each target installs what it needs and can be run again at any time.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help run test test-arm check openapi authorization bench bench-engine bench-ledger bench-portal bench-billing bench-capacity clean screenshots torture nodes upstream-engines

CARGO ?= cargo
CHANCERY := $(CARGO) run --quiet --release --locked -p chancery --

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

run: ## Fetch the model, build, and start a demonstration server (ARGS="--data DIR" adds options)
	@scripts/require build
	$(CARGO) build --release --locked -p chancery
	$(CHANCERY) model pull smollm2-135m
	$(CHANCERY) serve --demo $(ARGS)

# Whole runs mostly begin with nothing built, where what the next build could reuse only costs time.
test: export CARGO_INCREMENTAL := 0
test: ## Run every check and every test, on both databases and the real model
	@scripts/require build lint test
	@scripts/lint
	scripts/with-services scripts/test

torture: ## Kill, cut off, race and starve a server for a while, and count what was lost (MINUTES=20 SEED=n CASES=nodes::)
	@scripts/require build test
	scripts/with-services scripts/torture "$(or $(MINUTES),20)" "$(SEED)" "$(CASES)"

nodes: ## Three nodes over one PostgreSQL and one Redis, with faults; prints what was counted
	@scripts/require build test
	@scripts/with-services scripts/nodes

test-arm: ## Test the kernels for 64-bit ARM in an emulator
	@scripts/require build arm
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='qemu-aarch64 -L /usr/aarch64-linux-gnu' \
	$(CARGO) test --locked --target aarch64-unknown-linux-gnu -p chancery-engine-cpu --lib kernels

check: ## The quick loop: format, lints, unit tests
	@scripts/require build lint
	@scripts/lint
	scripts/run-tests --workspace --lib --bins

openapi: ## Renew docs/openapi.json, the API described for programs, from the code
	@scripts/require build
	@document=$$($(CARGO) run --quiet --locked -p chancery-api --example openapi) && printf '%s\n' "$$document" > docs/openapi.json

authorization: ## Renew docs/authorization.md, who may do what, from the cases that the tests hold every route to
	@scripts/require build
	CHANCERY_RENEW_DOCS=1 $(CARGO) test --quiet --locked -p chancery-portal --lib the_document_of_who_may_do_what

screenshots: ## Renew the pictures of docs/sign-in.md and docs/portal.md, from a real browser and a real server
	@scripts/require build test
	CHANCERY_TEST_SCREENSHOTS=$(CURDIR)/docs scripts/with-services scripts/run-tests --workspace --test it tour::

bench: bench-engine bench-ledger bench-portal bench-billing ## Every side-by-side benchmark and every measurement

bench-engine: ## Us against llama-server and OpenVINO GenAI, into bench/RESULTS.md (ARGS="--clients 1,16 …" for a part)
	@scripts/require build peers
	$(CARGO) build --release --locked -p chancery -p chancery-bench --bin chancery --bin engine_peers
	@peers=$$(scripts/bench-peers) && model=$$($(CHANCERY) model pull smollm2-135m) && \
		target/release/engine_peers --peers-folder "$$peers" --model "$$model" $(ARGS)

bench-ledger: ## Requests settled per second on a fresh SQLite file
	@scripts/require build
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
		$(CARGO) run --quiet --release --locked -p chancery-bench --bin settle_rate -- "sqlite:$$folder/rate.db"

bench-portal: ## The portal's pages at 100 and at 100,000 clients (with CHANCERY_TEST_POSTGRES_URL set, on PostgreSQL too)
	@scripts/require build
	$(CARGO) build --release --locked -p chancery -p chancery-bench --bin chancery --bin client_pages
	@target/release/client_pages $(if $(CHANCERY_TEST_POSTGRES_URL),--postgres "$(CHANCERY_TEST_POSTGRES_URL)") $(ARGS)

bench-billing: ## The pages about usage and invoices at 10,000 and at 10 million ledger rows (with CHANCERY_TEST_POSTGRES_URL set, on PostgreSQL too)
	@scripts/require build
	$(CARGO) build --release --locked -p chancery -p chancery-bench --bin chancery --bin billing_pages
	@target/release/billing_pages $(if $(CHANCERY_TEST_POSTGRES_URL),--postgres "$(CHANCERY_TEST_POSTGRES_URL)") $(ARGS)

upstream-engines: ## Chancery in front of a real llama-server, every count held against it (ENGINES="llama vllm" for vLLM too)
	@scripts/require build peers
	$(CARGO) build --release --locked -p chancery
	scripts/upstream-engines $(ENGINES)

bench-capacity: ## What a cluster's parts cost: `scripts/with-services make bench-capacity` (ARGS="--part http …" for a part)
	@scripts/require build
	@: "$${CHANCERY_TEST_POSTGRES_URL:?run scripts/with-services make bench-capacity}" "$${CHANCERY_TEST_REDIS_URL:?}"
	$(CARGO) build --release --locked -p chancery -p chancery-bench --bin chancery --bin cluster_capacity
	@target/release/cluster_capacity --postgres "$(CHANCERY_TEST_POSTGRES_URL)" --redis "$(CHANCERY_TEST_REDIS_URL)" $(ARGS)

clean: ## Remove what was built
	$(CARGO) clean
