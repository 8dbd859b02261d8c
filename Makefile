# Everything is one of these targets; `make` alone lists them.

export FLEETWRIGHT_CACHE ?= $(HOME)/.cache/fleetwright
CARGO ?= cargo
MINOR ?= 1.37
# The crates without servers whose tests stand in a folder of their own.
PURE := cel merge host
# The crates whose tests run on both API servers. A test on the real one has a name that ends in `_on_real`.
BOTH := $(addprefix -p fleetwright-,api cli kit readiness rig)
# The crates with tests on real hosts. Such a test has a name that ends in `_on_hosts`.
ON_HOSTS := lab machines host cli

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: up
up: deps ## Build Fleetwright and start it; Ctrl-C stops it
	@echo "make up: building fleetwright (some minutes the first time, seconds after that; RELEASE=1 takes longer and runs faster)"
	@$(CARGO) build --locked --bin fleetwright $(if $(RELEASE),--release)
	@exec $${CARGO_TARGET_DIR:-target}/$(if $(RELEASE),release,debug)/fleetwright up

.PHONY: helper
helper: deps ## Build the static helper that runs on hosts
	@hack/helper.sh

.PHONY: test
test: test-unit test-scenario test-real e2e ## All tests: on the embedded API server, on real Kubernetes, on simulated and on real hosts

.PHONY: test-unit
test-unit: deps ## Decisions, parsers, stores: no servers
	$(CARGO) test --workspace --locked --lib --bins
	$(CARGO) test --locked $(addprefix -p fleetwright-,$(PURE)) --test '*' -- --skip _on_hosts

.PHONY: test-scenario
test-scenario: deps k8s ## On the embedded API server: its own tests, the conformance suite, operators, commands (kubectl is needed)
	$(CARGO) test --locked -p fleetwright-apiserver --test '*'
	$(CARGO) test --locked -p fleetwright-conformance --test conformance -- --embedded
	$(CARGO) test --locked $(BOTH) --test '*' -- --skip _on_real --skip _on_hosts
	$(CARGO) test --locked -p fleetwright-machines --test '*' -- --skip _on_real --skip _on_hosts
	@hack/deps.sh ssh
	$(CARGO) test --locked -p fleetwright-transport --test '*'

.PHONY: test-real
test-real: deps k8s ## On real etcd and kube-apiserver: lab, operators, commands, conformance and kubectl on both servers
	$(CARGO) test --locked -p fleetwright-lab -- --skip _on_hosts
	$(CARGO) test --locked -p fleetwright-conformance --test conformance
	$(CARGO) test --locked -p fleetwright-conformance --test facts --test protobuf
	$(CARGO) test --locked $(BOTH) --test '*' -- _on_real
	$(CARGO) test --locked -p fleetwright-machines --test '*' -- _on_real
	hack/shape.sh --check
	$(CARGO) test --locked -p fleetwright-conformance --test kubectl

.PHONY: e2e
e2e: deps k8s ## On real hosts: Debian machines booted here, real SSH, real kubelets (needs root, else it says that it did not run; under ten minutes)
	@hack/e2e.sh $(ON_HOSTS)

.PHONY: bench
bench: deps k8s ## Speed and memory: both API servers, readiness and hosts at ten thousand machines, hosts against Ansible; tables and JSON
	$(CARGO) run --release --locked -p fleetwright-conformance --bin bench
	$(CARGO) bench --locked -p fleetwright-readiness
	$(CARGO) bench --locked -p fleetwright-machines --bench machines
	@hack/deps.sh ssh ansible
	$(CARGO) bench --locked -p fleetwright-machines --bench ansible

.PHONY: lint
lint: ## Format and clippy, without changing anything
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

.PHONY: generate
generate: deps k8s ## Make the generated files again: facts of the built-in kinds, definitions, manifest, references, conformance table
	$(CARGO) run --locked -p fleetwright-conformance --bin facts
	$(CARGO) run --locked -p fleetwright-conformance --bin protobuf
	hack/shape.sh
	UPDATE=1 $(CARGO) test --locked -p fleetwright-api --test generated
	$(CARGO) run --locked --bin fleetwright -- install --print > deploy/install.yaml
	$(CARGO) run --locked --bin fleetwright -- reference > docs/reference/cli.md
	CONFORMANCE_REPORT=$(CURDIR)/docs/conformance.md $(CARGO) test --locked -p fleetwright-conformance --test conformance

.PHONY: deny
deny: ## Check licences, bans and sources of all dependencies
	@command -v cargo-deny >/dev/null || { echo "make deny: installing cargo-deny (some minutes, once)"; $(CARGO) install --locked cargo-deny@0.20.2; }
	cargo-deny --all-features check bans licenses sources

.PHONY: k8s
k8s: ## Build real Kubernetes and etcd into the cache (MINOR=1.36 for the other minor)
	@k8s/build.sh $(MINOR)

.PHONY: deps
deps:
	@hack/deps.sh

.PHONY: clean
clean: ## Remove what was built here; the cache of Kubernetes binaries stays
	$(CARGO) clean
