package docs_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	apierr "basegate/errors"
)

func TestErrorPagesListEveryCode(t *testing.T) {
	for _, page := range []string{"errors.md", "api.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, code := range apierr.Codes() {
			if !strings.Contains(string(text), fmt.Sprintf("`%s`", code)) {
				t.Errorf("%s does not mention %s", page, code)
			}
		}
	}
	text, err := os.ReadFile("errors.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range apierr.Codes() {
		if row := fmt.Sprintf("| `%s` | %d |", code, code.Status()); !strings.Contains(string(text), row) {
			t.Errorf("errors.md has no row that begins with %q", row)
		}
	}
}
