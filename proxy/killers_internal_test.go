package proxy

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"go.uber.org/zap"

	"basegate/breaker"
	"basegate/fleet"
	"basegate/gateway/config"
)

// runs returns the runs of the engines of n backends.
func runs(t *testing.T, n int) (all []fleet.Run) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			io.WriteString(w, `{"data":[{"id":"org/M"}]}`)
		}
	}))
	t.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	model := config.Model{ID: "m", Checkpoint: "org/M"}
	for i := range n {
		model.Backends = append(model.Backends, config.Backend{Name: string(rune('a' + i)), URL: address})
	}
	transport := &http.Transport{DisableKeepAlives: true}
	f := fleet.New([]config.Model{model}, fleet.Settings{
		Breaker: breaker.Settings{ConsecutiveFailures: 1, OpenFor: time.Minute, HalfOpenRequests: 1}, ProbeInterval: time.Hour, ProbeTimeout: time.Minute,
	}, transport, nil, zap.NewNop())
	if err := f.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	m, _ := f.Model("m")
	for range n {
		lease, err := m.Acquire(nil, fleet.Caller{}, fleet.Prefix{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(lease.Release)
		all = append(all, lease.Run())
	}
	return all
}

func TestRequestIsRefusedForTenMinutesAfterTwoDeaths(t *testing.T) {
	k, now, engines := newKillers(), time.Now(), runs(t, 3)
	k.clock = func() time.Time { return now }
	want := func(step string, refused bool) {
		t.Helper()
		if k.has(1) != refused {
			t.Errorf("%s: refused is %t, want %t", step, k.has(1), refused)
		}
	}
	for range 20 {
		k.count(1, engines[0])
		k.count(1, fleet.Run{})
	}
	want("one death, of 20 requests alike", false)
	k.count(2, engines[1])
	want("a death of another request", false)
	now = now.Add(killerMemory + time.Second)
	k.count(1, engines[1])
	want("a second death, long after", false)
	k.count(1, engines[2])
	want("a third one, soon after", true)
	now = now.Add(killerMemory - time.Second)
	want("in ten minutes", true)
	now = now.Add(2 * time.Second)
	want("after ten minutes", false)
}

func TestRememberedRequestsAreBounded(t *testing.T) {
	k, engines := newKillers(), runs(t, 1)
	for i := range uint64(3 * maxRemembered) {
		k.count(i, engines[0])
	}
	if len(k.requests) > maxRemembered {
		t.Errorf("%d requests are kept, want at most %d", len(k.requests), maxRemembered)
	}
}
