// Reference is the node plugin that `make bench` measures dra-operator against: like most
// drivers, a small Go program built on Kubernetes' own kubeletplugin library. It publishes the devices in a
// file, prepares claims with a checkpoint and a CDI file each, and has no other feature.
package main

import (
	"context"
	"flag"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"
)

func main() {
	driverName := flag.String("driver-name", "ref.cpu", "name of the driver")
	nodeName := flag.String("node-name", os.Getenv("NODE_NAME"), "name of the node")
	kubeletRoot := flag.String("kubelet-root-dir", "/var/lib/kubelet", "the kubelet's root directory")
	stateDir := flag.String("state-dir", "", "for the checkpoint and the socket (default: <kubelet-root-dir>/plugins/<driver-name>)")
	cdiDir := flag.String("cdi-dir", "/var/run/cdi", "where CDI files are written")
	kubeconfig := flag.String("kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig file (default: in-cluster)")
	devices := flag.String("devices", "", "ResourceSliceList (YAML or JSON) with the devices to publish")
	flag.Parse()
	if *stateDir == "" {
		*stateDir = filepath.Join(*kubeletRoot, "plugins", *driverName)
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	resources, err := readDevices(*devices, *nodeName)
	exitOn(err)
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	exitOn(err)
	// Like drivers that serve many pods. Otherwise client-go's limit of 5 requests per second would be what is measured.
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	exitOn(err)
	exitOn(os.MkdirAll(*stateDir, 0o750))
	exitOn(os.MkdirAll(*cdiDir, 0o755))
	driver, err := newDriver(*driverName, *stateDir, *cdiDir)
	exitOn(err)
	plugin, err := kubeletplugin.Start(ctx, driver,
		kubeletplugin.KubeClient(client),
		kubeletplugin.NodeName(*nodeName),
		kubeletplugin.DriverName(*driverName),
		kubeletplugin.PluginDataDirectoryPath(*stateDir),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(*kubeletRoot, "plugins_registry")),
		kubeletplugin.HealthService(false),
	)
	exitOn(err)
	exitOn(plugin.PublishResources(ctx, resources))
	<-ctx.Done()
	plugin.Stop()
}

// readDevices turns recorded slices into one pool of this node, with the same devices in the same slices.
func readDevices(file, nodeName string) (resourceslice.DriverResources, error) {
	var list resourceapi.ResourceSliceList
	text, err := os.ReadFile(file)
	if err == nil {
		err = yaml.UnmarshalStrict(text, &list)
	}
	var pool resourceslice.Pool
	for _, slice := range list.Items {
		pool.Slices = append(pool.Slices, resourceslice.Slice{Devices: slice.Spec.Devices, SharedCounters: slice.Spec.SharedCounters})
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{nodeName: pool}}, err
}

func exitOn(err error) {
	if err != nil {
		klog.ErrorS(err, "reference driver")
		klog.FlushAndExit(klog.ExitFlushTimeout, 1)
	}
}
