# shellcheck shell=bash
# The cluster's own certificate authority, certificates and kubeconfig files. To be sourced.

pki=$cluster/pki

# certificate NAME SUBJECT [ALTERNATIVE-NAMES]: signed by the authority, for client and server use.
certificate() {
  local dir=$1 name=$2 subject=$3 names=${4:-}
  openssl ecparam -name prime256v1 -genkey -noout -out "$dir/$name.key"
  openssl req -new -key "$dir/$name.key" -subj "$subject" -out "$dir/$name.csr"
  {
    echo "keyUsage=digitalSignature"
    echo "extendedKeyUsage=clientAuth,serverAuth"
    [ -z "$names" ] || echo "subjectAltName=$names"
  } >"$dir/$name.ext"
  openssl x509 -req -in "$dir/$name.csr" -CA "$dir/ca.crt" -CAkey "$dir/ca.key" -CAcreateserial \
    -days 3650 -extfile "$dir/$name.ext" -out "$dir/$name.crt" 2>/dev/null
}

# make_certificates: once; renamed into place when complete.
make_certificates() {
  [ ! -d "$pki" ] || return 0
  local dir=$pki.new
  rm -rf "$dir"
  (umask 077 && mkdir -p "$dir")
  openssl ecparam -name prime256v1 -genkey -noout -out "$dir/ca.key"
  openssl req -x509 -new -key "$dir/ca.key" -subj /CN=dra-local-ca -days 3650 -out "$dir/ca.crt" 2>/dev/null
  openssl genrsa -out "$dir/service-accounts.key" 2048 2>/dev/null
  certificate "$dir" apiserver /CN=kube-apiserver \
    "IP:$address,IP:$service_address,IP:127.0.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
  certificate "$dir" apiserver-kubelet-client /O=system:masters/CN=apiserver-kubelet-client
  certificate "$dir" front-proxy-client /CN=front-proxy-client
  certificate "$dir" kubelet "/O=system:nodes/CN=system:node:$node" "IP:$address,DNS:$node"
  certificate "$dir" admin /O=system:masters/CN=admin
  certificate "$dir" kwok /O=system:masters/CN=kwok
  certificate "$dir" controller-manager /CN=system:kube-controller-manager
  certificate "$dir" scheduler /CN=system:kube-scheduler
  certificate "$dir" kube-proxy /CN=system:kube-proxy
  mv "$dir" "$pki"
}

# make_kubeconfig NAME FILE: with everything inline, so that the file works anywhere.
make_kubeconfig() {
  local name=$1 file=$2
  (
    umask 077
    cat >"$file.new" <<EOF
apiVersion: v1
kind: Config
clusters:
- name: dra-local
  cluster:
    server: $server
    certificate-authority-data: $(base64 -w0 "$pki/ca.crt")
users:
- name: $name
  user:
    client-certificate-data: $(base64 -w0 "$pki/$name.crt")
    client-key-data: $(base64 -w0 "$pki/$name.key")
contexts:
- name: dra-local
  context: {cluster: dra-local, user: $name}
current-context: dra-local
EOF
    mv "$file.new" "$file"
  )
}
