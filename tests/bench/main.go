// Bench measures dra-operator on the local cluster: its node plugin side by side with a driver built on
// Kubernetes' own Go library (tests/reference) that publishes the same devices, then its controller as
// the chart runs it. It prints a table and writes the same as JSON.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// bench is the context of every measurement.
type bench struct {
	binary, reference, hostRoot string
	out                         string // where logs and results go
	kubeconfig, node            string
	kubeletRoot, cdiDir         string
	nriSocket, auditLog         string
	tools, chart, image         string
	starts, claims, rounds      int
	client                      kubernetes.Interface
}

func main() {
	b := bench{
		kubeconfig: os.Getenv("KUBECONFIG"), node: os.Getenv("NODE_NAME"), kubeletRoot: os.Getenv("KUBELET_ROOT_DIR"),
		cdiDir: os.Getenv("CDI_DIR"), nriSocket: os.Getenv("NRI_SOCKET"), auditLog: os.Getenv("AUDIT_LOG"), tools: os.Getenv("TOOLS"),
	}
	flag.StringVar(&b.binary, "binary", "", "dra-operator's static binary")
	flag.StringVar(&b.reference, "reference", "", "the reference driver's binary")
	flag.StringVar(&b.hostRoot, "host-root", "/", "root of the host whose devices are published")
	flag.StringVar(&b.out, "out", "target/bench", "directory of results.json and of logs")
	flag.StringVar(&b.chart, "chart", "charts/dra-operator", "the Helm chart")
	flag.StringVar(&b.image, "image", "docker.io/local/dra-operator:dev", "the image; must be loaded on the node")
	flag.IntVar(&b.starts, "starts", 11, "how often each plugin is started to time it")
	flag.IntVar(&b.claims, "claims", 100, "claims per round")
	flag.IntVar(&b.rounds, "rounds", 10, "rounds of claims")
	strict := flag.Bool("strict", false, "fail if a target is missed")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	results, err := b.run(ctx)
	// On an error, the results so far are printed but not written.
	results.print()
	if err == nil {
		err = results.write(filepath.Join(b.out, "results.json"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	if missed := results.missed(); missed > 0 {
		fmt.Printf("%d targets missed\n", missed)
		if *strict {
			os.Exit(1)
		}
	}
}

func (b *bench) run(ctx context.Context) (results, error) {
	config, err := clientcmd.BuildConfigFromFlags("", b.kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1 // do not throttle the harness
	if b.client, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	ours, reference, err := b.plugins(ctx)
	if err != nil {
		return nil, err
	}

	var all results
	say("binary size")
	if err := all.addSizes(b.binary, b.reference); err != nil {
		return all, err
	}
	say("%d starts of each node plugin", b.starts)
	if err := all.addStarts(ctx, b, ours, reference); err != nil {
		return all, fmt.Errorf("measuring the start: %w", err)
	}
	say("memory, and %d rounds of %d claims prepared and unprepared by each", b.rounds, b.claims)
	if err := all.addClaims(ctx, b, ours, reference); err != nil {
		return all, fmt.Errorf("measuring Prepare: %w", err)
	}
	say("the controller as the chart runs it, and a quiet minute")
	if err := all.addController(ctx, b); err != nil {
		return all, fmt.Errorf("measuring the controller: %w", err)
	}
	return all, nil
}

// plugins describes the two node plugins: the same devices under two names.
func (b *bench) plugins(ctx context.Context) (ours, reference *plugin, err error) {
	devices := filepath.Join(b.out, "devices.json")
	list, err := exec.CommandContext(ctx, b.binary, "discover", "--host-root", b.hostRoot, "--granularity", "Core", "--driver-name", "ref.cpu",
		"--node-name", b.node, "-o", "json").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return nil, nil, fmt.Errorf("discover: %w", err)
	}
	if err := os.WriteFile(devices, list, 0o644); err != nil {
		return nil, nil, err
	}
	names, err := deviceNames(list)
	if err != nil {
		return nil, nil, err
	}
	say("%d devices on %s", len(names), b.node)
	// Another machine's CPUs cannot be given to containers of this one.
	pinning := "NRI"
	if filepath.Clean(b.hostRoot) != "/" {
		pinning = "None"
	}
	// Not dra.cpu: the node plugin that the controller starts has that name.
	ours = &plugin{driver: "bench.cpu", devices: names, bench: b, command: []string{b.binary, "node-plugin",
		"--driver-name", "bench.cpu", "--node-name", b.node, "--kubelet-root-dir", b.kubeletRoot, "--cdi-dir", b.cdiDir,
		"--nri-socket", b.nriSocket, "--host-root", b.hostRoot, "--http-bind", "127.0.0.1:18081",
		"cpu", "--granularity", "Core", "--pinning", pinning}}
	reference = &plugin{driver: "ref.cpu", devices: names, bench: b, command: []string{b.reference,
		"--driver-name", "ref.cpu", "--node-name", b.node, "--kubelet-root-dir", b.kubeletRoot, "--cdi-dir", b.cdiDir,
		"--devices", devices}}
	return ours, reference, nil
}

func say(format string, args ...any) { fmt.Printf("bench: "+format+"\n", args...) }
