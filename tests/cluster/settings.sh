# shellcheck shell=bash
# Names, addresses and paths of the local cluster. To be sourced; has no other effect.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
checkout=$(cd "$here/../.." && pwd)
tools=$checkout/target/tools/bin
cluster=$checkout/target/cluster # in the checkout: credentials, configuration, etcd's data, logs
config=$cluster/config
logs=$cluster/logs
kubeconfig=$cluster/kubeconfig

# On the machine. Short, so that the path of a unix socket in it stays within 108 bytes.
var=/var/lib/dra-local
run=/run/dra-local
kubelet_root=$var/kubelet
containerd_socket=$run/containerd.sock
nri_socket=/var/run/nri/nri.sock
cdi_dir=/var/run/cdi
cni_bin=/usr/lib/cni

node=dra-node-1
bridge=dra-local0
# The node has the bridge's address, so that nothing depends on the machine's own network.
address=10.201.0.1
pod_cidr=10.201.0.0/24
service_cidr=10.202.0.0/16
service_address=10.202.0.1 # of the API server, in pods
server=https://$address:6443
etcd_url=http://127.0.0.1:2379

# The parent of all control groups: those of the components and of the pods.
cgroup=dra-local
cgroups=/sys/fs/cgroup

# Extra feature gates for every Kubernetes component, such as "A=true,B=false".
feature_gates=${KUBE_FEATURE_GATES:-}

say() { echo "cluster: $*"; }
fail() { echo "cluster: $*" >&2; exit 1; }

# One script at a time changes the cluster. The lock is on a directory that always exists, so no lock file is left
# behind; it ends with the process that holds it.
lock() {
  [ "$(id -u)" = 0 ] || fail "this needs root: it creates control groups, a bridge and mounts"
  exec 9</run
  flock -w 300 9 || fail "another script has been changing the cluster for 5 minutes: see ps -ef | grep $here"
}

owner() { cat $run/owner 2>/dev/null || true; }

ctr() { CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1 "$tools/ctr" -a $containerd_socket -n k8s.io "$@"; }
kubectl() { "$tools/kubectl" --kubeconfig "$kubeconfig" "$@"; }

# wait_for SECONDS WHAT COMMAND…: polls until the command succeeds.
wait_for() {
  local seconds=$1 what=$2 deadline=$((SECONDS + $1))
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $deadline ] || { echo "cluster: $what: not within $seconds s" >&2; return 1; }
    sleep 0.1
  done
}
