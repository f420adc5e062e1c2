package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"github.com/tidwall/gjson"

	"basegate/validate"
)

// Finding is a setting of a backend, or of its model, that costs something. Failure says that it makes requests fail.
type Finding struct {
	Failure bool
	Text    string
}

// versionWarning warns of a default of some versions of vLLM.
type versionWarning struct {
	from, before validate.Version // from is inclusive, before exclusive; zero: no bound
	text         string
}

var versionWarnings = []versionWarning{
	{validate.Version{}, validate.Version{Minor: 10, Patch: 1}, "this version logs every prompt unless it was started with --disable-log-requests"},
	{validate.Version{Minor: 8}, validate.Version{}, "sampling defaults come from the model's generation_config.json " +
		"unless it was started with --generation-config vllm, which the gateway cannot detect"},
}

// LaunchFindings returns the programs of the launch section that do not exist.
func (b *Backend) LaunchFindings() []Finding {
	var findings []Finding
	launch := b.cfg().Launch
	if launch == nil {
		return nil
	}
	for _, command := range [][]string{launch.Start, launch.Stop} {
		if len(command) == 0 {
			continue
		}
		if _, err := exec.LookPath(command[0]); err != nil {
			findings = append(findings, Finding{true, "launch: " + err.Error()})
		}
	}
	return slices.Compact(findings) // of one program that starts and stops
}

// WrongServer returns why the server at the address of a backend that is stopped or asleep is not the backend; empty if
// nothing listens there, or nothing is wrong.
func (b *Backend) WrongServer(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, b.settings.ProbeTimeout)
	defer cancel()
	b.mu.Lock()
	changes := b.life.changes
	b.mu.Unlock()
	e, reason, err := b.checkHealth(ctx, changes)
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return "" // what forwards the port of a container that does not run accepts connections, and ends them
	}
	if e != eventSleeping {
		return reason // empty if it serves
	}
	models, err := b.read(ctx, "/v1/models") // responds then too
	if difference, usable := b.compareServed(gjson.GetBytes(models, "data")); err == nil && !usable {
		return difference
	}
	return ""
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

// VersionFindings returns warnings of what the version of a ready backend of the model does by default, and of what its
// server cannot serve.
func (m *Model) VersionFindings(b *Backend) []Finding {
	return append(b.defaultFindings(), m.serverFindings(b)...)
}

func (b *Backend) defaultFindings() []Finding {
	version := b.VLLM()
	if !version.Known() {
		const text = "does not report vLLM's version, so best_of is emulated and vLLM's defaults are not known"
		return []Finding{{Text: text}}
	}
	var findings []Finding
	for _, w := range versionWarnings {
		if !version.Before(w.from) && (!w.before.Known() || version.Before(w.before)) {
			findings = append(findings, Finding{Text: w.text})
		}
	}
	return findings
}

// ToAnotherBackend ends a finding about requests that the server is known not to serve.
const ToAnotherBackend = " go to another backend of the model, and get 400 where there is none"

// Serves reports whether a completion like this body may be sent to the backend: its server is not known to be unable to serve
// it.
func (b *Backend) Serves(body []byte) bool {
	r, err := validate.Completion(body, validate.Limits{})
	if err != nil {
		return true
	}
	_, unserved := r.Unserved(b.Server())
	return !unserved
}

func (m *Model) serverFindings(b *Backend) (findings []Finding) {
	s := b.Server()
	if s.Rust {
		const text = "runs vLLM's Rust frontend, which takes one prompt (a string or an array of token ids) and n: 1 only"
		findings = append(findings, Finding{Text: text + "; other requests" + ToAnotherBackend})
	}
	if !s.Version.Known() {
		return findings // it is not known which fields it should have
	}
	for _, request := range []struct {
		name   string
		served bool
		fields []string
	}{{"completions", m.Completions(), s.Undescribed(false)}, {"chat completions", m.Chat(), s.Undescribed(true)}} {
		if request.served && len(request.fields) > 0 {
			text := fmt.Sprintf("its /openapi.json has no %s of %s, which %s should have", strings.Join(request.fields, ", "), request.name, s)
			findings = append(findings, Finding{Text: text + "; requests with them" + ToAnotherBackend})
		}
	}
	return findings
}

// TokenizerKnown reports whether the backend's /tokenize has answered since the server was configured.
func (b *Backend) TokenizerKnown() bool { return b.info.Load().specialKnown }
