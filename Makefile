# The commands for developers. Each target installs what it needs and can be run again at any time.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help run release test lint sizes test-arm check check-perf flamegraph docs openapi authorization bench bench-engine bench-engine-all bench-gateway bench-gpu bench-ledger bench-delay bench-portal bench-billing bench-capacity bench-drafting bench-accuracy test-models clean screenshots torture nodes soak upstream-engines

CARGO ?= cargo
CHANCERY := $(CARGO) run --quiet --release --locked -p chancery --
MODEL ?= smollm2-135m
# Models of the drafting evaluation and of the tests on larger models.
LARGE_MODELS := qwen2.5-coder-0.5b qwen2.5-coder-1.5b
# OpenVINO GenAI cannot read the larger models' files, and on few cores 32 clients take hours.
LARGE_MODEL_BENCH ?= --peers llama --clients 1,8 --scenario shared-short,unshared-short --write
DRAFTING_MODELS ?= smollm2-135m $(LARGE_MODELS)

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

run: ## Download the model, build quickly, and start a demo server (ARGS="--data DIR" adds options)
	@scripts/require build
	$(CARGO) build --profile fast --locked -p chancery
	@$(CARGO) run --quiet --profile fast --locked -p chancery -- model pull smollm2-135m
	@$(CARGO) run --quiet --profile fast --locked -p chancery -- serve --demo $(ARGS)

release: ## Build what is shipped: target/release/chancery, fully optimized
	@scripts/require build
	$(CARGO) build --release --locked -p chancery

# Full runs mostly start from a clean build, where incremental data only costs time.
test lint: export CARGO_INCREMENTAL := 0
test: ## Run all tests, on both databases and with the real model
	@scripts/require build test
	scripts/with-services scripts/test

lint: ## Check format, structure, sizes, words, lints, documentation, licences and deploy/
	@scripts/require build lint
	@scripts/lint

sizes: ## Print the figures that must not grow: production lines and files, packages, words
	@scripts/check-structure --sizes

torture: ## Run the fault tests and fuzz targets for a while and report losses (MINUTES=20 SEED=n CASES=nodes::)
	@scripts/require build test
	scripts/with-services scripts/torture "$(or $(MINUTES),20)" "$(SEED)" "$(CASES)"

nodes: ## Run the fault tests with three nodes on one PostgreSQL and one Redis; prints counts
	@scripts/require build test
	@scripts/with-services scripts/nodes

soak: ## Run a mixed load for an hour, compare what the server holds with ten minutes, and verify (MINUTES=60)
	@scripts/require build test
	CHANCERY_SOAK_MINUTES=$(or $(MINUTES),60) scripts/with-services \
		$(CARGO) test --locked --workspace --test it soak:: -- --nocapture

test-arm: ## Test the 64-bit ARM kernels in an emulator
	@scripts/require build arm
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='qemu-aarch64 -L /usr/aarch64-linux-gnu' \
	$(CARGO) test --locked --target aarch64-unknown-linux-gnu -p chancery-engine-cpu --lib kernels

test-models: ## Fetch the larger models (1.6 GB) and test the engine on them
	@scripts/require build lint
	$(CARGO) build --release --locked -p chancery
	@for model in $(LARGE_MODELS); do $(CHANCERY) model pull "$$model" >/dev/null; done
	$(CARGO) clippy --quiet --locked -p chancery-engine-cpu --features large-model-tests --test large_models -- -D warnings
	$(CARGO) test --locked -p chancery-engine-cpu --features large-model-tests --test large_models -- --test-threads 1 --nocapture

check: ## Run the quick checks: format, lints, unit tests
	@scripts/require build lint
	@scripts/lint
	scripts/run-tests --workspace --lib --bins

check-perf: ## Count the instructions of the hot paths; fails above 5 % more than stored (ARGS=--renew stores; ARGS="--explain generate")
	@scripts/require build counts
	$(CARGO) build --release --locked -p chancery-bench --bin hot_paths
	@scripts/check-perf $(ARGS)

docs: ## Build the documentation into target/book (installs mdBook once)
	@scripts/require build
	@mdbook=$$(scripts/mdbook) && "$$mdbook" build docs

openapi: ## Regenerate docs/openapi.json from the code
	@scripts/require build
	@document=$$($(CARGO) run --quiet --locked -p chancery-api --example openapi) && printf '%s\n' "$$document" > docs/openapi.json

authorization: ## Regenerate docs/authorization.md from the authorization test cases of every route
	@scripts/require build
	CHANCERY_RENEW_DOCS=1 $(CARGO) test --quiet --locked -p chancery-portal --lib authorization_doc_matches_the_cases

screenshots: ## Regenerate the screenshots in docs/sign-in.md and docs/portal.md, with a real browser and server
	@scripts/require build test
	CHANCERY_TEST_SCREENSHOTS=$(CURDIR)/docs scripts/with-services scripts/run-tests --workspace --test it tour::

bench: bench-engine bench-gateway bench-ledger bench-delay bench-portal bench-billing ## Run all benchmarks of speed that need no other server

bench-engine: ## Compare with llama-server and OpenVINO GenAI; writes bench/RESULTS.md (ARGS="--clients 1,16 …" runs a part; MODEL=NAME)
	@scripts/require build peers
	$(CARGO) build --release --locked -p chancery -p chancery-bench --bin chancery --bin engine_peers
	@peers=$$(scripts/bench-peers) && model=$$($(CHANCERY) model pull "$(MODEL)") && \
		target/release/engine_peers --peers-folder "$$peers" --model "$$model" $(ARGS)

bench-engine-all: ## Run bench-engine for every model of the catalogue, with AVX2 as well; writes bench/RESULTS.md
	$(MAKE) bench-engine MODEL=smollm2-135m ARGS=
	@for model in $(LARGE_MODELS); do $(MAKE) bench-engine MODEL="$$model" ARGS="$(LARGE_MODEL_BENCH)"; done

bench-gateway: ## Compare with smg, LiteLLM, Portkey and nginx; writes bench/RESULTS.md (scripts/with-services adds PostgreSQL and Redis)
	@scripts/require build gateways
	$(CARGO) build --release --locked -p chancery -p chancery-bench --bin chancery --bin gateway_peers
	@peers=$$(scripts/bench-gateway-peers) && target/release/gateway_peers --peers-folder "$$peers" \
		$(if $(CHANCERY_TEST_REDIS_URL),--postgres "$(CHANCERY_TEST_POSTGRES_URL)" --redis "$(CHANCERY_TEST_REDIS_URL)") $(ARGS)

bench-gpu: ## Measure Chancery in front of a running server, such as llama-server on a GPU (ARGS="--upstream http://HOST:PORT --model NAME")
	@scripts/require build
	$(CARGO) build --release --locked -p chancery -p chancery-bench --bin chancery --bin gpu_front
	@target/release/gpu_front $(ARGS)

flamegraph: ## Record flame graphs of gateway, prefill and decode into bench/results (MODEL=NAME; ARGS="--label before")
	@scripts/require build profile
	$(CARGO) build --release --locked -p chancery -p chancery-bench --bin chancery --bin gateway_peers --bin engine_steps
	@model=$$($(CHANCERY) model pull "$(MODEL)") && scripts/flamegraph --model "$$model" $(ARGS)

bench-accuracy: ## Hold the engine's predictions against llama.cpp's and against f32 arithmetic (MODEL=qwen2.5-coder-0.5b; ARGS=--without-f32)
	@scripts/require build peers
	$(CARGO) build --release --locked -p chancery -p chancery-bench --bin chancery --bin engine_accuracy
	@peers=$$(scripts/bench-peers) && model=$$($(CHANCERY) model pull "$(MODEL)") && \
		target/release/engine_accuracy --peers-folder "$$peers" --model "$$model" --name "$(MODEL)" $(ARGS)

bench-drafting: ## Draft and score letters from 30 meeting notes; writes bench/RESULTS.md (DRAFTING_MODELS="NAME PATH"; ARGS="--concurrency 4")
	@scripts/require build
	$(CARGO) build --release --locked -p chancery
	python3 bench/drafting/evaluate.py --label after --write $(ARGS) $(DRAFTING_MODELS)

bench-ledger: ## Measure requests settled per second on a new SQLite file
	@scripts/require build
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
		$(CARGO) run --quiet --release --locked -p chancery-bench --bin settle_rate -- "sqlite:$$folder/rate.db"

bench-delay: ## Measure how long settling waits for consultants' requests on a new SQLite file (ARGS=400 for 400 MB of records)
	@scripts/require build
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
		$(CARGO) run --quiet --release --locked -p chancery-bench --bin settle_delay -- "sqlite:$$folder/delay.db" $(ARGS)

bench-portal: ## Measure portal pages at 100 and 100,000 clients (set CHANCERY_TEST_POSTGRES_URL to add PostgreSQL)
	@scripts/require build
	$(CARGO) build --release --locked -p chancery -p chancery-bench --bin chancery --bin client_pages
	@target/release/client_pages $(if $(CHANCERY_TEST_POSTGRES_URL),--postgres "$(CHANCERY_TEST_POSTGRES_URL)") $(ARGS)

bench-billing: ## Measure usage and invoice pages at 10,000 and 10 million ledger rows (set CHANCERY_TEST_POSTGRES_URL to add PostgreSQL)
	@scripts/require build
	$(CARGO) build --release --locked -p chancery -p chancery-bench --bin chancery --bin billing_pages
	@target/release/billing_pages $(if $(CHANCERY_TEST_POSTGRES_URL),--postgres "$(CHANCERY_TEST_POSTGRES_URL)") $(ARGS)

upstream-engines: ## Run Chancery in front of a real llama-server and compare every count (ENGINES="llama vllm" adds vLLM)
	@scripts/require build peers
	$(CARGO) build --release --locked -p chancery
	scripts/upstream-engines $(ENGINES)

bench-capacity: ## Measure the cost of each part of a cluster: `scripts/with-services make bench-capacity` (ARGS="--part http …" runs a part)
	@scripts/require build
	@: "$${CHANCERY_TEST_POSTGRES_URL:?run scripts/with-services make bench-capacity}" "$${CHANCERY_TEST_REDIS_URL:?}"
	$(CARGO) build --release --locked -p chancery -p chancery-bench --bin chancery --bin cluster_capacity
	@target/release/cluster_capacity --postgres "$(CHANCERY_TEST_POSTGRES_URL)" --redis "$(CHANCERY_TEST_REDIS_URL)" $(ARGS)

clean: ## Remove build output
	$(CARGO) clean
