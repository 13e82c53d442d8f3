package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	release       = "dra-operator" // of the chart, and its namespace
	readyDeadline = 2 * time.Minute
	quietMinute   = time.Minute
	// The start is over after this long without a write.
	settledFor = 15 * time.Second
)

// config is the object that the controller reconciles.
const config = `apiVersion: dra-operator.dev/v1alpha1
kind: DraDriverConfig
metadata: {name: bench}
spec:
  driver: {cpu: {granularity: Core}}
  nodePlugin: {kubeletRootDir: %s}
  deviceClasses:
  - {name: high-performance, preset: HighPerformance}
  - {name: general-purpose, preset: GeneralPurpose}
`

// addController installs the chart with one DraDriverConfig, measures, and removes both.
func (r *results) addController(ctx context.Context, b *bench) (err error) {
	begin, err := endOf(b.auditLog)
	if err != nil {
		return err
	}
	registry, rest, _ := strings.Cut(b.image, "/")
	repository, tag, _ := strings.Cut(rest, ":")
	if err := b.tool(ctx, "", "helm", "upgrade", "--install", release, b.chart, "--namespace", release, "--create-namespace", "--wait",
		"--timeout", readyDeadline.String(), "--set", "image.registry="+registry, "--set", "image.repository="+repository,
		"--set", "image.tag="+tag, "--set", "crds.keep=false"); err != nil {
		return err
	}
	defer func() {
		// In this order: the controller removes what it created for the object.
		clean := context.WithoutCancel(ctx)
		for _, command := range [][]string{
			{"kubectl", "delete", "dradriverconfig", "bench", "--ignore-not-found", "--timeout=60s"},
			{"helm", "uninstall", release, "--namespace", release, "--wait"},
			{"kubectl", "delete", "namespace", release, namespace, "--ignore-not-found", "--timeout=60s"},
		} {
			if failed := b.tool(clean, "", command...); err == nil {
				err = failed
			}
		}
	}()
	if err := b.tool(ctx, fmt.Sprintf(config, b.kubeletRoot), "kubectl", "apply", "-f", "-"); err != nil {
		return err
	}
	if err := b.tool(ctx, "", "kubectl", "wait", "--for=condition=Ready", "--timeout="+readyDeadline.String(), "dradriverconfig/bench"); err != nil {
		return err
	}

	// A count of zero means something only if writes can be counted at all.
	if written, _, err := writes(b.auditLog, begin); err != nil {
		return err
	} else if len(written) == 0 {
		return fmt.Errorf("%s has no write by the operator, although it rolled out a driver", b.auditLog)
	}
	written, err := b.quietMinute(ctx)
	if err != nil {
		return err
	}
	controller, err := b.processOf(ctx, "controller")
	if err != nil {
		return err
	}
	plugin, err := b.processOf(ctx, "node-plugin")
	if err != nil {
		return err
	}
	r.add("controller: resident memory", controller.resident, "MB", none, 30)
	r.add("node plugin in its pod: resident memory", plugin.resident, "MB", none, 14)
	r.add("API writes in a quiet minute", float64(len(written)), "writes", none, 0)
	for _, write := range written {
		say("written in the quiet minute: %s", write)
	}
	return nil
}

// quietMinute returns what the operator writes within a minute, once it has settled.
func (b *bench) quietMinute(ctx context.Context) ([]string, error) {
	deadline, cancel := context.WithTimeout(ctx, readyDeadline)
	defer cancel()
	last, err := endOf(b.auditLog)
	if err != nil {
		return nil, err
	}
	settled := time.Now()
	err = until(deadline, "the operator has settled", func() (bool, error) {
		written, end, err := writes(b.auditLog, last)
		if len(written) > 0 {
			settled = time.Now()
		}
		last = end
		return time.Since(settled) >= settledFor, err
	})
	if err != nil {
		return nil, err
	}
	select { // measure for a minute
	case <-time.After(quietMinute):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	written, _, err := writes(b.auditLog, last)
	return written, err
}

// processOf returns the memory of the process that runs a verb in the only pod of that component.
func (b *bench) processOf(ctx context.Context, verb string) (memory, error) {
	pods, err := b.client.CoreV1().Pods(release).List(ctx, metav1.ListOptions{})
	if err != nil {
		return memory{}, err
	}
	for _, pod := range pods.Items {
		if pod.Status.Phase != corev1.PodRunning {
			continue
		}
		if pid, found := processIn(pod.UID, verb); found {
			return quietMemory(ctx, pid)
		}
	}
	return memory{}, fmt.Errorf("no process in the %d pods of namespace %s runs %q", len(pods.Items), release, verb)
}

// processIn finds a process of this machine by its pod, which its control groups name, and its arguments.
func processIn(pod types.UID, verb string) (int, bool) {
	files, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, file := range files {
		groups, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(groups), string(pod)) {
			continue
		}
		directory := filepath.Dir(file)
		arguments, err := os.ReadFile(filepath.Join(directory, "cmdline"))
		if err == nil && strings.Contains("\x00"+string(arguments), "\x00"+verb+"\x00") {
			pid, err := strconv.Atoi(filepath.Base(directory))
			return pid, err == nil
		}
	}
	return 0, false
}

// tool runs one of the cluster's tools, and prints its output only if it fails.
func (b *bench) tool(ctx context.Context, stdin string, command ...string) error {
	run := exec.CommandContext(ctx, filepath.Join(b.tools, command[0]), command[1:]...)
	run.Env = append(os.Environ(), "KUBECONFIG="+b.kubeconfig)
	run.Stdin = strings.NewReader(stdin)
	output, err := run.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(command, " "), err, output)
	}
	return nil
}
