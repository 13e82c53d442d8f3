package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// tally of what the operator's service accounts wrote.
type tally struct {
	writes   []string // who wrote what
	renewals int      // of Leases: a leader has to
}

// event is what is needed of a line of the API server's audit log.
type event struct {
	Verb      string
	User      struct{ Username string }
	ObjectRef struct{ Resource, Namespace, Name, Subresource string }
}

func endOf(file string) (int64, error) {
	info, err := os.Stat(file)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// countWrites reads the log from an offset; it also returns where the next reading has to begin.
func countWrites(file string, from int64) (counted tally, end int64, err error) {
	log, err := os.Open(file)
	if err != nil {
		return counted, from, err
	}
	defer log.Close()
	if info, err := log.Stat(); err != nil || info.Size() < from {
		return counted, from, fmt.Errorf("%s was rotated meanwhile, measure again %w", file, err)
	}
	if _, err := log.Seek(from, io.SeekStart); err != nil {
		return counted, from, err
	}
	text, err := io.ReadAll(log)
	if err != nil {
		return counted, from, err
	}
	whole := bytes.LastIndexByte(text, '\n') + 1 // the last line may still be being written
	for line := range bytes.Lines(text[:whole]) {
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return counted, from, fmt.Errorf("%s: %w", file, err)
		}
		reads := []string{"get", "list", "watch"}
		if !strings.HasPrefix(e.User.Username, "system:serviceaccount:"+release+":") || slices.Contains(reads, e.Verb) {
			continue
		}
		if e.ObjectRef.Resource == "leases" {
			counted.renewals++
			continue
		}
		counted.writes = append(counted.writes, fmt.Sprintf("%s %s %s/%s %s, by %s", e.Verb, e.ObjectRef.Resource,
			e.ObjectRef.Namespace, e.ObjectRef.Name, e.ObjectRef.Subresource, e.User.Username))
	}
	return counted, from + int64(whole), nil
}
