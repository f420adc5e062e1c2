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

// assets are the static files that pages load. Their URLs contain a digest of all of them, so that a browser may cache
// them for a year and still loads the new ones after an upgrade, including those that a script imports by a relative
// path.
type assets struct {
	files   map[string][]byte
	version string
}

func readAssets() assets {
	a := assets{files: map[string][]byte{}}
	sum := sha256.New()
	root, err := fs.Sub(staticFiles, "static")
	if err == nil {
		err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			content, err := fs.ReadFile(root, name)
			if err != nil {
				return err
			}
			a.files[name] = content
			sum.Write([]byte(name))
			sum.Write(content)
			return nil
		})
	}
	if err != nil { // impossible: the files are embedded
		panic("read static files: " + err.Error())
	}
	a.version = hex.EncodeToString(sum.Sum(nil))[:12]
	return a
}

// url returns the path of a file.
func (a assets) url(name string) string { return staticPath + a.version + "/" + name }

// asset serves a static file. The path of another version gets the current file, which the browser must not cache.
func (c *Console) asset(ec echo.Context) error {
	version, name, _ := strings.Cut(strings.TrimPrefix(ec.Request().URL.Path, staticPath), "/")
	content, ok := c.assets.files[name]
	if !ok {
		http.NotFound(ec.Response(), ec.Request())
		return nil
	}
	if version == c.assets.version {
		ec.Response().Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	_ = ec.Blob(http.StatusOK, mime.TypeByExtension(path.Ext(name)), content) // fails only if the client has disconnected
	return nil
}
