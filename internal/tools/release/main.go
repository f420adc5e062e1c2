// Command release writes the image of a release as one file, without Docker: an OCI image layout with an index of all
// architectures, and beside it the manifest by which every version of `docker load` reads the file too. The same input gives the
// same bytes. A module of its own, which also pins nFPM, keeps the dependencies out of the gateway's go.mod.
package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

type options struct {
	out, version, revision, certificates string
	created                              int64             // seconds since 1970, of all files and of the image
	binaries                             map[string]string // of each architecture, in the order of architectures
	architectures                        []string
}

func main() {
	o := options{binaries: map[string]string{}}
	flag.StringVar(&o.out, "o", "", "the file to write")
	flag.StringVar(&o.version, "version", "", "the version, which is the image's tag")
	flag.StringVar(&o.revision, "revision", "", "the commit")
	flag.StringVar(&o.certificates, "certificates", "", "root certificates as PEM")
	flag.Int64Var(&o.created, "created", 0, "the time of the commit, in seconds since 1970")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: release -o FILE -version VERSION [flags] ARCHITECTURE=BINARY…")
		flag.PrintDefaults()
	}
	flag.Parse()
	for _, arg := range flag.Args() {
		architecture, binary, _ := strings.Cut(arg, "=")
		o.architectures = append(o.architectures, architecture)
		o.binaries[architecture] = binary
	}
	if err := write(&o); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func write(o *options) (err error) {
	dir, err := os.MkdirTemp("", "basegate-release-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	archive, err := writeLayout(dir, o)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "manifest.json"), archive, 0o644); err != nil {
		return err
	}
	files, err := filesOf(dir)
	if err != nil {
		return err
	}
	out, err := os.Create(o.out)
	if err != nil {
		return err
	}
	return errors.Join(pack(out, o.time(), files), out.Close())
}

func (o *options) time() time.Time { return time.Unix(o.created, 0).UTC() }

// writeLayout writes the OCI image layout into a folder, and returns Docker's manifest of the same blobs. Docker's has no index, so
// there each architecture has a tag of its own.
func writeLayout(dir string, o *options) (dockerManifest []byte, err error) {
	type entry struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	var entries []entry
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	certificates, err := os.ReadFile(o.certificates)
	if err != nil {
		return nil, err
	}
	base, err := layer(o.time(), append(folders("etc", "etc/ssl", "etc/ssl/certs", "var", "var/lib"),
		file{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, content: certificates},
		file{name: "var/lib/basegate", mode: fs.ModeDir | 0o755, owner: user},
		file{name: "backup", mode: fs.ModeDir | 0o755, owner: user}))
	if err != nil {
		return nil, err
	}
	for _, architecture := range o.architectures {
		binary, err := os.ReadFile(o.binaries[architecture])
		if err != nil {
			return nil, err
		}
		program, err := layer(o.time(), append(folders("usr", "usr/local", "usr/local/bin"), file{name: "usr/local/bin/basegate", mode: 0o755, content: binary}))
		if err != nil {
			return nil, err
		}
		image, err := newImage(o, architecture, base, program)
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: "linux", Architecture: architecture},
		}})
		manifest, err := image.Manifest()
		if err != nil {
			return nil, err
		}
		e := entry{Config: blob(manifest.Config.Digest), RepoTags: []string{"basegate:" + o.version + "-" + architecture}}
		for _, l := range manifest.Layers {
			e.Layers = append(e.Layers, blob(l.Digest))
		}
		entries = append(entries, e)
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return nil, err
	}
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": o.version})); err != nil {
		return nil, err
	}
	return json.Marshal(entries)
}

func blob(digest v1.Hash) string { return "blobs/" + digest.Algorithm + "/" + digest.Hex }

// user owns the folders that the gateway writes, and runs it.
const user = 65532

// newImage returns the image of one architecture, which is that of the Dockerfile: a test compares them, and there are the reasons.
func newImage(o *options, architecture string, layers ...v1.Layer) (v1.Image, error) {
	image, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), layers...)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", architecture, v1.Time{Time: o.time()}
	config.History = nil
	for range layers {
		config.History = append(config.History, v1.History{Created: config.Created, CreatedBy: "make release"})
	}
	config.Config = v1.Config{
		User:         fmt.Sprintf("%d:%d", user, user),
		Env:          []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "BASEGATE_CONFIG=/etc/basegate/config.yaml", "SQLITE_TMPDIR=/var/lib/basegate"},
		Entrypoint:   []string{"basegate"},
		Cmd:          []string{"serve"},
		WorkingDir:   "/var/lib/basegate",
		Volumes:      map[string]struct{}{"/var/lib/basegate": {}},
		ExposedPorts: map[string]struct{}{"8080/tcp": {}, "9090/tcp": {}},
		StopSignal:   "SIGTERM",
		Healthcheck: &v1.HealthConfig{
			Test:     []string{"CMD", "basegate", "check", "--live"},
			Interval: 10 * time.Second, Timeout: 5 * time.Second, StartPeriod: 10 * time.Second, Retries: 3,
		},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "basegate",
			"org.opencontainers.image.version":  o.version,
			"org.opencontainers.image.revision": o.revision,
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return mutate.ConfigFile(image, config)
}

// file is a file or a folder of a layer.
type file struct {
	name    string
	mode    fs.FileMode
	owner   int
	content []byte
}

// folders are those of root.
func folders(names ...string) []file {
	var all []file
	for _, name := range names {
		all = append(all, file{name: name, mode: fs.ModeDir | 0o755})
	}
	return all
}

func layer(at time.Time, files []file) (v1.Layer, error) {
	var b bytes.Buffer
	if err := pack(&b, at, files); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }, tarball.WithMediaType(types.OCILayer))
}

// pack writes files as a tar archive, in the order given.
func pack(out io.Writer, at time.Time, files []file) error {
	w := tar.NewWriter(out)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Mode: int64(f.mode.Perm()), Uid: f.owner, Gid: f.owner, Size: int64(len(f.content)), ModTime: at, Typeflag: tar.TypeReg}
		if f.mode.IsDir() {
			header.Name, header.Typeflag = f.name+"/", tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		if _, err := w.Write(f.content); err != nil {
			return err
		}
	}
	return w.Close()
}

// filesOf returns the files of a folder and those below it, in the order of their names.
func filesOf(dir string) (all []file, err error) {
	err = fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(filepath.Join(dir, path))
		all = append(all, file{name: path, mode: 0o644, content: content})
		return err
	})
	return all, err
}
