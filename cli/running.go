package cli

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"basegate/database"
	"basegate/gateway"
	"basegate/gateway/config"
)

// localTimeout limits a request to the running gateway: above the timeout of the gateway's look at its database, and below
// the 5 s timeout of the image's health check.
const localTimeout = 4 * time.Second

var (
	errPortZero      = errors.New("server.listen has port 0, so the gateway's port is not known")
	errAdminPortZero = errors.New("no gateway uses the database, and server.admin_listen has port 0")
	errNotStatusOK   = errors.New("is not this version's admin listener")
)

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
	_, status, err := requestLocal(cmd.Context(), url)
	switch {
	case err != nil:
		return fmt.Errorf("ask the gateway: %w", err)
	case status != http.StatusOK:
		return fmt.Errorf("%s answered %d", url, status)
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), "live:", url)
	return err
}

// fetchStatus requests the status from the running gateway.
func fetchStatus(ctx context.Context, cfg *config.Partial) (*gateway.Status, error) {
	holder, here, err := findHolder(cfg)
	if err != nil {
		return nil, err
	}
	listen := holder.Admin
	if !here || listen == "" {
		certain, err := cfg.Config("server.admin_listen")
		if err != nil {
			return nil, fmt.Errorf("read configuration: %w", err)
		}
		listen = certain.Server.AdminListen
	}
	s, err := fetchStatusFrom(ctx, listen)
	if err == nil {
		return s, nil
	}
	if holder.PID != 0 {
		err = fmt.Errorf("%w; %v", err, holder)
	}
	return nil, fmt.Errorf("no gateway answers: %w", err)
}

// fetchStatusFrom requests the status from an admin listener.
func fetchStatusFrom(ctx context.Context, listen string) (*gateway.Status, error) {
	url, err := localURL(listen, false)
	if errors.Is(err, errPortZero) {
		return nil, errAdminPortZero
	}
	if err != nil {
		return nil, err
	}
	url += "/status"
	body, status, err := requestLocal(ctx, url)
	if err == nil && status != http.StatusOK {
		return nil, fmt.Errorf("%s answered %d: it %w", url, status, errNotStatusOK)
	}
	s := new(gateway.Status)
	if err == nil {
		err = json.Unmarshal(body, s)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// requestLocal requests a URL of the gateway on this machine.
func requestLocal(ctx context.Context, url string) (body []byte, status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, localTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, 0, err
	}
	response, err := (&http.Client{Transport: newLocalTransport()}).Do(request)
	if refused, is := errors.AsType[syscall.Errno](err); is { // without the words of the packages around it
		return nil, 0, fmt.Errorf("%s: %w", url, refused)
	}
	if err != nil {
		return nil, 0, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(io.LimitReader(response.Body, 16<<20))
	return body, response.StatusCode, err
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
	if h, here, err := findHolder(cfg); err == nil && here && h.Address != "" {
		if url, err := localURL(h.Address, h.TLS); err == nil {
			return url, nil
		}
	}
	certain, err := cfg.Config("server.listen", "server.tls")
	if err != nil {
		return "", fmt.Errorf("read configuration: %w", err)
	}
	return localURL(certain.Server.Listen, certain.Server.TLS.Cert != "")
}

// findHolder returns what holds the lock of the configured SQLite database, and whether it runs on this machine, which in
// a container is the container itself. There is none with PostgreSQL, or if the configuration leaves the database in doubt.
func findHolder(cfg *config.Partial) (h database.Holder, here bool, err error) {
	if certain, err := cfg.Config("database"); err == nil && !certain.Database.Postgres() {
		if h, _, err = database.FindHolder(certain.Database.Path); err != nil {
			return h, false, fmt.Errorf("find gateway: %w", err)
		}
	}
	host, err := os.Hostname()
	return h, err == nil && host == h.Host, nil
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
