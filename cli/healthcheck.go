package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"basegate/config"
)

// healthTimeout limits the request of check --live, below the 5 s timeout of the image's health check.
const healthTimeout = 4 * time.Second

var errPortZero = errors.New("server.listen has port 0, so the gateway's port is not known")

// checkHealth requests /healthz from the running gateway, at the configured address. It is the health check of
// containers that have no shell and no curl. It opens no database and queries no backend.
func checkHealth(cmd *cobra.Command, cfg *config.Config) error {
	url, err := localURL(cfg)
	if err != nil {
		return err
	}
	url += "/healthz"
	ctx, cancel := context.WithTimeout(cmd.Context(), healthTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	//nolint:gosec // the certificate is for the public name, and the request goes to this machine
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
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

// localURL returns the gateway's URL on this machine. If the gateway listens on every address, it is on localhost.
func localURL(cfg *config.Config) (string, error) {
	host, port, err := net.SplitHostPort(cfg.Server.Listen)
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
	if cfg.Server.TLS.Cert != "" {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, port), nil
}
