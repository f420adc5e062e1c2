package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

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
	err := fs.WalkDir(staticFiles, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := staticFiles.ReadFile(name)
		sum.Write([]byte(name))
		sum.Write(content)
		return err
	})
	if err != nil { // impossible: the files are embedded
		panic("read static files: " + err.Error())
	}
	return assets(hex.EncodeToString(sum.Sum(nil))[:12])
}

// url returns the path of a file.
func (a assets) url(name string) string { return staticPath + string(a) + "/" + name }

// moduleImports matches the imports of a script: each module names the others by relative paths.
var moduleImports = regexp.MustCompile(`(?m)^(?:import|export)\b.* from "(\.[^"]+)";`)

// modules returns the URLs of a module and of all that it imports, so that a page can load them at once and not one after another.
func (a assets) modules(name string) []string {
	names := []string{name}
	for i := 0; i < len(names); i++ {
		content, err := staticFiles.ReadFile("static/" + names[i])
		if err != nil { // impossible: templates and modules name files that are embedded
			panic("read module: " + err.Error())
		}
		for _, found := range moduleImports.FindAllSubmatch(content, -1) {
			if imported := path.Join(path.Dir(names[i]), string(found[1])); !slices.Contains(names, imported) {
				names = append(names, imported)
			}
		}
	}
	for i := range names {
		names[i] = a.url(names[i])
	}
	return names
}

// staticFile is a file as it is served.
type staticFile struct {
	content []byte
	zipped  []byte // with gzip; nil if that is not smaller
}

// commentLines matches the lines of a script that are comments. The texts of the console's scripts have no such line.
var commentLines = regexp.MustCompile(`(?m)^\s*//.*\n`)

// served returns the static files by their names. Scripts of the console are served without their comments.
var served = sync.OnceValue(func() map[string]staticFile {
	all := map[string]staticFile{}
	err := fs.WalkDir(staticFiles, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := staticFiles.ReadFile(name)
		if err != nil {
			return err
		}
		if path.Ext(name) == ".js" && !strings.Contains(name, "/vendor/") {
			content = commentLines.ReplaceAll(content, nil)
		}
		f := staticFile{content: content}
		var b bytes.Buffer
		w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // the level is valid, and a buffer takes everything
		_, _ = w.Write(content)
		_ = w.Close()
		if b.Len() < len(content) {
			f.zipped = b.Bytes()
		}
		all[strings.TrimPrefix(name, "static/")] = f
		return nil
	})
	if err != nil { // impossible: the files are embedded
		panic("compress static files: " + err.Error())
	}
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
		h.Del(ofPages) // sixty modules would carry them
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
