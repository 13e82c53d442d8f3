# `make` lists the targets.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

include tests/cluster/cluster.mk

ARCH := $(shell uname -m)
TARGET := $(ARCH)-unknown-linux-gnu
BINARY := target/$(TARGET)/release/dra-operator
IMAGE ?= docker.io/local/dra-operator:dev
IMAGE_ARCHIVE := target/image/dra-operator.tar
CRD := crds/dradriverconfigs.dra-operator.dev.yaml
CHART := charts/dra-operator
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)

.PHONY: help build release image generate fmt lint demo demo-down bench mutants test test-long

help: ## list the targets
	@awk 'BEGIN {FS = ":[^#]*## "} /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##### Build

build: ## build for development
	cargo build

# Set for this build only. In .cargo/config.toml the flag would apply to every build, and each would need its own cache.
release: ## build the static binary
	RUSTFLAGS="-C target-feature=+crt-static" cargo build --locked --release --target $(TARGET) --bin dra-operator

image: release ## build the image as an archive, target/image/dra-operator.tar
	@scripts/image "$(IMAGE)" "$(BINARY)" "$(VERSION)" $(IMAGE_ARCHIVE)

generate: ## regenerate the CRD from the Rust types, and the chart's copies
	cargo run -q -- crd >$(CRD).new
	mv $(CRD).new $(CRD)
	mkdir -p $(CHART)/files/crds $(CHART)/files/rbac
	cp $(CRD) $(CHART)/files/crds/
	cp config/rbac/*role.yaml $(CHART)/files/rbac/

fmt: ## format the code
	cargo fmt
	gofmt -w tests

lint: test-format test-clippy test-scripts ## check formatting and lints without changing files

##### Try

demo: $(if $(KUBE_CONTEXT),release,cluster-check image) tools ## go from nothing to a pinned pod; KUBE_CONTEXT=name IMAGE=ref uses your own cluster
	@IMAGE="$(IMAGE)" BINARY="$(BINARY)" KUBE_CONTEXT="$(KUBE_CONTEXT)" THEIR_KUBECONFIG="$(KUBECONFIG)" demo/run

demo-down: ## remove everything that the demo created
	@demo/down

bench: cluster-check image tools ## compare with a driver in Go: target/bench/results.json
	@IMAGE="$(IMAGE)" IMAGE_ARCHIVE="$(IMAGE_ARCHIVE)" BINARY="$(BINARY)" tests/bench/run

# FILE may list several files or globs, separated by spaces. See tests/mutants/run for TESTS=, BASE= and AGAIN=1.
mutants: $(TOOLS)/cargo-mutants ## mutate the changed code and see whether a test fails; FILE=src/… for one file
	@tests/mutants/run $(or $(FILE),$(MUTANTS),diff)

$(TOOLS)/cargo-mutants:
	@scripts/install-cargo-mutants $@

##### Test

# A failure does not skip the others. Each can run by itself: make test-NAME.
CHECKS := format clippy scripts dependencies unit
# These share the tools and the cluster, so they run one after another. They mostly wait, which leaves a core to the checks.
WHOLE := release image manifests demo cluster
# These take hours.
LONG := mutants

test: ## run every test and print one summary
	@$(CLUSTER)/check || echo "The steps demo and cluster will fail here; the others do not need any of this."
	@tests/steps $(CHECKS) -- $(WHOLE)

test-long: ## run the tests that take hours: mutants of tests/mutants/held; continues after an interruption
	@tests/steps $(LONG)

.PHONY: $(addprefix test-,$(CHECKS) $(WHOLE) $(LONG))

test-format: ## - formatting
	cargo fmt --check
	@unformatted=$$(gofmt -l tests); [ -z "$$unformatted" ] || { echo "gofmt would change $$unformatted"; exit 1; }

test-clippy: ## - lints; warnings are errors
	cargo clippy --locked --all-targets -- -D warnings

test-scripts: ## - shell scripts
	@scripts/install-packages shellcheck
	shellcheck --severity=warning $(shell git ls-files -c -o --exclude-standard | xargs awk 'FNR == 1 && /^#!.*sh$$/ {print FILENAME} {nextfile}')

test-dependencies: ## - licences, sources and bans of dependencies
	@scripts/install-cargo-deny $(TOOLS)/cargo-deny
	@# It also checks dependencies of other platforms, which no build here fetches.
	cargo fetch --locked --quiet
	$(TOOLS)/cargo-deny --offline --locked check --hide-inclusion-graph bans licenses sources

test-unit: ## - unit, property and golden tests
	INSTA_UPDATE=no cargo test --locked --no-fail-fast

test-manifests: tools ## - chart, kustomize and samples
	$(TOOLS)/helm lint --strict --quiet $(CHART)
	cargo test --locked --test manifests

test-release: release ## - the binary is static and small
	@scripts/check-binary $(BINARY)

test-image: image ## - the image contains only the binary
	@scripts/check-image $(IMAGE_ARCHIVE) "$(IMAGE)"

test-demo: ## - the demo, from nothing and back
	@status=0; $(MAKE) --no-print-directory demo || status=$$?; $(MAKE) --no-print-directory demo-down; exit $$status

test-cluster: cluster-check image tools ## - on the real cluster
	@status=0; $(MAKE) --no-print-directory cluster-up && tests/cluster/load-image $(IMAGE_ARCHIVE) && \
	  KUBECONFIG=$(CURDIR)/target/cluster/kubeconfig cargo test --locked --test e2e -- --test-threads=1 $(TEST) || status=$$?; \
	  $(MAKE) --no-print-directory cluster-down; exit $$status

test-mutants: $(TOOLS)/cargo-mutants ## - mutants of the files in tests/mutants/held (hours)
	@tests/mutants/run held
