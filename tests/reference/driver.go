package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
)

// driver keeps prepared claims in a checkpoint, and passes them to the container runtime in CDI files.
type driver struct {
	name, checkpoint, cdiDir string

	mutex    sync.Mutex
	prepared map[types.UID][]kubeletplugin.Device
}

func newDriver(name, stateDir, cdiDir string) (*driver, error) {
	d := &driver{name: name, checkpoint: filepath.Join(stateDir, "checkpoint.json"), cdiDir: cdiDir,
		prepared: map[types.UID][]kubeletplugin.Device{}}
	text, err := os.ReadFile(d.checkpoint)
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &d.prepared)
	}
	return d, err
}

func (d *driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		devices, err := d.prepare(claim)
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return results, nil
}

func (d *driver) prepare(claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	if devices, ok := d.prepared[claim.UID]; ok {
		return devices, nil
	}
	var devices []kubeletplugin.Device
	names := map[string]string{} // CDI device → the devices it represents
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != d.name {
			continue
		}
		if holder, held := d.holder(result); held {
			return nil, fmt.Errorf("device %s is held by claim %s", result.Device, holder)
		}
		name := string(claim.UID) + "-" + strings.ReplaceAll(result.Request, "/", "-")
		names[name] += result.Device + " "
		devices = append(devices, kubeletplugin.Device{Requests: []string{result.Request}, PoolName: result.Pool,
			DeviceName: result.Device, CDIDeviceIDs: []string{d.name + "/claim=" + name}})
	}
	if err := d.writeCDI(claim.UID, names); err != nil {
		return nil, err
	}
	d.prepared[claim.UID] = devices
	if err := d.save(); err != nil {
		delete(d.prepared, claim.UID)
		return nil, err
	}
	return devices, nil
}

func (d *driver) holder(result resourceapi.DeviceRequestAllocationResult) (types.UID, bool) {
	for uid, devices := range d.prepared {
		for _, device := range devices {
			if device.PoolName == result.Pool && device.DeviceName == result.Device {
				return uid, true
			}
		}
	}
	return "", false
}

func (d *driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	results := map[types.UID]error{}
	for _, claim := range claims {
		results[claim.UID] = d.unprepare(claim.UID)
	}
	return results, nil
}

func (d *driver) unprepare(uid types.UID) error {
	devices, ok := d.prepared[uid]
	if !ok {
		return nil
	}
	if err := os.Remove(d.cdiFile(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	delete(d.prepared, uid)
	if err := d.save(); err != nil {
		d.prepared[uid] = devices
		return err
	}
	return nil
}

func (d *driver) HandleError(ctx context.Context, err error, msg string) {
	klog.FromContext(ctx).Error(err, msg)
}

func (d *driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

// save replaces the checkpoint; it is on disk when save returns.
func (d *driver) save() error {
	text, err := json.Marshal(d.prepared)
	if err != nil {
		return err
	}
	return replace(d.checkpoint, text, 0o600, true)
}

func (d *driver) cdiFile(uid types.UID) string {
	return filepath.Join(d.cdiDir, fmt.Sprintf("%s-%s.json", d.name, uid))
}

// writeCDI gives the containers of each request an environment variable with their devices. It does not sync
// the file: a reboot empties the directory anyway.
func (d *driver) writeCDI(uid types.UID, names map[string]string) error {
	type edits struct {
		Env []string `json:"env"`
	}
	type device struct {
		Name           string `json:"name"`
		ContainerEdits edits  `json:"containerEdits"`
	}
	var devices []device
	for name, of := range names {
		devices = append(devices, device{name, edits{[]string{"DRA_DEVICES=" + of}}})
	}
	text, err := json.Marshal(map[string]any{"cdiVersion": "0.6.0", "kind": d.name + "/claim", "devices": devices})
	if err != nil {
		return err
	}
	return replace(d.cdiFile(uid), text, 0o644, false)
}

// replace writes a file atomically: a reader sees the old or the new one.
func replace(path string, text []byte, mode os.FileMode, durable bool) error {
	file, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if durable {
		err = errors.Join(err, file.Sync())
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if err = os.Rename(path+".tmp", path); err != nil || !durable {
		return err
	}
	directory, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}
