package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"regexp"
	"strings"
	"sync"

	"github.com/labstack/echo/v4"
	"github.com/tdewolff/minify/v2"
	"github.com/tdewolff/minify/v2/css"
	"github.com/tdewolff/minify/v2/js"
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

// url returns the path of a file.
func (a assets) url(name string) string { return staticPath + string(a) + "/" + name }

// pageScript is the name of a script that is served as one with the modules of its folder and those of vendor/.
const pageScript = "page.js"

// The statements of a module that join replaces. Each is a line.
var (
	importLine = regexp.MustCompile(`(?m)^import (?:\* as ([\w$]+)|(\{.*\})|([\w$]+)) from ['"](\.[^'"]+)['"];$`)
	exportLine = regexp.MustCompile(`(?m)^export (?:(default )?((?:async )?function|class|const) ([\w$]+)|\{(.*)\};$)`)
)

// joined is a script that is made of modules.
type joined struct {
	folder string            // of the modules; those elsewhere, which other scripts import too, are imported
	names  map[string]string // the constants with what the modules export, by the modules' names
	script bytes.Buffer
}

// join returns a module, which exports nothing, and those that it imports as one: functions that return what they export, in the
// order of their imports.
func join(name string, content []byte) []byte {
	j := joined{folder: path.Dir(name) + "/", names: map[string]string{}}
	body, _ := j.withoutImports(name, string(content))
	return fmt.Appendf(j.script.Bytes(), "{\n%s}\n", body)
}

// add adds a module, and returns the constant with what it exports.
func (j *joined) add(name string) string {
	if constant, ok := j.names[name]; ok {
		return constant
	}
	constant := fmt.Sprintf("module%d", len(j.names))
	j.names[name] = constant
	if !strings.HasPrefix(name, j.folder) && !strings.HasPrefix(name, "vendor/") {
		fmt.Fprintf(&j.script, "import * as %s from \"../%s\";\n", constant, name)
		return constant
	}
	content, err := staticFiles.ReadFile("static/" + name)
	if err != nil { // impossible: modules name files that are embedded
		panic("read module: " + err.Error())
	}
	body, exports := j.withoutImports(name, string(content))
	fmt.Fprintf(&j.script, "const %s = (() => {\n%s\nreturn {%s};\n})();\n", constant, body, strings.Join(exports, ", "))
	return constant
}

// withoutImports returns a module without its imports and exports, and what it exports.
func (j *joined) withoutImports(name, body string) (_ string, exports []string) {
	body = importLine.ReplaceAllStringFunc(body, func(line string) string {
		m := importLine.FindStringSubmatch(line)
		constant := j.add(path.Join(path.Dir(name), m[4]))
		switch {
		case m[1] != "":
			return "const " + m[1] + " = " + constant + ";"
		case m[3] != "":
			return "const " + m[3] + " = " + constant + ".default;"
		}
		return "const " + strings.ReplaceAll(m[2], " as ", ": ") + " = " + constant + ";"
	})
	body = exportLine.ReplaceAllStringFunc(body, func(line string) string {
		m := exportLine.FindStringSubmatch(line)
		switch {
		case m[1] != "":
			exports = append(exports, "default: "+m[3])
		case m[3] != "":
			exports = append(exports, m[3])
		default:
			exports = append(exports, m[4])
			return ""
		}
		return m[2] + " " + m[3]
	})
	return body, exports
}

// staticFile is a file as it is served.
type staticFile struct {
	content []byte
	zipped  []byte // with gzip; nil if that is not smaller
}

// served returns the static files by their names. Scripts and style sheets are minified.
var served = sync.OnceValue(func() map[string]staticFile {
	m := minify.New()
	m.AddFunc(".css", css.Minify)
	m.AddFunc(".js", js.Minify)
	all := map[string]staticFile{}
	eachStaticFile(func(name string, content []byte) {
		if path.Base(name) == pageScript {
			content = join(name, content)
		}
		if minified, err := m.Bytes(path.Ext(name), content); err == nil {
			content = minified
		} else if !errors.Is(err, minify.ErrNotExist) { // impossible: a test requests a file, which minifies all
			panic("minify " + name + ": " + err.Error())
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
