// A container runtime as far as NRI sees it: containerd's own NRI code listens on a socket, asks the plugins that connect
// about a recorded container, and merges their answers. Each line on standard input is a question as JSON, each line on
// standard output its answer, in the same order.
//
// usage: runtime SOCKET RECORDING
package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/ttrpc"
	"github.com/sirupsen/logrus"
	"google.golang.org/protobuf/proto"
)

// question asks for one thing, of Plugins that must be connected first.
type question struct {
	Plugins int `json:"plugins"`
	// Create is the ID of a container to create, with Env added to what was recorded.
	Create string   `json:"create,omitempty"`
	Env    []string `json:"env,omitempty"`
	// Update is the ID of a container to change to Cpus and Mems, as the kubelet does.
	Update string `json:"update,omitempty"`
	Cpus   string `json:"cpus,omitempty"`
	Mems   string `json:"mems,omitempty"`
	// Unsolicited asks for so many updates that plugins asked for on their own.
	Unsolicited int `json:"unsolicited,omitempty"`
}

// placement is what a container is to get; empty fields are left as they are.
type placement struct {
	ID   string `json:"id"`
	Cpus string `json:"cpus,omitempty"`
	Mems string `json:"mems,omitempty"`
}

type answer struct {
	// Error is why NRI refuses.
	Error      string      `json:"error,omitempty"`
	Placements []placement `json:"placements,omitempty"`
}

type runtime struct {
	nri      *adaptation.Adaptation
	recorded *api.CreateContainerRequest

	mutex       sync.Mutex
	changed     *sync.Cond
	synced      int
	containers  map[string]*api.Container
	unsolicited []placement
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: runtime SOCKET RECORDING")
		os.Exit(2)
	}
	// What NRI refuses is in the answers.
	logrus.SetLevel(logrus.FatalLevel)
	if err := serve(os.Args[1], os.Args[2], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "runtime:", err)
		os.Exit(1)
	}
}

func serve(socket, recording string, in io.Reader, out io.Writer) error {
	recorded, err := lastCreation(recording)
	if err != nil {
		return err
	}
	r := &runtime{recorded: recorded, containers: map[string]*api.Container{}}
	r.changed = sync.NewCond(&r.mutex)
	none := socket + ".none"
	r.nri, err = adaptation.New("test", "1", r.synchronize, r.update,
		adaptation.WithSocketPath(socket), adaptation.WithPluginPath(none), adaptation.WithPluginConfigPath(none))
	if err != nil {
		return err
	}
	if err := r.nri.Start(); err != nil {
		return err
	}

	questions, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var q question
		if err := questions.Decode(&q); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		placements, err := r.answer(q)
		a := answer{Placements: placements}
		if err != nil {
			a.Error = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
}

func (r *runtime) answer(q question) ([]placement, error) {
	r.waitFor(func() bool { return r.synced >= q.Plugins })
	// A plugin is asked only after its synchronisation has ended.
	r.nri.BlockPluginSync().Unblock()

	switch {
	case q.Create != "":
		return r.create(q.Create, q.Env)
	case q.Update != "":
		return r.resize(q.Update, q.Cpus, q.Mems)
	default:
		r.waitFor(func() bool { return len(r.unsolicited) >= q.Unsolicited })
		r.mutex.Lock()
		defer r.mutex.Unlock()
		taken := r.unsolicited
		r.unsolicited = nil
		return taken, nil
	}
}

func (r *runtime) create(id string, env []string) ([]placement, error) {
	request := proto.Clone(r.recorded).(*api.CreateContainerRequest)
	request.Container.Id = id
	request.Container.Env = append(request.Container.Env, env...)
	container := proto.Clone(request.Container).(*api.Container)

	response, err := r.nri.CreateContainer(context.Background(), request)
	if err != nil {
		return nil, err
	}
	cpu := response.GetAdjust().GetLinux().GetResources().GetCpu()

	r.mutex.Lock()
	container.Linux.Resources = &api.LinuxResources{Cpu: &api.LinuxCPU{Cpus: cpu.GetCpus(), Mems: cpu.GetMems()}}
	r.containers[id] = container
	r.mutex.Unlock()

	event := &api.PostCreateContainerRequest{Pod: request.Pod, Container: container}
	if err := r.nri.PostCreateContainer(context.Background(), event); err != nil {
		return nil, err
	}
	return append([]placement{{ID: id, Cpus: cpu.GetCpus(), Mems: cpu.GetMems()}}, placements(response.GetUpdate())...), nil
}

func (r *runtime) resize(id, cpus, mems string) ([]placement, error) {
	r.mutex.Lock()
	container := r.containers[id]
	r.mutex.Unlock()
	response, err := r.nri.UpdateContainer(context.Background(), &api.UpdateContainerRequest{
		Pod:            r.recorded.Pod,
		Container:      container,
		LinuxResources: &api.LinuxResources{Cpu: &api.LinuxCPU{Cpus: cpus, Mems: mems}},
	})
	if err != nil {
		return nil, err
	}
	return placements(response.GetUpdate()), nil
}

// synchronize tells a plugin that connected of the containers there are.
func (r *runtime) synchronize(ctx context.Context, synchronize adaptation.SyncCB) error {
	r.mutex.Lock()
	var containers []*api.Container
	for _, container := range r.containers {
		containers = append(containers, container)
	}
	r.mutex.Unlock()

	_, err := synchronize(ctx, []*api.PodSandbox{r.recorded.Pod}, containers)
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.synced++
	r.changed.Broadcast()
	return err
}

// update takes what a plugin asks for on its own.
func (r *runtime) update(_ context.Context, updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.unsolicited = append(r.unsolicited, placements(updates)...)
	r.changed.Broadcast()
	return nil, nil
}

func (r *runtime) waitFor(condition func() bool) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for !condition() {
		r.changed.Wait()
	}
}

func placements(updates []*api.ContainerUpdate) []placement {
	var placements []placement
	for _, update := range updates {
		cpu := update.GetLinux().GetResources().GetCpu()
		placements = append(placements, placement{ID: update.GetContainerId(), Cpus: cpu.GetCpus(), Mems: cpu.GetMems()})
	}
	return placements
}

// lastCreation is the last CreateContainer among the frames that a runtime sent.
func lastCreation(recording string) (*api.CreateContainerRequest, error) {
	bytes, err := os.ReadFile(recording)
	if err != nil {
		return nil, err
	}
	const pluginConnection, request = 1, 1
	var calls []byte
	for len(bytes) >= 8 {
		connection, length := binary.BigEndian.Uint32(bytes), binary.BigEndian.Uint32(bytes[4:])
		if connection == pluginConnection {
			calls = append(calls, bytes[8:8+length]...)
		}
		bytes = bytes[8+length:]
	}

	var last *api.CreateContainerRequest
	for len(calls) >= 10 {
		length, kind := binary.BigEndian.Uint32(calls), calls[8]
		payload := calls[10 : 10+length]
		calls = calls[10+length:]
		var call ttrpc.Request
		if kind != request || proto.Unmarshal(payload, &call) != nil || call.Method != "CreateContainer" {
			continue
		}
		last = &api.CreateContainerRequest{}
		if err := proto.Unmarshal(call.Payload, last); err != nil {
			return nil, err
		}
	}
	if last == nil {
		return nil, fmt.Errorf("%s has no CreateContainer", recording)
	}
	return last, nil
}
