package docs_test

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"strings"
	"testing"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

// markdownFiles returns the pages whose links are checked, by their path from the repository's root.
func markdownFiles(t *testing.T, root fs.FS) []string {
	t.Helper()
	files := []string{"README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "mockvllm/README.md"}
	err := fs.WalkDir(root, "docs", func(file string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(file, ".md") {
			files = append(files, file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// document is a parsed Markdown file.
type document struct {
	links   []string
	anchors map[string]bool
}

func parseDocument(t *testing.T, root fs.FS, file string) document {
	t.Helper()
	source, err := fs.ReadFile(root, file)
	if err != nil {
		t.Fatal(err)
	}
	d := document{anchors: map[string]bool{}}
	tree := goldmark.New(goldmark.WithExtensions(extension.Table)).Parser().Parse(text.NewReader(source))
	err = ast.Walk(tree, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := node.(type) {
		case *ast.Link:
			d.links = append(d.links, string(n.Destination))
		case *ast.Image:
			d.links = append(d.links, string(n.Destination))
		case *ast.Heading:
			d.addAnchor(headingText(n, source))
		}
		return ast.WalkContinue, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// addAnchor adds the anchor that a forge gives a heading: letters in lower case, digits, - and _, and a dash for each
// space. A repeated heading gets a number.
func (d document) addAnchor(heading string) {
	var b strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_':
			b.WriteRune(r)
		case r == ' ':
			b.WriteByte('-')
		}
	}
	anchor := b.String()
	for n := 1; d.anchors[anchor]; n++ {
		anchor = fmt.Sprintf("%s-%d", b.String(), n)
	}
	d.anchors[anchor] = true
}

func headingText(node ast.Node, source []byte) string {
	var b strings.Builder
	for child := node.FirstChild(); child != nil; child = child.NextSibling() {
		if leaf, ok := child.(*ast.Text); ok {
			b.Write(leaf.Segment.Value(source))
		} else {
			b.WriteString(headingText(child, source))
		}
	}
	return b.String()
}

// resolve returns an error if a link from a page has no target.
func resolve(root fs.FS, documents map[string]document, page, link string) error {
	target, err := url.Parse(link)
	if err != nil {
		return fmt.Errorf("not a URL: %w", err)
	}
	if target.IsAbs() || strings.HasPrefix(target.Path, "/") {
		return nil // another site, or a page of the console
	}
	file := page
	if target.Path != "" {
		file = path.Join(path.Dir(page), target.Path)
	}
	if _, err := fs.Stat(root, file); err != nil {
		return fmt.Errorf("find target: %w", err)
	}
	if target.Fragment == "" {
		return nil
	}
	if d, ok := documents[file]; !ok || !d.anchors[target.Fragment] {
		return fmt.Errorf("%s has no anchor #%s", file, target.Fragment)
	}
	return nil
}

func TestRelativeLinksResolve(t *testing.T) {
	root := os.DirFS("..")
	documents := map[string]document{}
	for _, file := range markdownFiles(t, root) {
		documents[file] = parseDocument(t, root, file)
	}
	links := 0
	for file, d := range documents {
		links += len(d.links)
		for _, link := range d.links {
			if err := resolve(root, documents, file, link); err != nil {
				t.Errorf("%s: link %s: %v", file, link, err)
			}
		}
	}
	if links < 100 {
		t.Errorf("found %d links in %d pages, want at least 100", links, len(documents))
	}
}
