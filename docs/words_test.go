package docs_test

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// maxWords is how many words somebody has to keep true.
const maxWords = 50_000

func TestDocumentsAreNotTooLong(t *testing.T) {
	root := os.DirFS("..")
	words := 0
	for _, file := range markdownFiles(t, root) {
		if slices.Contains([]string{"CHANGELOG.md", "mockvllm/README.md"}, file) {
			continue
		}
		text, err := os.ReadFile("../" + file)
		if err != nil {
			t.Fatal(err)
		}
		words += len(strings.Fields(string(text)))
	}
	if words > maxWords {
		t.Errorf("README, SECURITY, CONTRIBUTING and docs have %d words, want at most %d", words, maxWords)
	}
}
