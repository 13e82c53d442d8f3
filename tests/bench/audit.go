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

// event holds the needed fields of a line of the API server's audit log.
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

// writes reads the operator's writes from the log, starting at an offset. It also returns the offset for the next
// call.
func writes(file string, from int64) (found []string, end int64, err error) {
	log, err := os.Open(file)
	if err != nil {
		return found, from, err
	}
	defer log.Close()
	if info, err := log.Stat(); err != nil {
		return found, from, err
	} else if info.Size() < from {
		return found, from, fmt.Errorf("%s was rotated during the measurement: measure again", file)
	}
	if _, err := log.Seek(from, io.SeekStart); err != nil {
		return found, from, err
	}
	text, err := io.ReadAll(log)
	if err != nil {
		return found, from, err
	}
	whole := bytes.LastIndexByte(text, '\n') + 1 // the last line may be incomplete
	for line := range bytes.Lines(text[:whole]) {
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return found, from, fmt.Errorf("%s: %w", file, err)
		}
		reads := []string{"get", "list", "watch"}
		if !strings.HasPrefix(e.User.Username, "system:serviceaccount:"+release+":") || slices.Contains(reads, e.Verb) {
			continue
		}
		found = append(found, fmt.Sprintf("%s %s %s/%s %s, by %s", e.Verb, e.ObjectRef.Resource,
			e.ObjectRef.Namespace, e.ObjectRef.Name, e.ObjectRef.Subresource, e.User.Username))
	}
	return found, from + int64(whole), nil
}
