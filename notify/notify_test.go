package notify_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"basegate/notify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// outbox is a Mailer that keeps what it sends, and fails for the address in failing.
type outbox struct {
	mu      sync.Mutex
	sent    []string // addresses and subjects
	failing string
}

func (*outbox) Enabled() bool { return true }

func (o *outbox) Send(_ context.Context, to, subject, _ string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if to == o.failing {
		o.failing = ""
		return errors.New("try later")
	}
	o.sent = append(o.sent, to+" "+subject)
	return nil
}

// roundTrip is a transport.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func status(code int) (*http.Response, error) {
	return &http.Response{StatusCode: code, Body: http.NoBody}, nil
}

func hook(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// start returns a started Notifier, and its registry.
func start(t *testing.T, s notify.Settings, transport http.RoundTripper, mailer notify.Mailer, log *zap.Logger) (*notify.Notifier, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewRegistry()
	n := notify.New(s, notify.Deps{
		Transport: transport, Mailer: mailer, Registry: registry, Log: log,
		Recipients: func(context.Context) ([]string, error) { return []string{"a@example.org", "b@example.org"}, nil },
	})
	n.Start(t.Context())
	return n, registry
}

func wantCount(t *testing.T, registry *prometheus.Registry, channel, outcome string, want float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := -1.0
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if labels := m.GetLabel(); len(labels) == 2 && labels[0].GetValue() == channel && labels[1].GetValue() == outcome {
				got = m.GetCounter().GetValue()
			}
		}
	}
	if got != want {
		t.Errorf("%s, %s: counted %v, want %v", channel, outcome, got, want)
	}
}

func TestWebhookReceivesTheDocumentedPayload(t *testing.T) {
	received := make(chan map[string]any, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		if r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" || r.URL.Path != "/hook" {
			t.Errorf("got %s %s with %q, want a POST of JSON to /hook", r.Method, r.URL.Path, r.Header.Get("Content-Type"))
		}
		received <- body
	}))
	defer server.Close()
	n, _ := start(t, notify.Settings{Webhook: hook(t, server.URL+"/hook"), PublicURL: "https://gate.example.org"},
		&http.Transport{DisableKeepAlives: true}, new(outbox), zap.NewNop())
	defer n.Close()
	n.Notify(notify.Notice{
		Kind: "budget_80", Text: "80 % of a budget are used", Percent: 80, Detail: "80 of 100 tokens", Subject: "acc",
		Time:     time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC),
		Complete: func(_ context.Context, n *notify.Notice) { n.Account, n.Key = "ada@example.org", "laptop" },
	})
	got := <-received
	want := map[string]any{
		"text":  "80 % of a budget are used (key laptop of ada@example.org): 80 of 100 tokens",
		"event": "budget_80", "time": "2026-11-22T10:00:00Z", "gateway": "https://gate.example.org",
		"account": "ada@example.org", "key": "laptop", "percent": 80., "detail": "80 of 100 tokens",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestFailedAttemptsAreRetriedAFewTimes(t *testing.T) {
	for name, c := range map[string]struct {
		answers  []int // 0: the connection fails
		attempts int
		outcome  string
	}{
		"success after failures": {[]int{0, 503, 200}, 3, "sent"},
		"too many requests":      {[]int{429, 204}, 2, "sent"},
		"down":                   {[]int{500, 500, 500, 500, 200}, 4, "failed"},
		"refused":                {[]int{404, 200}, 1, "failed"},
		"redirect":               {[]int{307, 200}, 1, "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				made := 0
				transport := roundTrip(func(r *http.Request) (*http.Response, error) {
					io.Copy(io.Discard, r.Body)
					made++
					if code := c.answers[made-1]; code != 0 {
						return status(code)
					}
					return nil, errors.New("connection refused")
				})
				n, registry := start(t, notify.Settings{Webhook: hook(t, "https://hooks.example.org/x")}, transport, new(outbox), zap.NewNop())
				defer n.Close()
				n.Notify(notify.Notice{Kind: "breaker_opened", Subject: "m/b"})
				time.Sleep(time.Minute) // of the bubble's clock
				synctest.Wait()
				if made != c.attempts {
					t.Errorf("got %d attempts, want %d", made, c.attempts)
				}
				wantCount(t, registry, "webhook", c.outcome, 1)
			})
		})
	}
}

func TestWebhookThatHangsBlocksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := roundTrip(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		mails := new(outbox)
		n, registry := start(t, notify.Settings{Webhook: hook(t, "https://hooks.example.org/x"), Mail: true}, transport, mails, zap.NewNop())
		begin := time.Now()
		n.Notify(notify.Notice{Kind: "boot_failed", Text: "the boot has failed", Subject: "m/b"})
		if took := time.Since(begin); took != 0 {
			t.Errorf("Notify took %v, want no time", took)
		}
		synctest.Wait()
		if len(mails.sent) != 2 {
			t.Errorf("while the webhook hangs: got mails %q, want two", mails.sent)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		n.Close()
		if got := testutil.ToFloat64(counter(t, registry, "webhook", "failed")); got != 1 {
			t.Errorf("got %v failed notifications, want 1", got)
		}
	})
}

// counter returns a collector with one series of the metric.
func counter(t *testing.T, registry *prometheus.Registry, channel, outcome string) prometheus.Collector {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var value float64
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == channel && m.GetLabel()[1].GetValue() == outcome {
				value = m.GetCounter().GetValue()
			}
		}
	}
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "value"})
	g.Set(value)
	return g
}

func TestRepetitionsAndFloodsAreNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		transport := roundTrip(func(*http.Request) (*http.Response, error) { sent++; return status(200) })
		n, registry := start(t, notify.Settings{Webhook: hook(t, "https://hooks.example.org/x")}, transport, new(outbox), zap.NewNop())
		defer n.Close()
		for range 5 {
			n.Notify(notify.Notice{Kind: "breaker_opened", Subject: "m/b"})
		}
		synctest.Wait()
		if sent != 1 {
			t.Errorf("five notices about the same: got %d sent, want 1", sent)
		}
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		n.Notify(notify.Notice{Kind: "breaker_opened", Subject: "m/b"})
		synctest.Wait()
		if sent != 2 {
			t.Errorf("the same notice after eleven minutes: got %d sent, want 2", sent)
		}
		for i := range 1000 {
			n.Notify(notify.Notice{Kind: "boot_failed", Subject: fmt.Sprint(i)})
			synctest.Wait()
		}
		if sent > 2+20 {
			t.Errorf("a flood of 1,000 notices: got %d sent, want at most 20", sent-2)
		}
		if got := testutil.ToFloat64(counter(t, registry, "webhook", "dropped")); got < 900 {
			t.Errorf("got %v notifications counted as dropped, want the rest of the flood", got)
		}
	})
}

func TestMailIsRetriedForThoseWhoDoNotHaveIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mails := &outbox{failing: "a@example.org"}
		n, registry := start(t, notify.Settings{Mail: true}, roundTrip(nil), mails, zap.NewNop())
		defer n.Close()
		n.Notify(notify.Notice{Kind: "disk_low", Text: "the disk is nearly full", Subject: "disk"})
		time.Sleep(time.Minute)
		synctest.Wait()
		want := []string{"b@example.org Basegate: the disk is nearly full", "a@example.org Basegate: the disk is nearly full"}
		if fmt.Sprint(mails.sent) != fmt.Sprint(want) {
			t.Errorf("got mails %q, want %q", mails.sent, want)
		}
		wantCount(t, registry, "mail", "sent", 1)
	})
}

func TestAddressOfTheWebhookIsNotLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.DebugLevel)
		transport := roundTrip(func(*http.Request) (*http.Response, error) { return nil, errors.New("no route") })
		n, _ := start(t, notify.Settings{Webhook: hook(t, "https://user:hunter2@hooks.example.org/T0/letmein")}, transport, new(outbox), zap.New(core))
		defer n.Close()
		n.Notify(notify.Notice{Kind: "disk_low", Subject: "disk"})
		time.Sleep(time.Minute)
		synctest.Wait()
		if logs.Len() != 1 {
			t.Fatalf("got %d log entries, want one about the failure", logs.Len())
		}
		for _, e := range logs.All() {
			if text := fmt.Sprint(e.Message, e.ContextMap()); strings.Contains(text, "letmein") || strings.Contains(text, "hunter2") || strings.Contains(text, "hooks.example.org") {
				t.Errorf("the log has the address of the webhook: %s", text)
			}
		}
	})
}
