//go:build e2e

package e2e_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

func TestXForwardedForIsTrustedFromTrustedProxiesOnly(t *testing.T) {
	g, _ := startGateway(t, settings{server: ", trusted_proxies: [127.0.0.0/8]"}, mockvllm.Options{})
	r := g.request(t.Context(), http.MethodPost, g.url+"/v1/completions", smallRequest)
	r.Header.Set("X-Forwarded-For", "198.51.100.9, 203.0.113.7:51234,") // as Azure and some proxies send it
	r.Header.Set("X-Real-Ip", "198.51.100.10")
	if got := g.logLineOf(g.do(r).header.Get("X-Request-Id"))["address"]; got != "203.0.113.7" {
		t.Errorf("logged address %s, want 203.0.113.7", got)
	}
}

// certificate creates a self-signed certificate for 127.0.0.1.
func certificate(t *testing.T) (cert, key string, roots *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	writeFile(t, cert, string(text))
	writeFile(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})))
	roots = x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	return cert, key, roots
}

func TestTLSServesHTTP1AndHTTP2(t *testing.T) {
	cert, key, roots := certificate(t)
	g, _ := startGateway(t, settings{server: fmt.Sprintf(", tls: {cert: %q, key: %q}", cert, key)}, mockvllm.Options{})
	base := strings.Replace(g.url, "http://", "https://", 1)
	for version := 1; version <= 2; version++ {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, Protocols: new(http.Protocols)}
		transport.Protocols.SetHTTP1(version == 1)
		transport.Protocols.SetHTTP2(version == 2)
		for _, streamed := range []bool{false, true} {
			body := fmt.Sprintf(`{"model": "m", "prompt": "Once upon a time", "max_tokens": 4, "stream": %t}`, streamed)
			resp, err := (&http.Client{Transport: transport}).Do(g.request(t.Context(), http.MethodPost, base+"/v1/completions", body))
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusOK || resp.ProtoMajor != version {
				t.Errorf("HTTP/%d: %v: %d over %s: %s", version, err, resp.StatusCode, resp.Proto, got)
			}
			if streamed != strings.HasSuffix(string(got), "data: [DONE]\n\n") {
				t.Errorf("HTTP/%d, stream: %t: %s", version, streamed, got)
			}
		}
		transport.CloseIdleConnections()
	}
	if got := g.get(g.admin, "/healthz"); got.status != http.StatusOK {
		t.Errorf("/healthz of the admin listener over plain HTTP: %d", got.status)
	}
}

// vLLM sees a client disconnect within a second over HTTP/2 too, where the client only resets a stream.
func TestHTTP2ClientDisconnectReachesVLLM(t *testing.T) {
	cert, key, roots := certificate(t)
	g, mock := startGateway(t, settings{server: fmt.Sprintf(", tls: {cert: %q, key: %q}", cert, key)}, mockvllm.Options{})
	mock.InjectFault(mockvllm.Fault{Kind: "hang", AfterEvents: 1})
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, Protocols: new(http.Protocols)}
	transport.Protocols.SetHTTP2(true)
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	resp, err := (&http.Client{Transport: transport}).Do(g.request(ctx, http.MethodPost,
		strings.Replace(g.url, "http://", "https://", 1)+"/v1/completions",
		`{"model": "m", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, "stream": true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	cancel()
	poll.Until(t, "the mock sees its client disconnect", func() bool {
		for _, r := range mock.Requests() {
			if r.Path == "/v1/completions" && r.ClientDisconnected() {
				return true
			}
		}
		return false
	})
}
