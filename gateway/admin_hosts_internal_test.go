package gateway

import (
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"basegate/gateway/config"
)

func TestAdminListenerServesOnlyHostsItIsAddressedBy(t *testing.T) {
	c := config.Server{AdminListen: "admin.example.org:9090", AdminHosts: []string{"Metrics.Example.Org"}}
	served := requireAdminHost(c, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	hosts := map[string]int{
		"127.0.0.1": 200, "127.0.0.1:9090": 200, "10.1.2.3:1": 200, "[::1]:9090": 200, "[::1]": 200, "[fe80::1%25eth0]:9090": 200,
		"localhost": 200, "localhost:9090": 200, "LOCALHOST.:9090": 200,
		"gateway:9090": 200, "gateway": 200, "": 200, // gateway:9090 is the scrape target of vllm-compose.yml
		"admin.example.org:9090": 200, "metrics.example.org": 200, "METRICS.example.org.:80": 200,
		"evil.example.org": 421, "evil.example.org:9090": 421, "127.0.0.1.evil.example.org": 421, "metrics.example.org.evil.org": 421,
		"x.metrics.example.org": 421, "localhost.evil.org:9090": 421, "127.0.0.1.nip.io:9090": 421, "evil.org.": 421, ".": 200,
		"127.1": 421, "[::1].evil.org": 421, "evil.org:9090:9090": 421,
	}
	if name, err := os.Hostname(); err == nil {
		hosts[name+":9090"] = 200
	}
	for host, want := range hosts {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
		r.Host = host
		w := httptest.NewRecorder()
		served.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("Host %q: got status %d, want %d", host, w.Code, want)
		}
	}
}
