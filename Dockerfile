# The image contains only the static binary: no shell, no packages, nothing to pull. `make image` builds it.
FROM scratch
ARG BINARY=target/x86_64-unknown-linux-gnu/release/dra-operator
ARG VERSION=dev
LABEL org.opencontainers.image.title="dra-operator" \
      org.opencontainers.image.description="The Kubernetes operator for Dynamic Resource Allocation" \
      org.opencontainers.image.source="https://github.com/dra-operator/dra-operator" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY ${BINARY} /dra-operator
# The controller needs no privileges. The node plugin's DaemonSet sets root without capabilities itself, because the kubelet's
# directories belong to root.
USER 65532:65532
ENTRYPOINT ["/dra-operator"]
