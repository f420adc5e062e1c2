package console

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"

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

// asset serves a static file. The path of another version gets the current file, which the browser must not cache.
func (c *Console) asset(ec echo.Context) error {
	version, name, _ := strings.Cut(strings.TrimPrefix(ec.Request().URL.Path, staticPath), "/")
	content, err := staticFiles.ReadFile("static/" + name)
	if err != nil {
		return ec.String(http.StatusNotFound, "404 page not found\n")
	}
	if version == string(c.assets) {
		ec.Response().Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	return ec.Blob(http.StatusOK, mime.TypeByExtension(path.Ext(name)), content)
}
