package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"basegate/database"
	"basegate/gateway/config"
)

// healthTimeout limits the request of check --live, below the 5 s timeout of the image's health check.
const healthTimeout = 4 * time.Second

var errPortZero = errors.New("server.listen has port 0, so the gateway's port is not known")

// checkHealth requests /healthz from the running gateway. It is the health check of containers that have no shell and no
// curl. It opens no database, queries no backend and does not validate the configuration: a mistake in the file says
// nothing about the gateway that runs.
func checkHealth(cmd *cobra.Command) error {
	cfg, err := config.LoadPartial(configPath(cmd))
	if err != nil {
		return err
	}
	url, err := runningURL(cfg)
	if err != nil {
		return err
	}
	url += "/healthz"
	ctx, cancel := context.WithTimeout(cmd.Context(), healthTimeout)
	defer cancel()
	response, err := requestLocal(ctx, url)
	if err != nil {
		return fmt.Errorf("ask the gateway: %w", err)
	}
	if err := response.Body.Close(); err != nil {
		return fmt.Errorf("close response: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %d", url, response.StatusCode)
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), "live:", url)
	return err
}

// requestLocal requests a URL of the gateway on this machine.
func requestLocal(ctx context.Context, url string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	return (&http.Client{Transport: newLocalTransport()}).Do(request)
}

// newLocalTransport returns a transport to servers of this machine and to backends, which uses each connection once: vLLM
// closes idle ones after 5 seconds.
func newLocalTransport() *http.Transport {
	return &http.Transport{
		DisableKeepAlives: true,
		//nolint:gosec // the gateway's certificate is for the public name, and requests go to this machine
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}
}

// runningURL returns the URL of the gateway that runs on this machine: at the address that it has noted beside its
// database, or else at the configured one.
func runningURL(cfg *config.Partial) (string, error) {
	if certain, err := cfg.Config("database"); err == nil && !certain.Database.Postgres() {
		if url, found := holderURL(certain.Database.Path); found {
			return url, nil
		}
	}
	certain, err := cfg.Config("server.listen", "server.tls")
	if err != nil {
		return "", fmt.Errorf("read configuration: %w", err)
	}
	return localURL(certain.Server.Listen, certain.Server.TLS.Cert != "")
}

// holderURL returns the URL of the gateway that holds the lock of a database, if it runs on this machine. In a container
// that is the container itself.
func holderURL(path string) (string, bool) {
	holder, held, err := database.FindHolder(path)
	if err != nil || !held || holder.Address == "" {
		return "", false
	}
	if host, err := os.Hostname(); err != nil || host != holder.Host {
		return "", false
	}
	url, err := localURL(holder.Address, holder.TLS)
	return url, err == nil
}

// localURL returns the URL on this machine of a server that listens on an address. If it listens on every address, it is
// on localhost.
func localURL(listen string, secure bool) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", fmt.Errorf("parse server.listen: %w", err)
	}
	if port == "0" {
		return "", errPortZero
	}
	if ip := net.ParseIP(host); host == "" || ip.IsUnspecified() {
		host = "localhost"
	}
	scheme := "http"
	if secure {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, port), nil
}
