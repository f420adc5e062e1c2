package fleet

import (
	"cmp"
	"fmt"
	"os/exec"
)

// Finding is a setting of a backend, or of its model, that costs something. Failure says that it makes requests fail.
type Finding struct {
	Failure bool
	Text    string
}

// versionWarning warns of a default of some versions of vLLM.
type versionWarning struct {
	from, before [2]int // X and Y of 0.X.Y; from is inclusive, before exclusive
	text         string
}

var versionWarnings = []versionWarning{
	{[2]int{0, 0}, [2]int{10, 1}, "this version logs every prompt unless it was started with --disable-log-requests"},
	{[2]int{8, 0}, [2]int{1 << 20, 0}, "sampling defaults come from the model's generation_config.json " +
		"unless it was started with --generation-config vllm, which the gateway cannot detect"},
}

// LaunchFindings returns the programs of the launch section that do not exist.
func (b *Backend) LaunchFindings() []Finding {
	var findings []Finding
	for _, program := range b.LaunchPrograms() {
		if _, err := exec.LookPath(program); err != nil {
			findings = append(findings, Finding{true, "launch: " + err.Error()})
		}
	}
	return findings
}

// ServedFindings returns what is wrong with the context and the checkpoint that a ready backend of the model serves.
func (m *Model) ServedFindings(b *Backend) []Finding {
	length := b.MaxModelLen()
	if length > 0 && length < m.MaxModelLen() {
		return []Finding{{true, fmt.Sprintf("serves %s with a context of %d tokens, but max_model_len is %d: "+
			"vLLM lowers max_tokens of longer requests without saying so, or fails", m.Checkpoint(), length, m.MaxModelLen())}}
	}
	var findings []Finding
	if m.MaxModelLen() == 0 {
		const text = "does not report its context, and max_model_len is not set, so vLLM alone refuses requests that are too long"
		findings = append(findings, Finding{Text: text})
	}
	if difference := b.Mismatch(); difference != "" {
		findings = append(findings, Finding{Text: difference})
	}
	return findings
}

// VersionFindings returns warnings of what the version of a ready backend does by default.
func (b *Backend) VersionFindings() []Finding {
	var minor [2]int
	if _, err := fmt.Sscanf(b.Version(), "0.%d.%d", &minor[0], &minor[1]); err != nil {
		const text = "does not report vLLM's version, so best_of is emulated and vLLM's defaults are not known"
		return []Finding{{Text: text}}
	}
	var findings []Finding
	for _, w := range versionWarnings {
		if !less(minor, w.from) && less(minor, w.before) {
			findings = append(findings, Finding{Text: w.text})
		}
	}
	return findings
}

func less(a, b [2]int) bool { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) < 0 }

// TokenizerKnown reports whether the backend's /tokenize has answered since the server was configured.
func (b *Backend) TokenizerKnown() bool { return b.info.Load().specialKnown }
