# Everything is one of these targets; `make` alone lists them.

export FLEETWRIGHT_CACHE ?= $(HOME)/.cache/fleetwright
CARGO ?= cargo
MINOR ?= 1.37
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

.PHONY: image
image: deps ## Build what deploy/Dockerfile puts into the image of the operators, into target/image
	@hack/image.sh

.PHONY: test
test: deps k8s ## All tests: on the embedded API server, on real Kubernetes, on simulated and on real hosts (needs root, else it says what did not run)
	hack/shape.sh --check
	@hack/tests.sh unit scenario real hosts

.PHONY: test-unit
test-unit: deps ## Decisions, parsers, stores: no servers
	@hack/tests.sh unit

.PHONY: test-scenario
test-scenario: deps k8s ## On the embedded API server: its own tests, the conformance suite, operators, commands (kubectl is needed)
	@hack/tests.sh scenario

.PHONY: test-real
test-real: deps k8s ## On real etcd and kube-apiserver: lab, operators, commands, conformance and kubectl on both servers
	hack/shape.sh --check
	@hack/tests.sh real

.PHONY: e2e
e2e: deps k8s ## On real hosts: Debian machines booted here, real SSH, real kubelets (needs root, else it says that it did not run; under ten minutes)
	@hack/tests.sh hosts

.PHONY: flakes
flakes: deps k8s ## Run all tests N=5 times beside a load, and say which failed how often (LEVELS='unit scenario' for some)
	@hack/flakes.sh $(or $(N),5) $(LEVELS)

.PHONY: conformance
conformance: deps k8s ## All of Kubernetes' own conformance specs that are listed in k8s/e2e/specs.txt, on a cluster with two workers, or with SPECS='Proxy|StatefulSet' those with such words in their names (needs root; about ten minutes)
	@FLEETWRIGHT_CONFORMANCE='$(or $(SPECS),all)' FLEETWRIGHT_REQUIRE_HOSTS=1 hack/tests.sh hosts -- clusters.e2e.hosts.workers::

.PHONY: bench
bench: deps k8s ## Speed and memory: both API servers, readiness and hosts at ten thousand machines, hosts against Ansible, 3,000 clusters, control planes against processes; tables and JSON
	$(CARGO) run --release --locked -p fleetwright-conformance --bin bench
	$(CARGO) bench --locked -p fleetwright-readiness
	$(CARGO) bench --locked -p fleetwright-machines --bench machines
	$(CARGO) bench --locked -p fleetwright-clusters --bench clusters
	@hack/deps.sh ssh ansible
	$(CARGO) bench --locked -p fleetwright-machines --bench ansible
	@[ "$$(id -u)" = 0 ] || { echo "bench: control planes on a real meta cluster: NOT RUN: hosts need root, and this is user $$(id -un)"; exit 0; }; \
	hack/deps.sh hosts && k8s/build.sh 1.36 >/dev/null && \
	$(CARGO) bench --locked -p fleetwright-clusters --bench real

.PHONY: lint
lint: lint-text ## Format, clippy, and words that docs avoid, without changing anything
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

.PHONY: lint-text
lint-text:
	@hack/words.sh
	$(CARGO) fmt --all --check

.PHONY: generate
generate: deps k8s ## Make the generated files again: facts of the built-in kinds, definitions, manifest, references, conformance table
	$(CARGO) run --locked -p fleetwright-conformance --bin facts
	$(CARGO) run --locked -p fleetwright-conformance --bin protobuf
	hack/shape.sh
	UPDATE=1 $(CARGO) test --locked -p fleetwright-api --test generated arguments
	UPDATE=1 $(CARGO) test --locked -p fleetwright-api --test generated
	$(CARGO) run --locked --bin fleetwright -- install --print > deploy/install.yaml
	$(CARGO) run --locked --bin fleetwright -- reference > docs/reference/cli.md
	hack/rights.sh
	CONFORMANCE_REPORT=$(CURDIR)/docs/conformance.md $(CARGO) test --locked -p fleetwright-conformance --test conformance

.PHONY: deny
deny: ## Check licences, bans, sources and security advisories of all dependencies; the last line says what could not be checked
	@hack/deny.sh

.PHONY: k8s
k8s: ## Build real Kubernetes and etcd into the cache (MINOR=1.36 for the other minor)
	@k8s/build.sh $(MINOR)

.PHONY: deps
deps:
	@hack/deps.sh

.PHONY: clean
clean: ## Remove what was built here; the cache of Kubernetes binaries stays
	$(CARGO) clean
