package fleet

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tidwall/gjson"
	"go.uber.org/zap"
)

// mismatch is a difference between the checkpoint of the configuration and what a backend serves. Backend.mu guards it.
type mismatch struct {
	text   string // of the last probe; empty if there is no difference, or the backend did not answer
	logged string // the last one that was logged; empty after a probe that found no difference
}

// Mismatch describes how what the backend serves differs from the checkpoint of the configuration; empty if it does not, or if the
// last probe could not find out. With a mismatch it is ready only if the checkpoint's name is listed and no root is configured.
func (b *Backend) Mismatch() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mismatch.text
}

// setMismatch records what a response of /v1/models shows, and logs each change once.
func (b *Backend) setMismatch(text string, usable bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mismatch.text = text
	if text == b.mismatch.logged {
		return
	}
	b.mismatch.logged = text
	if text == "" {
		b.log.Info("the backend serves the configured checkpoint again")
		return
	}
	level := zap.ErrorLevel
	if usable {
		level = zap.WarnLevel
	}
	b.log.Log(level, "the backend serves another checkpoint than the configured one", zap.String("difference", text))
}

// forgetMismatch records that the backend did not say what it serves.
func (b *Backend) forgetMismatch() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mismatch.text = ""
}

// compareServed compares the list of /v1/models with the configuration. usable says that requests can be sent all the
// same: a root that is not configured may be a mirror or another name of the same weights.
func (b *Backend) compareServed(models gjson.Result) (difference string, usable bool) {
	listed := models.Array()
	i := slices.IndexFunc(listed, func(m gjson.Result) bool { return m.Get("id").Str == b.checkpoint })
	if i < 0 {
		return fmt.Sprintf(listsOthers+"%s and not %s", models.Get("#.id").String(), b.checkpoint), false
	}
	root := listed[i].Get("root").Str
	switch {
	case root == "":
		return "", true
	case b.root != "" && root != b.root:
		return fmt.Sprintf(servesOther+"%s from %s, but root is %s", b.checkpoint, root, b.root), false
	case b.root == "" && isHubName(root) && isHubName(b.checkpoint) && !strings.EqualFold(root, b.checkpoint):
		return fmt.Sprintf("it serves %s from %s; if these are the same weights, set root: %s", b.checkpoint, root, root), true
	default:
		return "", true
	}
}

// isHubName reports whether a name is OWNER/NAME of a model hub, and not a path or another name.
func isHubName(name string) bool {
	owner, rest, ok := strings.Cut(name, "/")
	return ok && owner != "" && rest != "" && !strings.ContainsAny(rest, "/\\") && !strings.ContainsAny(owner, ".~\\:")
}
