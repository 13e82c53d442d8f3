# `make` says what there is.
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

help: ## say what there is
	@awk 'BEGIN {FS = ":[^#]*## "} /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##### Build

build: ## build for development
	cargo build

# The flag is for this build alone: in .cargo/config.toml it would be for every build, each with a cache of its own.
release: ## build the static binary
	RUSTFLAGS="-C target-feature=+crt-static" cargo build --locked --release --target $(TARGET) --bin dra-operator

image: release ## build the image, as an archive: target/image/dra-operator.tar
	@scripts/image "$(IMAGE)" "$(BINARY)" "$(VERSION)" $(IMAGE_ARCHIVE)

generate: ## write again what is made from the Rust types: the CRD, and the chart's copies
	cargo run -q -- crd >$(CRD).new
	mv $(CRD).new $(CRD)
	mkdir -p $(CHART)/files/crds $(CHART)/files/rbac
	cp $(CRD) $(CHART)/files/crds/
	cp config/rbac/*role.yaml $(CHART)/files/rbac/

fmt: ## format
	cargo fmt
	gofmt -w tests

lint: test-format test-clippy test-scripts ## format and lints, without changing a file

##### Try

demo: $(if $(KUBE_CONTEXT),release,cluster-check image) tools ## from nothing to a pinned pod; KUBE_CONTEXT=name IMAGE=ref for a cluster of yours
	@IMAGE="$(IMAGE)" BINARY="$(BINARY)" KUBE_CONTEXT="$(KUBE_CONTEXT)" THEIR_KUBECONFIG="$(KUBECONFIG)" demo/run

demo-down: ## take back everything that the demo made
	@demo/down

bench: cluster-check image tools ## measure beside a driver over Kubernetes' own Go library: target/bench/results.json
	@IMAGE="$(IMAGE)" IMAGE_ARCHIVE="$(IMAGE_ARCHIVE)" BINARY="$(BINARY)" tests/bench/run

# A list of files where FILE has several, separated by blanks.
mutants: $(TOOLS)/cargo-mutants ## break the changed code in small ways and see whether a test notices; FILE=src/… for one file, MUTANTS=held for all of test-long
	@tests/mutants/run $(or $(FILE),$(MUTANTS),diff)

$(TOOLS)/cargo-mutants:
	@scripts/install-cargo-mutants $@

##### Test

# None is left out because another failed; each can be run by itself: make test-NAME.
CHECKS := format clippy scripts dependencies unit
# These share the tools and the cluster, one after the other. They mostly wait, and leave a core to the checks beside them.
WHOLE := release image manifests demo cluster
# These take hours.
LONG := mutants

test: ## every test, and one summary at the end
	@$(CLUSTER)/check || echo "The steps demo and cluster will fail on it; the others need none of this."
	@tests/steps $(CHECKS) -- $(WHOLE)

test-long: ## what takes hours: see whether the tests notice broken code, file by file; continues where it was interrupted
	@tests/steps $(LONG)

.PHONY: $(addprefix test-,$(CHECKS) $(WHOLE) $(LONG))

test-format: ## - formatting
	cargo fmt --check
	@unformatted=$$(gofmt -l tests); [ -z "$$unformatted" ] || { echo "gofmt would change $$unformatted"; exit 1; }

test-clippy: ## - lints; a warning is an error
	cargo clippy --locked --all-targets -- -D warnings

test-scripts: ## - shell scripts
	@scripts/install-packages shellcheck
	shellcheck --severity=warning $(shell git ls-files -c -o --exclude-standard | xargs awk 'FNR == 1 && /^#!.*sh$$/ {print FILENAME} {nextfile}')

test-dependencies: ## - licences, sources and bans of the dependencies
	@scripts/install-cargo-deny $(TOOLS)/cargo-deny
	@# It also looks into what is needed on other platforms alone, and no build here fetches that.
	cargo fetch --locked --quiet
	$(TOOLS)/cargo-deny --offline --locked check --hide-inclusion-graph bans licenses sources

test-unit: ## - unit, property and golden tests
	INSTA_UPDATE=no cargo test --locked --no-fail-fast

test-manifests: tools ## - chart, kustomize and samples
	$(TOOLS)/helm lint --strict --quiet $(CHART)
	cargo test --locked --test manifests

test-release: release ## - the binary is static and small
	@scripts/check-binary $(BINARY)

test-image: image ## - the image is the binary and nothing else
	@scripts/check-image $(IMAGE_ARCHIVE) "$(IMAGE)"

test-demo: ## - the demo, from nothing to nothing
	@status=0; $(MAKE) --no-print-directory demo || status=$$?; $(MAKE) --no-print-directory demo-down; exit $$status

test-cluster: cluster-check image tools ## - on the real cluster
	@status=0; $(MAKE) --no-print-directory cluster-up && tests/cluster/load-image $(IMAGE_ARCHIVE) && \
	  KUBECONFIG=$(CURDIR)/target/cluster/kubeconfig cargo test --locked --test e2e -- --test-threads=1 $(TEST) || status=$$?; \
	  $(MAKE) --no-print-directory cluster-down; exit $$status

test-mutants: $(TOOLS)/cargo-mutants ## - mutants of the files in tests/mutants/held: hours
	@tests/mutants/run held
