package batch

import (
	"bytes"
	"io"
	"slices"

	"github.com/tidwall/gjson"
)

// EndpointOf returns the endpoint that the first line of an input file names, or that of completions if it names none, and a
// reader of the whole file. A line may have up to maxLine bytes.
func EndpointOf(file io.Reader, maxLine int64) (endpoint string, whole io.Reader) {
	var head bytes.Buffer
	line, _, err := newLineScanner(io.TeeReader(file, &head), maxLine).next()
	whole = io.MultiReader(&head, file) // which returns an error of the file again
	if url := gjson.GetBytes(line, "url").Str; err == nil && slices.Contains(endpoints, url) {
		return url, whole
	}
	return endpoints[0], whole
}
