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
)

//go:embed static
var staticFiles embed.FS

const staticPath = "/static/"

// assets are the files that pages load. Their addresses hold a digest of them all, so that a browser keeps them for good
// and yet has the new ones with a new version, those included that a script imports from beside it.
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
	if err != nil { // cannot be: the files are in the program
		panic("read static files: " + err.Error())
	}
	a.version = hex.EncodeToString(sum.Sum(nil))[:12]
	return a
}

// url is the address of a file.
func (a assets) url(name string) string { return staticPath + a.version + "/" + name }

// ServeHTTP serves a file. Of another version's address it serves the present file, which a browser is not to keep.
func (a assets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	version, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, staticPath), "/")
	content, ok := a.files[name]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", mime.TypeByExtension(path.Ext(name)))
	if version == a.version {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	_, _ = w.Write(content) // whoever does not read it to the end has gone
}
