# shellcheck shell=bash
# Configures, starts and checks each component. To be sourced after processes.sh and certificates.sh. start_NAME starts a
# component unless it runs; ready_NAME succeeds once it serves.

components=(etcd kube-apiserver containerd kube-controller-manager kube-scheduler kubelet kube-proxy kwok)

# put FILE: writes its input, atomically and only if it differs: kube-proxy exits when its file is written, changed or not.
put() {
  cat >"$1.new"
  if cmp -s "$1.new" "$1"; then rm "$1.new"; else mv "$1.new" "$1"; fi
}

# wait_ready NAME…: waits until each serves; fails early for one that exits.
wait_ready() {
  local name deadline=$((SECONDS + 60))
  for name in "$@"; do
    until "ready_$name" >/dev/null 2>&1; do
      sleep 0.1
      if [ $SECONDS -ge $deadline ] || ! { pid "$name" || { sleep 1; pid "$name"; }; } >/dev/null; then
        echo "cluster: $name does not serve" >&2
        why "$name"
        return 1
      fi
    done
  done
}

healthz() { curl -fsS --noproxy '*' --max-time 2 -o /dev/null "$@"; }
healthz_as_admin() { healthz --cacert "$pki/ca.crt" --cert "$pki/admin.crt" --key "$pki/admin.key" "$@"; }
gates() { [ -z "$feature_gates" ] || echo "--feature-gates=$feature_gates"; }
# gates_yaml LINE…: the featureGates of a configuration file: the given ones and those in KUBE_FEATURE_GATES.
gates_yaml() { printf '  %s\n' "$@"; tr , '\n' <<<"$feature_gates" | sed -n 's/^\(.*\)=\(.*\)$/  \1: \2/p'; }

start_etcd() {
  start etcd "$tools/kube" etcd --data-dir "$cluster/etcd" --client-url $etcd_url
}
ready_etcd() { healthz $etcd_url/health; }

start_kube-apiserver() {
  put "$config/audit.yaml" <<'EOF'
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
EOF
  # shellcheck disable=SC2046
  start kube-apiserver "$tools/kube" kube-apiserver \
    --etcd-servers=$etcd_url --bind-address=$address --advertise-address=$address --secure-port=6443 \
    --service-cluster-ip-range=$service_cidr --allow-privileged --authorization-mode=Node,RBAC \
    --enable-admission-plugins=NodeRestriction --profiling=false \
    --client-ca-file="$pki/ca.crt" --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
    --kubelet-client-certificate="$pki/apiserver-kubelet-client.crt" \
    --kubelet-client-key="$pki/apiserver-kubelet-client.key" --kubelet-certificate-authority="$pki/ca.crt" \
    --kubelet-preferred-address-types=InternalIP \
    --requestheader-client-ca-file="$pki/ca.crt" --requestheader-allowed-names=front-proxy-client \
    --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
    --requestheader-extra-headers-prefix=X-Remote-Extra- \
    --proxy-client-cert-file="$pki/front-proxy-client.crt" --proxy-client-key-file="$pki/front-proxy-client.key" \
    --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$pki/service-accounts.key" \
    --service-account-signing-key-file="$pki/service-accounts.key" \
    --audit-policy-file="$config/audit.yaml" --audit-log-path="$logs/audit.log" \
    --audit-log-maxsize=100 --audit-log-maxbackup=2 $(gates)
}
ready_kube-apiserver() { healthz_as_admin $server/readyz; }

start_containerd() {
  mkdir -p $run/containerd $run/nri-plugins $run/nri-config $cdi_dir "$config/cni"
  put "$config/cni/10-bridge.conflist" <<EOF
{"cniVersion": "1.0.0", "name": "dra-local", "plugins": [
  {"type": "bridge", "bridge": "$bridge", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$run/cni", "routes": [{"dst": "0.0.0.0/0"}],
            "ranges": [[{"subnet": "$pod_cidr", "gateway": "$address"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}
]}
EOF
  put "$config/containerd.toml" <<EOF
version = 3
root = '$var/containerd'
state = '$run/containerd'
disabled_plugins = ['io.containerd.snapshotter.v1.blockfile', 'io.containerd.snapshotter.v1.erofs']

[grpc]
  address = '$containerd_socket'

[plugins.'io.containerd.internal.v1.opt']
  path = '$var/opt'

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = 'docker.io/local/pause:1'

[plugins.'io.containerd.cri.v1.runtime']
  enable_cdi = true
  cdi_spec_dirs = ['/etc/cdi', '$cdi_dir']
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ['$cni_bin']
  conf_dir = '$config/cni'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  SystemdCgroup = false
  Root = '$run/runc'

[plugins.'io.containerd.nri.v1.nri']
  disable = false
  socket_path = '$nri_socket'
  plugin_path = '$run/nri-plugins'
  plugin_config_path = '$run/nri-config'
EOF
  start containerd "$tools/containerd" --config "$config/containerd.toml" --log-level info
}
ready_containerd() {
  [ -S "$nri_socket" ] && ctr --timeout 2s images ls -q
}

start_kube-controller-manager() {
  make_kubeconfig controller-manager "$config/controller-manager.kubeconfig"
  # shellcheck disable=SC2046
  start kube-controller-manager "$tools/kube" kube-controller-manager \
    --kubeconfig="$config/controller-manager.kubeconfig" --bind-address=127.0.0.1 --leader-elect=false \
    --authentication-kubeconfig="$config/controller-manager.kubeconfig" \
    --authorization-kubeconfig="$config/controller-manager.kubeconfig" \
    --use-service-account-credentials --root-ca-file="$pki/ca.crt" \
    --service-account-private-key-file="$pki/service-accounts.key" \
    --flex-volume-plugin-dir=$var/volume-plugins --cluster-signing-cert-file="$pki/ca.crt" --cluster-signing-key-file="$pki/ca.key" --profiling=false $(gates)
}
ready_kube-controller-manager() { healthz -k https://127.0.0.1:10257/healthz; }

start_kube-scheduler() {
  make_kubeconfig scheduler "$config/scheduler.kubeconfig"
  # shellcheck disable=SC2046
  start kube-scheduler "$tools/kube" kube-scheduler \
    --kubeconfig="$config/scheduler.kubeconfig" --bind-address=127.0.0.1 --leader-elect=false \
    --authentication-kubeconfig="$config/scheduler.kubeconfig" \
    --authorization-kubeconfig="$config/scheduler.kubeconfig" --profiling=false $(gates)
}
ready_kube-scheduler() { healthz -k https://127.0.0.1:10259/healthz; }

start_kubelet() {
  make_kubeconfig kubelet "$config/kubelet.kubeconfig"
  mkdir -p $kubelet_root
  put "$config/kubelet.yaml" <<EOF
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $address
healthzBindAddress: 127.0.0.1
containerRuntimeEndpoint: unix://$containerd_socket
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $pki/ca.crt}
authorization: {mode: Webhook}
tlsCertFile: $pki/kubelet.crt
tlsPrivateKeyFile: $pki/kubelet.key
clusterDomain: cluster.local
clusterDNS: [10.202.0.10] # nothing listens there, but without it every pod gets a warning Event
cgroupDriver: cgroupfs
cgroupRoot: /$cgroup
failCgroupV1: false
failSwapOn: false
cpuManagerPolicy: none
crashLoopBackOff: {maxContainerRestartPeriod: 1s} # restart a killed container at once, every time
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
podLogsDir: $var/pod-logs
volumePluginDir: $var/volume-plugins
imageGCHighThresholdPercent: 100 # loaded images cannot be pulled again
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
featureGates:
$(gates_yaml 'KubeletInUserNamespace: true')
EOF
  start kubelet "$tools/kube" kubelet --config="$config/kubelet.yaml" --kubeconfig="$config/kubelet.kubeconfig" \
    --root-dir=$kubelet_root --cert-dir=$kubelet_root/pki --hostname-override=$node --node-ip=$address
}
ready_kubelet() { healthz http://127.0.0.1:10248/healthz && node_ready; }
node_ready() {
  [ "$(kubectl get node $node -o jsonpath='{.status.conditions[?(@.type=="Ready")].status}')" = True ]
}

start_kube-proxy() {
  make_kubeconfig kube-proxy "$config/kube-proxy.kubeconfig"
  put "$config/kube-proxy.yaml" <<EOF
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
bindAddress: $address
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
clientConnection: {kubeconfig: $config/kube-proxy.kubeconfig}
clusterCIDR: $pod_cidr
hostnameOverride: $node
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
iptables: {masqueradeAll: true, localhostNodePorts: false}
featureGates:
$(gates_yaml)
EOF
  start kube-proxy "$tools/kube" kube-proxy --config="$config/kube-proxy.yaml"
}
ready_kube-proxy() { healthz http://127.0.0.1:10256/healthz; }

# kwok keeps the nodes annotated kwok.x-k8s.io/node=fake alive, and pretends to run the pods bound to them.
start_kwok() {
  make_kubeconfig kwok "$config/kwok.kubeconfig"
  start kwok "$tools/kwok" --kubeconfig="$config/kwok.kubeconfig" --config="$checkout/target/tools/kwok-stages.yaml" \
    --manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake --node-ip=$address --cidr=10.203.0.0/16 \
    --node-lease-duration-seconds=40 --server-address=127.0.0.1:10247
}
ready_kwok() { healthz http://127.0.0.1:10247/healthz; }
