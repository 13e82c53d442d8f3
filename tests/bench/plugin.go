package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/yaml"
)

// plugin is a node plugin that runs as a process of this machine.
type plugin struct {
	driver  string
	devices []string
	command []string
	bench   *bench

	process *exec.Cmd
	ended   chan error
	visible time.Duration // from the start of the process to its complete pool
}

const (
	startDeadline = 30 * time.Second
	stopDeadline  = 10 * time.Second
)

// deviceNames of a ResourceSliceList.
func deviceNames(list []byte) (names []string, err error) {
	var slices resourceapi.ResourceSliceList
	if err := yaml.Unmarshal(list, &slices); err != nil {
		return nil, fmt.Errorf("parsing the output of discover: %w", err)
	}
	for _, slice := range slices.Items {
		for _, device := range slice.Spec.Devices {
			names = append(names, device.Name)
		}
	}
	if len(names) == 0 {
		return nil, errors.New("discover found no device")
	}
	return names, nil
}

// start runs the plugin where none of its slices exist, and returns when a watch has shown all of them.
func (p *plugin) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	if err := p.removeSlices(ctx); err != nil {
		return err
	}
	slices, err := p.watch(ctx)
	if err != nil {
		return err
	}
	defer slices.Stop()

	log, err := os.OpenFile(p.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	p.process = exec.Command(p.command[0], p.command[1:]...)
	p.process.Env = []string{"KUBECONFIG=" + p.bench.kubeconfig, "PATH=" + os.Getenv("PATH"), "HOME=/nonexistent"}
	p.process.Stdout, p.process.Stderr = log, log
	// The plugin must not outlive the harness.
	p.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	begin := time.Now()
	if err := p.process.Start(); err != nil {
		return err
	}
	p.ended = make(chan error, 1)
	go func() { p.ended <- p.process.Wait() }()

	found := map[string]*resourceapi.ResourceSlice{}
	for {
		select {
		case event, ok := <-slices.ResultChan():
			slice, isSlice := event.Object.(*resourceapi.ResourceSlice)
			if !ok || !isSlice {
				return fmt.Errorf("%s: the watch of its slices ended: %v", p.driver, event.Object)
			}
			if event.Type == watch.Deleted {
				delete(found, slice.Name)
			} else {
				found[slice.Name] = slice
			}
			if p.complete(found) {
				p.visible = time.Since(begin)
				return nil
			}
		case err := <-p.ended:
			p.process = nil
			return fmt.Errorf("%s: exited before it published its devices: %v; see %s", p.driver, err, p.log())
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s: no complete pool within %s; see %s", p.driver, startDeadline, p.log()), p.stop())
		}
	}
}

// complete reports whether the slices form a complete pool with every device.
func (p *plugin) complete(found map[string]*resourceapi.ResourceSlice) bool {
	var newest, slices, wanted, devices int64
	for _, slice := range found {
		pool := slice.Spec.Pool
		if pool.Generation > newest {
			newest, slices, devices = pool.Generation, 0, 0
		}
		if pool.Generation == newest {
			slices++
			wanted = pool.ResourceSliceCount
			devices += int64(len(slice.Spec.Devices))
		}
	}
	return slices > 0 && slices == wanted && devices == int64(len(p.devices))
}

// stop stops the process as the kubelet would: SIGTERM, then SIGKILL.
func (p *plugin) stop() error {
	if p.process == nil {
		return nil
	}
	process := p.process.Process
	p.process = nil
	if err := process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("%s: %w", p.driver, err)
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(stopDeadline):
		return errors.Join(fmt.Errorf("%s: did not stop within %s of SIGTERM", p.driver, stopDeadline), process.Kill())
	}
}

func (p *plugin) selector() string {
	return "spec.driver=" + p.driver + ",spec.nodeName=" + p.bench.node
}

// watch reports changes from now on.
func (p *plugin) watch(ctx context.Context) (watch.Interface, error) {
	client := p.bench.client.ResourceV1().ResourceSlices()
	list, err := client.List(ctx, metav1.ListOptions{FieldSelector: p.selector()})
	if err != nil {
		return nil, err
	}
	return client.Watch(ctx, metav1.ListOptions{FieldSelector: p.selector(), ResourceVersion: list.ResourceVersion})
}

func (p *plugin) removeSlices(ctx context.Context) error {
	client := p.bench.client.ResourceV1().ResourceSlices()
	if err := client.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: p.selector()}); err != nil {
		return err
	}
	return until(ctx, "the slices of "+p.driver+" are gone", func() (bool, error) {
		list, err := client.List(ctx, metav1.ListOptions{FieldSelector: p.selector()})
		return err == nil && len(list.Items) == 0, err
	})
}

func (p *plugin) log() string { return filepath.Join(p.bench.out, p.driver+".log") }

// until polls a condition until it holds, fails, or the context ends.
func until(ctx context.Context, what string, holds func() (bool, error)) error {
	for {
		ok, err := holds()
		if err != nil || ok {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w", what, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// addStarts times the starts of the plugins in turn, so that other load on the machine affects both alike.
func (r *results) addStarts(ctx context.Context, b *bench, ours, reference *plugin) error {
	times := map[*plugin][]float64{}
	for range b.starts {
		for _, p := range []*plugin{ours, reference} {
			if err := p.start(ctx); err != nil {
				return err
			}
			times[p] = append(times[p], p.visible.Seconds())
			if err := p.stop(); err != nil {
				return err
			}
		}
	}
	r.add("start → slice visible, median", quantile(times[ours], 0.5), "s", quantile(times[reference], 0.5), 0.5)
	r.add("start → slice visible, slowest", quantile(times[ours], 1), "s", quantile(times[reference], 1), none)
	return nil
}
