// Image makes an OCI archive out of a root directory or one static binary: no engine, no network.
// The same input gives the same bytes, so that the digest tells whether anything changed.
package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

const usage = `usage: image -name REGISTRY/NAME:TAG -o ARCHIVE [-entrypoint "A B"] [-cmd "A B"] [-user UID[:GID]] [-env K=V]… DIR|BINARY
A DIR becomes the image's root; a BINARY becomes /NAME-OF-FILE, and the entrypoint unless another is given.
`

type list []string

func (l *list) String() string         { return strings.Join(*l, ",") }
func (l *list) Set(value string) error { *l = append(*l, value); return nil }

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

func main() {
	flags := flag.NewFlagSet("image", flag.ExitOnError)
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	name := flags.String("name", "", "full name with registry and tag")
	out := flags.String("o", "", "the archive to write")
	entrypoint := flags.String("entrypoint", "", "words of the entrypoint")
	cmd := flags.String("cmd", "", "words of the default command")
	user := flags.String("user", "", "UID[:GID] to run as")
	var env list
	flags.Var(&env, "env", "K=V, may be repeated")
	_ = flags.Parse(os.Args[1:])
	if *name == "" || *out == "" || flags.NArg() != 1 {
		flags.Usage()
		os.Exit(2)
	}
	source := flags.Arg(0)
	config := map[string]any{"Env": append(list{"PATH=/usr/local/bin:/usr/bin:/bin"}, env...), "WorkingDir": "/"}
	if words := strings.Fields(*entrypoint); len(words) > 0 {
		config["Entrypoint"] = words
	} else if info, err := os.Stat(source); err == nil && !info.IsDir() {
		config["Entrypoint"] = []string{"/" + filepath.Base(source)}
	}
	if words := strings.Fields(*cmd); len(words) > 0 {
		config["Cmd"] = words
	}
	if *user != "" {
		config["User"] = *user
	}
	if err := build(*name, *out, source, config); err != nil {
		fmt.Fprintf(os.Stderr, "image: making %s from %s: %v\n", *out, source, err)
		os.Exit(1)
	}
}

func build(name, out, source string, config map[string]any) error {
	layer, err := layerOf(source)
	if err != nil {
		return err
	}
	blobs := map[string][]byte{}
	add := func(mediaType string, content []byte) descriptor {
		sum := sha256.Sum256(content)
		digest := hex.EncodeToString(sum[:])
		blobs[digest] = content
		return descriptor{MediaType: mediaType, Digest: "sha256:" + digest, Size: len(content)}
	}
	addJSON := func(mediaType string, value any) (descriptor, error) {
		content, err := json.Marshal(value)
		return add(mediaType, content), err
	}
	layers := []descriptor{add("application/vnd.oci.image.layer.v1.tar", layer)}
	configuration, err := addJSON("application/vnd.oci.image.config.v1+json", map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "config": config,
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layers[0].Digest}},
	})
	if err != nil {
		return err
	}
	manifest, err := addJSON("application/vnd.oci.image.manifest.v1+json", map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": configuration, "layers": layers,
	})
	if err != nil {
		return err
	}
	_, tag, found := strings.Cut(path.Base(name), ":")
	if !found {
		return errors.New("the name needs a tag, as in docker.io/local/app:1")
	}
	manifest.Annotations = map[string]string{
		"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag,
	}
	index, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
		"manifests": []descriptor{manifest},
	})
	if err != nil {
		return err
	}

	var archive bytes.Buffer
	writer := tar.NewWriter(&archive)
	files := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`), "index.json": index}
	for digest, content := range blobs {
		files["blobs/sha256/"+digest] = content
	}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		header := &tar.Header{Name: file, Mode: 0o644, Size: int64(len(files[file])), Typeflag: tar.TypeReg}
		if err := writer.WriteHeader(header); err != nil {
			return err
		}
		if _, err := writer.Write(files[file]); err != nil {
			return err
		}
	}
	if err := writer.Close(); err != nil {
		return err
	}
	// Renamed into place: an archive that is there is whole.
	if err := os.WriteFile(out+".new", archive.Bytes(), 0o644); err != nil {
		return err
	}
	return os.Rename(out+".new", out)
}

// layerOf packs a file or a directory as one layer owned by root, without times.
func layerOf(source string) ([]byte, error) {
	var layer bytes.Buffer
	writer := tar.NewWriter(&layer)
	info, err := os.Stat(source)
	if err != nil {
		return nil, err
	}
	root := source
	if !info.IsDir() {
		root = filepath.Dir(source)
	}
	pack := func(file string, entry fs.FileInfo) error {
		name, err := filepath.Rel(root, file)
		if err != nil || name == "." {
			return err
		}
		target := ""
		if entry.Mode()&fs.ModeSymlink != 0 {
			if target, err = os.Readlink(file); err != nil {
				return err
			}
		}
		header, err := tar.FileInfoHeader(entry, target)
		if err != nil {
			return err
		}
		// Only what the image means: name, kind, mode, size and link.
		header = &tar.Header{
			Typeflag: header.Typeflag, Name: name, Linkname: target, Mode: header.Mode, Size: header.Size,
		}
		if entry.IsDir() {
			header.Name += "/"
		}
		if err := writer.WriteHeader(header); err != nil {
			return err
		}
		if !entry.Mode().IsRegular() {
			return nil
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		_, err = writer.Write(content)
		return err
	}
	if !info.IsDir() {
		err = pack(source, info)
	} else {
		err = filepath.Walk(source, func(file string, entry fs.FileInfo, err error) error {
			if err != nil {
				return err
			}
			return pack(file, entry)
		})
	}
	if err != nil {
		return nil, err
	}
	err = writer.Close()
	return layer.Bytes(), err
}
