package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// memory of a process in MB (10⁶ bytes).
type memory struct {
	resident     float64 // VmRSS: all of its pages in memory
	proportional float64 // PSS: shared pages are divided among the processes that share them
}

const (
	quietFor      = 5 * time.Second
	quietDeadline = 2 * time.Minute
)

// quietMemory is a process's memory once it has not changed for a while.
func quietMemory(ctx context.Context, pid int) (memory, error) {
	ctx, cancel := context.WithTimeout(ctx, quietDeadline)
	defer cancel()
	var last memory
	var since time.Time
	err := until(ctx, fmt.Sprintf("process %d is quiet", pid), func() (bool, error) {
		now, err := readMemory(pid)
		if now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) >= quietFor, err
	})
	return last, err
}

func readMemory(pid int) (m memory, err error) {
	directory := filepath.Join("/proc", strconv.Itoa(pid))
	if m.resident, err = kilobytes(filepath.Join(directory, "status"), "VmRSS:"); err != nil {
		return m, err
	}
	m.proportional, err = kilobytes(filepath.Join(directory, "smaps_rollup"), "Pss:")
	return m, err
}

// kilobytes reads the line `NAME: N kB` of a file; the kernel's kB is 1024 bytes.
func kilobytes(file, name string) (float64, error) {
	text, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer text.Close()
	for lines := bufio.NewScanner(text); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), name); ok {
			n, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return n * 1024 / 1e6, err
		}
	}
	return 0, fmt.Errorf("%s has no %s", file, name)
}
