// Package launch_test runs the scripts of this folder with stand-ins for the programs that they call.
package launch_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// standIns are programs that write their arguments to a log and keep what they have started in files.
var standIns = map[string]string{
	// A job waits at the first look, and runs at the next ones.
	"sbatch":  `[ ! -e broken ] || { echo "sbatch: error: no such partition" >&2; exit 1; }; echo PENDING >job; echo "Submitted batch job 7"`,
	"squeue":  `[ -e job ] || exit 0; cat job | sed 's/$/ node3/'; [ ! -e dies ] && echo RUNNING >job || rm job`,
	"scancel": `rm -f job`,
	"kubectl": `case $* in
		*resourceVersion}) cat version ;;
		*basegate-fence}) cat fence 2>/dev/null || true ;;
		patch*)
			[ ! -e broken ] || { echo "error: forbidden" >&2; exit 1; }
			if [ -e conflict ]; then rm conflict; echo changed >version; echo "error: the object has been modified" >&2; exit 1; fi
			echo "$*" | grep -q "\"resourceVersion\":\"$(cat version)\"" || exit 1
			echo "$*" | sed 's/.*basegate-fence":"\([0-9]*\).*/\1/' >fence
			echo "$*" | sed 's/.*replicas":\([0-9]*\).*/\1/' >replicas ;;
		"rollout status"*) [ "$(cat replicas)" = 1 ] ;;
		esac`,
	"sky": `case $* in
		*--endpoint*) echo 10.0.0.9:8000 ;;
		status*) [ ! -e up ] || echo "llama  1x A100  UP" ;;
		launch*) [ ! -e broken ] || { echo "no GPU is free" >&2; exit 1; }; touch up; [ ! -e overtaken ] || echo 99 >state/llama.fence ;;
		down*) rm -f up ;;
		esac`,
	"modal": `case $* in
		deploy*) [ ! -e broken ] || { echo "no such app"; exit 1; }; touch up; echo "Created web => https://lab--llama.modal.run"; [ ! -e overtaken ] || echo 99 >state/llama.fence ;;
		"app stop"*) rm -f up ;;
		esac`,
	// The other machine is this one, with another home.
	"ssh": `while [ "$1" = -o ]; do shift 2; done; [ ! -e broken ] || { echo "no route to host" >&2; exit 255; }
		shift; HOME=$PWD/remote exec sh -c "$*"`,
}

type place struct {
	t       *testing.T
	dir     string
	replica string // empty: the model has one server
}

func newPlace(t *testing.T) *place {
	t.Helper()
	p := &place{t: t, dir: t.TempDir()}
	for name, text := range standIns {
		p.write("bin/"+name, "#!/bin/sh\nset -eu\ncd "+p.dir+"\necho "+name+` "$*" >>calls`+"\n"+text+"\n", 0o755)
	}
	p.write("version", "41\n", 0o644)
	p.write("remote/run it", "#!/bin/sh\necho \"$BASEGATE_REPLICA\" >\"$HOME/replica\"\necho \"$1\" >\"$HOME/argument\"\necho up\nexec sleep 100\n", 0o755)
	return p
}

func (p *place) write(name, text string, mode os.FileMode) {
	p.t.Helper()
	file := filepath.Join(p.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), mode); err != nil {
		p.t.Fatal(err)
	}
}

func (p *place) exists(name string) bool {
	_, err := os.Stat(filepath.Join(p.dir, name))
	return err == nil
}

func (p *place) read(name string) string {
	text, err := os.ReadFile(filepath.Join(p.dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// calls returns how often a program was called with arguments that begin so.
func (p *place) calls(prefix string) (n int) {
	for line := range strings.Lines(p.read("calls")) {
		if strings.HasPrefix(line, prefix) {
			n++
		}
	}
	return n
}

// run runs a script with a fence, and returns the last line of its output, and whether it has succeeded.
func (p *place) run(fence int, script string, args ...string) (last string, ok bool) {
	p.t.Helper()
	path, err := filepath.Abs(script)
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), "PATH="+p.dir+"/bin:"+os.Getenv("PATH"), "BASEGATE_LAUNCH_STATE="+p.dir+"/state",
		"BASEGATE_LAUNCH_POLL=0.01", fmt.Sprint("BASEGATE_FENCE=", fence))
	if p.replica != "" {
		cmd.Env = append(cmd.Env, "BASEGATE_REPLICA="+p.replica)
	}
	output, err := cmd.CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	return lines[len(lines)-1], err == nil
}

// A script starts a model once and says where it is, stops it, says why it cannot, and does nothing that a newer one has undone.
func TestScriptsStartAndStopAModel(t *testing.T) {
	for _, c := range []struct {
		script      string
		start, stop []string
		url         string            // that a start prints last
		up          func(*place) bool // the model has been started
		begin       string            // the call that starts it, once
		failure     string            // what a failed start prints last
	}{
		{"slurm.sh", []string{"llama.sbatch"}, nil, "url=http://node3:8000", func(p *place) bool { return p.exists("job") }, "sbatch", "sbatch: error: no such partition"},
		{
			"kubernetes.sh", nil, nil, "", func(p *place) bool { return p.read("replicas") == "1" }, "",
			"the deployment llama could not be scaled to 1",
		},
		{"skypilot.sh", []string{"llama.yaml"}, nil, "url=http://10.0.0.9:8000", func(p *place) bool { return p.exists("up") }, "sky launch", "no GPU is free"},
		{"modal.sh", []string{"llama.py"}, nil, "url=https://lab--llama.modal.run", func(p *place) bool { return p.exists("up") }, "", "no such app"},
		{
			"ssh.sh",
			[]string{"me@gpu9", "8000", "./run it", "it's"},
			[]string{"me@gpu9"},
			"url=http://gpu9:8000",
			func(p *place) bool { return p.exists("remote/.basegate-launch/llama.pid") }, "", "no route to host",
		},
	} {
		t.Run(c.script, func(t *testing.T) {
			p := newPlace(t)
			start, stop := append([]string{"start", "llama"}, c.start...), append([]string{"stop", "llama"}, c.stop...)
			t.Cleanup(func() { p.run(1000, c.script, stop...) })
			p.write("broken", "", 0o644)
			if last, ok := p.run(1, c.script, start...); ok || last != c.failure {
				t.Errorf("a start that fails: got %q, %v, want %q", last, ok, c.failure)
			}
			os.Remove(filepath.Join(p.dir, "broken"))
			for fence := 2; fence <= 3; fence++ {
				if last, ok := p.run(fence, c.script, start...); !ok || c.url != "" && last != c.url || !c.up(p) {
					t.Fatalf("start %d: got %q, %v, up: %v, want %q", fence, last, ok, c.up(p), c.url)
				}
			}
			if n := p.calls(c.begin); c.begin != "" && n != 2 { // the failed one too
				t.Errorf("%s was called %d times, want once after the failure", c.begin, n)
			}
			if last, ok := p.run(2, c.script, stop...); ok || last != "fence 2 is too old: 3 has been here" || !c.up(p) {
				t.Errorf("a stop with an old fence: got %q, %v, up: %v", last, ok, c.up(p))
			}
			for fence := 5; fence <= 6; fence++ {
				if last, ok := p.run(fence, c.script, stop...); !ok || c.up(p) {
					t.Errorf("stop %d: got %q, %v, up: %v", fence, last, ok, c.up(p))
				}
			}
			if last, ok := p.run(4, c.script, start...); ok || last != "fence 4 is too old: 6 has been here" || c.up(p) {
				t.Errorf("a start with an old fence: got %q, %v, up: %v", last, ok, c.up(p))
			}
			if last, ok := p.run(7, c.script, "restart", "llama", "x", "y", "z"); ok || last != "start or stop, not restart" {
				t.Errorf("an unknown action: got %q, %v", last, ok)
			}
		})
	}
}

// The first replica keeps the name, so that a model that gets more stays where it is.
func TestReplicasHaveNamesOfTheirOwn(t *testing.T) {
	for _, c := range []struct {
		script     string
		args       []string // of a start
		host       []string // of a stop
		call, undo string   // what the start and the stop call, with the name
		urls       [2]string
	}{
		{"slurm.sh", []string{"llama.sbatch"}, nil, "sbatch --job-name %s ", "scancel --me --name %s\n", [2]string{"url=http://node3:8000", "url=http://node3:8001"}},
		{"kubernetes.sh", nil, nil, "kubectl patch deployment %s ", "kubectl patch deployment %s ", [2]string{"", "url=http://llama-2:8000"}},
		{"skypilot.sh", []string{"llama.yaml"}, nil, "sky launch --yes --detach-run --cluster %s ", "sky down --yes %s\n", [2]string{"url=http://10.0.0.9:8000", "url=http://10.0.0.9:8000"}},
		{"modal.sh", []string{"llama.py"}, nil, "modal deploy --name %s ", "modal app stop %s\n", [2]string{"url=https://lab--llama.modal.run", "url=https://lab--llama.modal.run"}},
		{"ssh.sh", []string{"gpu9", "8000", "./run it", "x"}, []string{"gpu9"}, "", "", [2]string{"url=http://gpu9:8000", "url=http://gpu9:8001"}},
	} {
		t.Run(c.script, func(t *testing.T) {
			for i, name := range []string{"llama", "llama-2"} {
				p := newPlace(t)
				p.replica = fmt.Sprint(i + 1)
				start, stop := append([]string{"start", "llama"}, c.args...), append([]string{"stop", "llama"}, c.host...)
				t.Cleanup(func() { p.run(9, c.script, stop...) })
				if last, ok := p.run(1, c.script, start...); !ok || c.urls[i] != "" && last != c.urls[i] {
					t.Errorf("replica %d: the start says %q, %v, want %q", i+1, last, ok, c.urls[i])
				}
				if c.script == "ssh.sh" {
					for p.read("remote/replica") != p.replica { // until the test's own limit
						if !p.exists("remote/.basegate-launch/" + name + ".pid") {
							t.Fatalf("replica %d has another name than %s", i+1, name)
						}
					}
					continue
				}
				if last, ok := p.run(2, c.script, stop...); !ok {
					t.Errorf("replica %d: the stop says %q", i+1, last)
				}
				for _, call := range []string{c.call, c.undo} {
					if want := fmt.Sprintf(call, name); !strings.Contains(p.read("calls")+"\n", want) {
						t.Errorf("replica %d: %q is not among the calls\n%s", i+1, want, p.read("calls"))
					}
				}
			}
		})
	}
}

func TestJobThatEndsBeforeItRunsFailsTheStart(t *testing.T) {
	p := newPlace(t)
	p.write("dies", "", 0o644)
	if last, ok := p.run(1, "slurm.sh", "start", "llama", "llama.sbatch"); ok || last != "the job llama has ended: see its output" {
		t.Errorf("got %q, %v", last, ok)
	}
}

func TestConflictingChangeOfTheDeploymentIsRetried(t *testing.T) {
	p := newPlace(t)
	p.write("conflict", "", 0o644)
	if last, ok := p.run(1, "kubernetes.sh", "start", "llama"); !ok || p.read("replicas") != "1" {
		t.Errorf("got %q, %v and %s replicas", last, ok, p.read("replicas"))
	}
}

// A start takes minutes. If a stop comes meanwhile, nothing stays.
func TestStartThatIsOvertakenUndoesItself(t *testing.T) {
	for script, file := range map[string]string{"skypilot.sh": "llama.yaml", "modal.sh": "llama.py"} {
		p := newPlace(t)
		p.write("overtaken", "", 0o644)
		if last, ok := p.run(1, script, "start", "llama", file); ok || p.exists("up") {
			t.Errorf("%s: got %q, %v, up: %v", script, last, ok, p.exists("up"))
		}
	}
}

func TestCommandOfSSHKeepsItsArguments(t *testing.T) {
	p := newPlace(t)
	p.run(1, "ssh.sh", "start", "llama", "gpu9", "8000", "./run it", "it's $HOME")
	t.Cleanup(func() { p.run(2, "ssh.sh", "stop", "llama", "gpu9") })
	for p.read("remote/argument") == "" { // until the test's own limit
		if last, ok := p.run(1, "ssh.sh", "start", "llama", "gpu9", "8000", "./run it", "it's $HOME"); !ok {
			t.Fatal(last)
		}
	}
	if got := p.read("remote/argument"); got != "it's $HOME" {
		t.Errorf("got the argument %q", got)
	}
}
