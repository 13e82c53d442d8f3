package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

const (
	namespace    = "dra-bench"
	callDeadline = 45 * time.Second // same as the kubelet's
)

// caller calls a plugin as the kubelet does, on the plugin's own socket, and times the calls.
type caller struct {
	*plugin
	connection         *grpc.ClientConn
	client             drapb.DRAPluginClient
	prepare, unprepare []float64 // milliseconds
}

// addClaims runs both plugins at once and calls them in turn.
func (r *results) addClaims(ctx context.Context, b *bench, ours, reference *plugin) (err error) {
	if err := b.makeNamespace(ctx); err != nil {
		return err
	}
	pod, err := b.makePod(ctx)
	if err != nil {
		return err
	}
	var idle, after []memory
	var pair []*caller
	for _, p := range []*plugin{ours, reference} {
		if err := p.start(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, p.stop()) }()
		call, err := p.dial()
		if err != nil {
			return err
		}
		defer call.connection.Close()
		pair = append(pair, call)
	}
	if idle, err = quietMemories(ctx, pair); err != nil {
		return err
	}
	for round := range b.rounds {
		for made := 0; made < b.claims; {
			wave := min(len(ours.devices), b.claims-made)
			if err := b.wave(ctx, pod, pair, wave); err != nil {
				return err
			}
			made += wave
		}
		if round == 0 {
			if after, err = quietMemories(ctx, pair); err != nil {
				return err
			}
		}
	}
	us, they := pair[0], pair[1]
	r.add("resident memory, idle", idle[0].resident, "MB", idle[1].resident, 14)
	r.add("resident memory, after claims", after[0].resident, "MB", after[1].resident, 14)
	r.add("proportional set size, after claims", after[0].proportional, "MB", after[1].proportional, none)
	r.add("Prepare, median", quantile(us.prepare, 0.5), "ms", quantile(they.prepare, 0.5), none)
	r.add("Prepare, p99", quantile(us.prepare, 0.99), "ms", quantile(they.prepare, 0.99), quantile(they.prepare, 0.99))
	r.add("Unprepare, median", quantile(us.unprepare, 0.5), "ms", quantile(they.unprepare, 0.5), none)
	r.add("Unprepare, p99", quantile(us.unprepare, 0.99), "ms", quantile(they.unprepare, 0.99), none)
	return nil
}

func quietMemories(ctx context.Context, pair []*caller) (all []memory, err error) {
	for _, p := range pair {
		quiet, err := quietMemory(ctx, p.process.Process.Pid)
		if err != nil {
			return nil, err
		}
		all = append(all, quiet)
	}
	return all, nil
}

// wave creates a claim for each of the first devices, with each plugin. All are held before the first is released.
func (b *bench) wave(ctx context.Context, pod *corev1.Pod, pair []*caller, size int) error {
	type step struct {
		caller *caller
		claim  *drapb.Claim
	}
	var steps []step
	for i := range size {
		turn := slices.Clone(pair)
		if i%2 == 1 { // the second one finds the disk and the API server warm
			slices.Reverse(turn)
		}
		for _, p := range turn {
			claim, err := b.makeClaim(ctx, pod, p, p.devices[i])
			if err != nil {
				return err
			}
			steps = append(steps, step{p, claim})
		}
	}
	for _, s := range steps {
		if err := s.caller.callPrepare(ctx, s.claim); err != nil {
			return err
		}
	}
	for _, s := range steps {
		if err := s.caller.callUnprepare(ctx, s.claim); err != nil {
			return err
		}
	}
	return b.client.ResourceV1().ResourceClaims(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
}

// makeClaim creates a claim and, in place of the scheduler, allocates it for the pod.
func (b *bench) makeClaim(ctx context.Context, pod *corev1.Pod, p *caller, device string) (*drapb.Claim, error) {
	client := b.client.ResourceV1().ResourceClaims(namespace)
	claim, err := client.Create(ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "bench-"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "cpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "bench"},
		}}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "cpu", Driver: p.driver, Pool: b.node, Device: device}},
	}}
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod.Name, UID: pod.UID}}
	if claim, err = client.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		return nil, err
	}
	return &drapb.Claim{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}, nil
}

func (b *bench) makeNamespace(ctx context.Context) error {
	_, err := b.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return b.client.ResourceV1().ResourceClaims(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	}
	return err
}

// makePod creates the pod for the claims. It has a scheduling gate, so that only the harness handles it.
func (b *bench) makePod(ctx context.Context) (*corev1.Pod, error) {
	client := b.client.CoreV1().Pods(namespace)
	pod, err := client.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		Spec: corev1.PodSpec{
			SchedulingGates: []corev1.PodSchedulingGate{{Name: "dra-operator.dev/bench"}},
			Containers:      []corev1.Container{{Name: "bench", Image: "docker.io/local/pause:1"}},
		},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return client.Get(ctx, "bench", metav1.GetOptions{})
	}
	return pod, err
}

// dial connects to the DRA socket, as the kubelet does once for many calls.
func (p *plugin) dial() (*caller, error) {
	sockets, err := filepath.Glob(filepath.Join(p.bench.kubeletRoot, "plugins", p.driver, "dra*.sock"))
	if err != nil || len(sockets) != 1 {
		return nil, fmt.Errorf("%s: not one DRA socket but %q %w", p.driver, sockets, err)
	}
	connection, err := grpc.NewClient("unix://"+sockets[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	connection.Connect()
	return &caller{plugin: p, connection: connection, client: drapb.NewDRAPluginClient(connection)}, nil
}

func (p *caller) callPrepare(ctx context.Context, claim *drapb.Claim) error {
	ctx, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	begin := time.Now()
	answer, err := p.client.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{claim}})
	p.prepare = append(p.prepare, float64(time.Since(begin).Microseconds())/1000)
	if err != nil {
		return fmt.Errorf("%s: Prepare: %w", p.driver, err)
	}
	if prepared := answer.Claims[claim.Uid]; prepared.GetError() != "" || len(prepared.GetDevices()) != 1 {
		return fmt.Errorf("%s: Prepare answered %v", p.driver, answer)
	}
	return nil
}

func (p *caller) callUnprepare(ctx context.Context, claim *drapb.Claim) error {
	ctx, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	begin := time.Now()
	answer, err := p.client.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{claim}})
	p.unprepare = append(p.unprepare, float64(time.Since(begin).Microseconds())/1000)
	if err != nil {
		return fmt.Errorf("%s: Unprepare: %w", p.driver, err)
	}
	if released, ok := answer.Claims[claim.Uid]; !ok || released.GetError() != "" {
		return fmt.Errorf("%s: Unprepare answered %v", p.driver, answer)
	}
	return nil
}
