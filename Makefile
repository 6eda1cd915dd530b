# One way to run everything. `make help` lists the targets.
SHELL := /bin/bash
DATA_DIR ?= /var/lib/cove
LISTEN ?= 127.0.0.1:7070
COVE := target/release/cove

.PHONY: help build dist run stop test test-full soak fresh check bench clean setup

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | column -t -s $$'\t'

setup: ## install the system packages the server needs
	@scripts/setup run

build: ## build the one binary, target/release/cove
	@. scripts/toolchain && cargo build --release --locked -p cove

dist: ## build the packages that people install, into dist/
	@scripts/setup run
	@scripts/dist

run: ## install what is missing, build, start the server and run a first sandbox
	@scripts/first-run --data-dir $(DATA_DIR) --listen $(LISTEN)

stop: ## stop the server; sandboxes keep running (make stop ALL=1 deletes them too)
	@scripts/stop --data-dir $(DATA_DIR) $(if $(ALL),--all)

check: ## formatting, lints, dependency rules
	@scripts/check

test: ## install what the tests need and run all of them
	@scripts/setup test
	@scripts/test

test-full: ## what takes longer: faults and kills for some minutes (after make test)
	@scripts/setup test
	@scripts/test-full

soak: ## attacks, faults and kills for hours: make soak MINUTES=240
	@scripts/setup test
	@scripts/soak $(or $(MINUTES),120)

fresh: ## run the README's commands in a bare Debian 12 tree with empty caches
	@scripts/fresh

bench: ## measure, and compare with runc and Docker where they are installed
	@scripts/setup test
	@cargo run --release --locked -p cove-bench --

clean: ## remove what was built
	@cargo clean
