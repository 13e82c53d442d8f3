// The container runtime's side of NRI, as containerd has it: the versions are those of tests/cluster/containerd, so that
// one build cache serves both.
module dra-operator.test/nri

go 1.26.0

require (
	github.com/containerd/nri v0.12.3
	github.com/containerd/ttrpc v1.2.9
	github.com/sirupsen/logrus v1.10.2
	google.golang.org/protobuf v1.36.12
)

require (
	github.com/containerd/log v0.1.0 // indirect
	github.com/knqyf263/go-plugin v0.9.0 // indirect
	github.com/opencontainers/runtime-spec v1.3.0 // indirect
	github.com/tetratelabs/wazero v1.11.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/mod v0.41.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260825221802-da73d73af1c5 // indirect
	google.golang.org/grpc v1.83.2 // indirect
)
