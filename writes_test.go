package main_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// writeFuncs are the functions that pass a closure to package database, which may run it after its caller has returned.
var writeFuncs = map[string]bool{"write": true, "WriteGrouped": true, "WriteExclusive": true, "Enqueue": true, "Submit": true}

// A closure that assigns a named result of its function does so while the function returns, or afterwards, if the context has
// ended: the result is torn, or an error becomes nil.
func TestWritesAssignNoNamedResults(t *testing.T) {
	found, err := assignedResults(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		t.Error(f)
	}
}

func TestAssignedResultsAreFound(t *testing.T) {
	const head = "package p\n\nfunc (s *store) f() (n int, err error) {\n"
	found, err := assignedResults(fstest.MapFS{
		"bad.go":    {Data: []byte(head + "err = s.write(func(tx int) error {\n_, err = tx, nil\nn++\nreturn nil\n})\nreturn n, err\n}\n")},
		"shadow.go": {Data: []byte(head + "err = s.write(func(tx int) (err error) {\nerr = nil\nn := 1\nn = 2\nreturn err\n})\nreturn\n}\n")},
		"other.go":  {Data: []byte(head + "err = s.read(func() { n = 1 })\nreturn\n}\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"bad.go:5: a write assigns the named result err", "bad.go:6: a write assigns the named result n"}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Error(diff)
	}
}

// assignedResults lists the assignments of named results in closures that are passed to writeFuncs.
func assignedResults(root fs.FS) (found []string, err error) {
	files := token.NewFileSet()
	err = eachGoFile(root, func(path string) error {
		if strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := fs.ReadFile(root, path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Body == nil || f.Type.Results == nil {
				continue
			}
			results := declared(f.Type.Results)
			for _, closure := range writeClosures(f.Body) {
				for _, id := range assigned(closure) {
					if results[id.Name] {
						found = append(found, fmt.Sprintf("%s:%d: a write assigns the named result %s", path, files.Position(id.Pos()).Line, id.Name))
					}
				}
			}
		}
		return nil
	})
	return found, err
}

// declared returns the names of parameters or results.
func declared(fields *ast.FieldList) map[string]bool {
	names := map[string]bool{}
	if fields == nil {
		return names
	}
	for _, field := range fields.List {
		for _, name := range field.Names {
			names[name.Name] = true
		}
	}
	return names
}

func writeClosures(body *ast.BlockStmt) (closures []*ast.FuncLit) {
	ast.Inspect(body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if called, ok := call.Fun.(*ast.SelectorExpr); ok && writeFuncs[called.Sel.Name] {
			for _, arg := range call.Args {
				if closure, ok := arg.(*ast.FuncLit); ok {
					closures = append(closures, closure)
				}
			}
		}
		return true
	})
	return closures
}

// assigned returns what a closure assigns, except variables whose names it declares anywhere.
func assigned(closure *ast.FuncLit) (all []*ast.Ident) {
	own := declared(closure.Type.Params)
	maps.Copy(own, declared(closure.Type.Results))
	ast.Inspect(closure.Body, func(n ast.Node) bool {
		switch s := n.(type) {
		case *ast.AssignStmt:
			for _, to := range s.Lhs {
				if id, ok := to.(*ast.Ident); ok {
					if s.Tok == token.DEFINE {
						own[id.Name] = true
					}
					all = append(all, id)
				}
			}
		case *ast.IncDecStmt:
			if id, ok := s.X.(*ast.Ident); ok {
				all = append(all, id)
			}
		case *ast.ValueSpec:
			for _, id := range s.Names {
				own[id.Name] = true
			}
		}
		return true
	})
	return slices.DeleteFunc(all, func(id *ast.Ident) bool { return own[id.Name] })
}
