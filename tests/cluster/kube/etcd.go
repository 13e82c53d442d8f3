package main

import (
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// etcd runs one member that serves only this machine, until it is told to stop.
func etcd(args []string) int {
	flags := flag.NewFlagSet("etcd", flag.ExitOnError)
	dir := flags.String("data-dir", "", "where the data is kept")
	client := flags.String("client-url", "http://127.0.0.1:2379", "where clients are served")
	peer := flags.String("peer-url", "http://127.0.0.1:2380", "where peers would be served")
	_ = flags.Parse(args)

	config := embed.NewConfig()
	config.Name = "local"
	config.Dir = *dir
	config.LogLevel = "warn"
	config.UnsafeNoFsync = true // a test cluster: a power cut may cost it, a crash may not
	config.AutoCompactionMode = "periodic"
	config.AutoCompactionRetention = "10m"
	for _, address := range []struct {
		text string
		into []*[]url.URL
	}{
		{*client, []*[]url.URL{&config.ListenClientUrls, &config.AdvertiseClientUrls}},
		{*peer, []*[]url.URL{&config.ListenPeerUrls, &config.AdvertisePeerUrls}},
	} {
		parsed, err := url.Parse(address.text)
		if err != nil {
			fmt.Fprintf(os.Stderr, "etcd: address %q: %v\n", address.text, err)
			return 2
		}
		for _, into := range address.into {
			*into = []url.URL{*parsed}
		}
	}
	config.InitialCluster = config.InitialClusterFromName(config.Name)

	server, err := embed.StartEtcd(config)
	if err != nil {
		fmt.Fprintln(os.Stderr, "etcd:", err)
		return 1
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	select {
	case <-server.Server.ReadyNotify():
	case <-time.After(time.Minute):
		fmt.Fprintln(os.Stderr, "etcd: not ready within a minute")
		server.Close()
		return 1
	case <-stop:
		server.Close()
		return 0
	}
	select {
	case err := <-server.Err():
		fmt.Fprintln(os.Stderr, "etcd:", err)
		return 1
	case <-stop:
		server.Close()
		return 0
	}
}
