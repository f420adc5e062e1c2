package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
	"sync"

	"github.com/evanw/esbuild/pkg/api"
	"github.com/labstack/echo/v4"
)

//go:embed static
var staticFiles embed.FS

const staticPath = "/static/"

// assets is a digest of all static files. It is part of their URLs, so that a browser may cache them for a year and still
// loads the new ones after an upgrade, including those that a script imports by a relative path.
type assets string

func readAssets() assets {
	sum := sha256.New()
	eachStaticFile(func(name string, content []byte) {
		sum.Write([]byte(name))
		sum.Write(content)
	})
	return assets(hex.EncodeToString(sum.Sum(nil))[:12])
}

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
	content []byte
	zipped  []byte // with gzip; nil if that is not smaller
}

// served returns the static files by their names. Scripts and style sheets are minified.
var served = sync.OnceValue(func() map[string]staticFile {
	all := map[string]staticFile{}
	eachStaticFile(func(name string, content []byte) {
		if ext := path.Ext(name); ext == ".js" || ext == ".css" {
			content = build(name)
		}
		f := staticFile{content: content}
		var b bytes.Buffer
		w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // the level is valid, and a buffer takes everything
		_, _ = w.Write(content)
		_ = w.Close()
		if b.Len() < len(content) {
			f.zipped = b.Bytes()
		}
		all[name] = f
	})
	return all
})

// asset serves a static file. The path of another version gets the current file, which the browser must not cache.
func (c *Console) asset(ec echo.Context) error {
	version, name, _ := strings.Cut(strings.TrimPrefix(ec.Request().URL.Path, staticPath), "/")
	f, ok := served()[name]
	if !ok {
		return ec.String(http.StatusNotFound, "404 page not found\n")
	}
	h := ec.Response().Header()
	for _, ofPages := range []string{"Content-Security-Policy", "Cross-Origin-Opener-Policy", "Referrer-Policy"} {
		h.Del(ofPages) // every file would carry them
	}
	if version == string(c.assets) {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	content := f.content
	if f.zipped != nil {
		h.Set("Vary", "Accept-Encoding")
		if acceptsGzip(ec.Request().Header.Get("Accept-Encoding")) {
			h.Set("Content-Encoding", "gzip")
			content = f.zipped
		}
	}
	return ec.Blob(http.StatusOK, mime.TypeByExtension(path.Ext(name)), content)
}

// acceptsGzip reports whether an Accept-Encoding names gzip, and not to refuse it.
func acceptsGzip(header string) bool {
	for coding := range strings.SplitSeq(header, ",") {
		name, quality, _ := strings.Cut(strings.ReplaceAll(coding, " ", ""), ";")
		if strings.EqualFold(name, "gzip") {
			return quality == "" || strings.Trim(quality, "q=0.") != ""
		}
	}
	return false
}
