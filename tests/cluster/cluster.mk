# The local cluster and the tools of the tests. Included by the Makefile at the top.
.PHONY: cluster-check cluster-up cluster-down cluster-smoke tools

TOOLS := target/tools/bin
CLUSTER := tests/cluster
MODULE := $(CLUSTER)/go.mod $(CLUSTER)/go.sum
RUNTIME := $(CLUSTER)/containerd/go.mod $(CLUSTER)/containerd/go.sum
OUT := $(CURDIR)/$(TOOLS)

KUBERNETES := $(shell sed -n 's/^\tk8s.io\/kubernetes v//p' $(CLUSTER)/go.mod)
HELM := $(shell sed -n 's/^\thelm.sh\/helm\/v3 \(v[^ ]*\).*/\1/p' $(CLUSTER)/go.mod)
STAMPED := k8s.io/component-base/version
STAMP := -X $(STAMPED).gitVersion=v$(KUBERNETES) -X $(STAMPED).gitMajor=$(word 1,$(subst ., ,$(KUBERNETES))) \
  -X $(STAMPED).gitMinor=$(word 2,$(subst ., ,$(KUBERNETES)))

CLUSTER_TOOLS := $(addprefix $(TOOLS)/,kube kubectl containerd containerd-shim-runc-v2 ctr kwok image) \
  target/tools/kwok-stages.yaml target/tools/pause.tar target/tools/busybox.tar

# Comes first among the prerequisites, so that it fails before a quarter of an hour of building.
cluster-check:
	@$(CLUSTER)/check

cluster-up: cluster-check $(CLUSTER_TOOLS) ## start the local cluster, or restart what has stopped
	@$(CLUSTER)/up

cluster-down: ## stop the local cluster and remove everything it created
	@$(CLUSTER)/down

cluster-smoke: cluster-up ## try the local cluster with pods
	@$(CLUSTER)/smoke

tools: $(CLUSTER_TOOLS) $(addprefix $(TOOLS)/,helm kustomize kubeconform) ## build all tools that the tests use

# One after another: each uses all the cores it can get.
$(TOOLS)/kube: $(MODULE) $(wildcard $(CLUSTER)/kube/*.go)
	@$(CLUSTER)/build "Kubernetes $(KUBERNETES) (about 7 minutes on 2 cores the first time)" $(CLUSTER) \
	  -ldflags '-s -w $(STAMP)' -o $(OUT)/kube ./kube

$(TOOLS)/kubectl: $(TOOLS)/kube
	@ln -sf kube $@

$(TOOLS)/containerd $(TOOLS)/containerd-shim-runc-v2 $(TOOLS)/ctr &: $(RUNTIME)
	@mkdir -p $(TOOLS)
	@$(CLUSTER)/build "containerd, its shim and ctr (about a minute the first time)" $(CLUSTER)/containerd \
	  -tags 'no_btrfs no_zfs no_devmapper' -ldflags '-s -w' -o $(OUT)/ \
	  $(addprefix github.com/containerd/containerd/v2/cmd/,containerd containerd-shim-runc-v2 ctr)

$(TOOLS)/kwok: $(MODULE) | $(TOOLS)/kube
	@$(CLUSTER)/build "kwok" $(CLUSTER) -ldflags '-s -w' -o $(OUT)/kwok sigs.k8s.io/kwok/cmd/kwok

$(TOOLS)/helm: $(MODULE) | $(TOOLS)/kube
	@$(CLUSTER)/build "helm $(HELM)" $(CLUSTER) -ldflags '-s -w -X helm.sh/helm/v3/internal/version.version=$(HELM)' \
	  -o $(OUT)/helm helm.sh/helm/v3/cmd/helm

$(TOOLS)/kustomize: $(MODULE) | $(TOOLS)/kube
	@$(CLUSTER)/build "kustomize" $(CLUSTER) -ldflags '-s -w' -o $(OUT)/kustomize sigs.k8s.io/kustomize/kustomize/v5

$(TOOLS)/kubeconform: $(MODULE) | $(TOOLS)/kube
	@$(CLUSTER)/build "kubeconform" $(CLUSTER) -ldflags '-s -w' -o $(OUT)/kubeconform github.com/yannh/kubeconform/cmd/kubeconform

$(TOOLS)/image $(TOOLS)/pause &: $(wildcard $(CLUSTER)/image/*.go $(CLUSTER)/pause/*.go)
	@mkdir -p $(TOOLS)
	@$(CLUSTER)/build "the image maker" $(CLUSTER) -ldflags '-s -w' -o $(OUT)/ ./image ./pause

# The stages from the kwok release: nodes become Ready and pods Running at once.
target/tools/kwok-stages.yaml: $(MODULE)
	@mkdir -p $(@D)
	@stages=$$(cd $(CLUSTER) && go list -m -f '{{.Dir}}' sigs.k8s.io/kwok)/kustomize/stage; \
	  for file in node/fast/node-initialize node/heartbeat-with-lease/node-heartbeat-with-lease \
	    pod/fast/pod-ready pod/fast/pod-complete pod/fast/pod-delete; do \
	    echo ---; cat $$stages/$$file.yaml || exit 1; done >$@.new
	@mv $@.new $@

target/tools/pause.tar: $(TOOLS)/image $(TOOLS)/pause
	@$(TOOLS)/image -name docker.io/local/pause:1 -o $@ $(TOOLS)/pause

target/tools/busybox.tar: $(TOOLS)/image $(CLUSTER)/busybox
	@$(CLUSTER)/busybox $@
