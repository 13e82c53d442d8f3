package main

import (
	"context"
	"fmt"
	"sort"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// fleet is what a cluster offers on one node.
type fleet struct {
	Node   string                       `json:"node"`
	Driver string                       `json:"driver"`
	Slices []*resourceapi.ResourceSlice `json:"slices"`
}

// oneClass is a lister of the class that matches all devices of a driver.
type oneClass struct{ driver string }

func (c oneClass) Get(string) (*resourceapi.DeviceClass, error) {
	expression := fmt.Sprintf("device.driver == %q", c.driver)
	selector := resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}
	return &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "all"},
		Spec:       resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{selector}},
	}, nil
}

func (c oneClass) List() ([]*resourceapi.DeviceClass, error) {
	class, err := c.Get("")
	return []*resourceapi.DeviceClass{class}, err
}

// allocateAll is what the scheduler gives a claim for all devices of the driver.
func allocateAll(f fleet) answer {
	ctx := context.Background()
	allocator, err := structured.NewAllocator(ctx,
		structured.Features{
			AdminAccess: true, ConsumableCapacity: true, DeviceTaints: true, PartitionableDevices: true, PrioritizedList: true,
		},
		structured.AllocatedState{
			AllocatedDevices:         sets.New[structured.DeviceID](),
			AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
		},
		oneClass{f.Driver}, f.Slices, dracel.NewCache(8, dracel.Features{EnableConsumableCapacity: true}))
	if err != nil {
		return answer{Error: err.Error()}
	}
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "claim", Namespace: "default", UID: "claim"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "all",
			Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: "all", AllocationMode: resourceapi.DeviceAllocationModeAll,
			},
		}}}},
	}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: f.Node}}
	results, err := allocator.Allocate(ctx, node, []*resourceapi.ResourceClaim{claim})
	if err != nil {
		return answer{Error: err.Error()}
	}
	var given answer
	for _, allocation := range results {
		for _, result := range allocation.Devices.Results {
			given.Devices = append(given.Devices, result.Pool+"/"+result.Device)
		}
	}
	sort.Strings(given.Devices)
	return given
}
