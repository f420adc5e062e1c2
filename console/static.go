package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
	"sync"

	"github.com/andybalholm/brotli"
	"github.com/evanw/esbuild/pkg/api"
	"github.com/labstack/echo/v4"
)

//go:embed static
var staticFiles embed.FS

const staticPath = "/static/"

// assets is a digest of all static files. It is part of their URLs, so that a browser may cache them for a year and still
// loads the new ones after an upgrade, including those that a script imports by a relative path.
type assets string

var readAssets = sync.OnceValue(func() assets {
	sum := sha256.New()
	eachStaticFile(func(name string, content []byte) {
		sum.Write([]byte(name))
		sum.Write(content)
	})
	return assets(hex.EncodeToString(sum.Sum(nil))[:12])
})

func eachStaticFile(do func(name string, content []byte)) {
	err := fs.WalkDir(staticFiles, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := staticFiles.ReadFile(name)
		if err == nil {
			do(strings.TrimPrefix(name, "static/"), content)
		}
		return err
	})
	if err != nil { // impossible: the files are embedded
		panic("read static files: " + err.Error())
	}
}

func (a assets) url(name string) string { return staticPath + string(a) + "/" + name }

// pageScript is the name of a script that is served as one with the modules of its folder and those of vendor/.
const pageScript = "page.js"

// build returns a script or style sheet as it is served: minified, and a page's script with its modules. Those elsewhere, which other
// scripts of the page import too, stay apart.
func build(name string) []byte {
	const embedded = "embedded"
	folder, isPage := path.Dir(name)+"/", path.Base(name) == pageScript
	options := api.BuildOptions{
		EntryPoints: []string{name}, Bundle: isPage, MinifyWhitespace: true, MinifySyntax: true, MinifyIdentifiers: true,
		Plugins: []api.Plugin{{Name: embedded, Setup: func(b api.PluginBuild) {
			b.OnResolve(api.OnResolveOptions{Filter: "."}, func(a api.OnResolveArgs) (api.OnResolveResult, error) {
				found := path.Join(path.Dir(a.Importer), a.Path)
				if a.Kind != api.ResolveEntryPoint && !strings.HasPrefix(found, folder) && !strings.HasPrefix(found, "vendor/") {
					return api.OnResolveResult{Path: a.Path, External: true}, nil
				}
				return api.OnResolveResult{Path: found, Namespace: embedded}, nil
			})
			b.OnLoad(api.OnLoadOptions{Filter: ".", Namespace: embedded}, func(a api.OnLoadArgs) (api.OnLoadResult, error) {
				content, err := staticFiles.ReadFile("static/" + a.Path)
				return api.OnLoadResult{Contents: new(string(content)), Loader: api.LoaderDefault}, err
			})
		}}},
	}
	if isPage {
		options.Format = api.FormatESModule
	}
	result := api.Build(options)
	if len(result.Errors) > 0 || len(result.OutputFiles) != 1 { // impossible: a test requests a file, which builds all
		panic(fmt.Sprintf("build %s: %v", name, result.Errors))
	}
	return result.OutputFiles[0].Contents
}

type staticFile struct {
	content    []byte
	compressed map[string][]byte // by coding, those that are smaller
}

// codings are those of compressed files, the preferred first.
var codings = []string{"br", "gzip"}

// compressor returns a writer that compresses by a coding. Brotli's highest level would take three seconds of CPU time for all files,
// where this one takes 0.2 s and saves half as much of gzip's size.
func compressor(coding string, w io.Writer) io.WriteCloser {
	if coding == "br" {
		return brotli.NewWriterLevel(w, 5)
	}
	zipped, _ := gzip.NewWriterLevel(w, gzip.BestCompression) // the level is valid
	return zipped
}

// served returns the static files by their names. Scripts and style sheets are minified.
var served = sync.OnceValue(func() map[string]staticFile {
	all := map[string]staticFile{}
	eachStaticFile(func(name string, content []byte) {
		if ext := path.Ext(name); ext == ".js" || ext == ".css" {
			content = build(name)
		}
		f := staticFile{content: content, compressed: map[string][]byte{}}
		for _, coding := range codings {
			var b bytes.Buffer // takes everything, so no write fails
			w := compressor(coding, &b)
			_, _ = w.Write(content)
			_ = w.Close()
			if b.Len() < len(content) {
				f.compressed[coding] = b.Bytes()
			}
		}
		all[name] = f
	})
	return all
})

// asset serves a static file. The path of another version gets the current file, which the browser must not cache.
func (*Console) asset(ec echo.Context) error {
	version, name, _ := strings.Cut(strings.TrimPrefix(ec.Request().URL.Path, staticPath), "/")
	f, ok := served()[name]
	if !ok {
		return ec.String(http.StatusNotFound, "404 page not found\n")
	}
	h := ec.Response().Header()
	for _, ofPages := range []string{"Content-Security-Policy", "Cross-Origin-Opener-Policy", "Referrer-Policy"} {
		h.Del(ofPages) // every file would carry them
	}
	if version == string(readAssets()) {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	content := f.content
	if len(f.compressed) > 0 {
		h.Set("Vary", "Accept-Encoding")
	}
	for _, coding := range codings {
		if zipped, ok := f.compressed[coding]; ok && accepts(ec.Request().Header.Get("Accept-Encoding"), coding) {
			h.Set("Content-Encoding", coding)
			content = zipped
			break
		}
	}
	return ec.Blob(http.StatusOK, mime.TypeByExtension(path.Ext(name)), content)
}

// accepts reports whether an Accept-Encoding names a coding, and not to refuse it.
func accepts(header, coding string) bool {
	for accepted := range strings.SplitSeq(header, ",") {
		name, quality, _ := strings.Cut(strings.ReplaceAll(accepted, " ", ""), ";")
		if strings.EqualFold(name, coding) {
			return quality == "" || strings.Trim(quality, "q=0.") != ""
		}
	}
	return false
}
