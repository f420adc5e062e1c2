package console

import (
	"regexp"
	"testing"

	apierr "basegate/errors"
)

func TestEveryErrorHasSentencesOfTheConsolesOwn(t *testing.T) {
	for _, code := range apierr.Codes() {
		if w := errorTable[code]; w.Action == "" && !w.Retry {
			t.Errorf("%s has no action", code)
		}
	}
	sentences := regexp.MustCompile(`^[A-Z].*\.$`)
	for code, w := range errorTable {
		if got := w.String(); w.Text == "" || !sentences.MatchString(got) || w.Retry && w.Action != "" {
			t.Errorf("%s: got %q, want sentences", code, got)
		}
	}
}
