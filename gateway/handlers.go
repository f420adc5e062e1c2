package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"basegate/batch"
	apierr "basegate/errors"
	"basegate/proxy"
)

// publicHandler returns the handler of the public listener: the API, the console and the health checks.
func (g *Gateway) publicHandler() http.Handler {
	e := newEcho(g.log, func(c echo.Context, status int) bool {
		return wantsPage(c.Request()) && g.console.ServeError(c, status)
	})
	files := g.batches.Routes()
	if !keepsFiles(g.booted) {
		files = batch.Unserved(files)
	}
	g.proxy.Mount(e, files...)
	g.mountReceipts(e)
	g.console.Mount(e)
	g.mountHealth(e)
	return limitConnections(g.proxy.IsAPI, e)
}

// wantsPage reports whether a browser navigates to a path outside the API. API clients do not name text/html alone.
func wantsPage(r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead || r.URL.Path == "/v1" || strings.HasPrefix(r.URL.Path, "/v1/") {
		return false
	}
	accept := strings.Join(r.Header.Values("Accept"), ",")
	return strings.Contains(accept, "text/html") && !strings.Contains(accept, "application/json")
}

// adminHandler returns the handler of the admin listener: health checks, the status, the states of the models,
// metrics and profiles. It requires no key, so its listener is on loopback unless configured otherwise.
func (g *Gateway) adminHandler() http.Handler {
	e := newEcho(g.log, func(echo.Context, int) bool { return false })
	g.mountHealth(e)
	e.GET("/models", func(c echo.Context) error { return c.JSON(http.StatusOK, g.fleet.Snapshot()) })
	// The configuration's mistakes may name hosts and paths, so this is not for the public listener.
	e.GET("/status", func(c echo.Context) error { return c.JSON(http.StatusOK, g.status(c.Request().Context())) })
	e.GET("/metrics", echo.WrapHandler(promhttp.HandlerFor(g.registry, promhttp.HandlerOpts{})))
	e.GET("/debug/pprof/cmdline", echo.WrapHandler(http.HandlerFunc(pprof.Cmdline)))
	e.GET("/debug/pprof/profile", echo.WrapHandler(http.HandlerFunc(pprof.Profile)))
	e.GET("/debug/pprof/symbol", echo.WrapHandler(http.HandlerFunc(pprof.Symbol)))
	e.GET("/debug/pprof/trace", echo.WrapHandler(http.HandlerFunc(pprof.Trace)))
	e.GET("/debug/pprof/*", echo.WrapHandler(http.HandlerFunc(pprof.Index)))
	return requireAdminHost(g.config.Server, e)
}

// newEcho returns an echo that renders every error as the API does, unless servePage responds with a page and returns true.
func newEcho(log *zap.Logger, servePage func(c echo.Context, status int) bool) *echo.Echo {
	e := echo.New()
	e.HideBanner = true
	e.HTTPErrorHandler = func(err error, c echo.Context) {
		if c.Response().Committed || errors.Is(context.Cause(c.Request().Context()), context.Canceled) { // or the client has disconnected
			return
		}
		failure := apierr.From(proxy.RoutingError(c, err))
		if failure.Code == apierr.Internal {
			log.Error("internal error", zap.Error(failure))
		}
		if servePage(c, failure.Status()) {
			return
		}
		failure.SetHeaders(c.Response().Header())
		body := failure.AppendJSON(nil, c.Response().Header().Get("X-Request-Id"))
		if err := c.Blob(failure.Status(), "application/json", append(body, '\n')); err != nil {
			log.Debug("send error", zap.Error(err))
		}
	}
	return e
}

// readyTimeout limits the ping of the database by /readyz.
const readyTimeout = 2 * time.Second

func (g *Gateway) mountHealth(e *echo.Echo) {
	methods := []string{http.MethodGet, http.MethodHead}
	for _, path := range []string{"/healthz", "/health"} { // vLLM's path is the second, which tools for vLLM request
		e.Match(methods, path, func(c echo.Context) error { return c.String(http.StatusOK, "ok\n") })
	}
	e.Match(methods, "/readyz", func(c echo.Context) error {
		if g.proxy.Draining() {
			return c.String(http.StatusServiceUnavailable, "draining\n")
		}
		ctx, cancel := context.WithTimeout(c.Request().Context(), readyTimeout)
		defer cancel()
		if err := g.checkDatabase(ctx); err != nil {
			g.log.Warn("not ready: the database does not answer", zap.Error(err))
			return c.String(http.StatusServiceUnavailable, "the database does not answer\n")
		}
		return c.String(http.StatusOK, "ready\n"+g.logNote()+g.configNote())
	})
}

// logNote returns a line of /readyz if log lines are being lost. The gateway serves nevertheless.
func (g *Gateway) logNote() string {
	if !g.logWriter.Failing() {
		return ""
	}
	return fmt.Sprintf("note: the log cannot be written; %d lines are lost\n", g.logWriter.Dropped())
}

// configNote returns a line of /readyz if the last reload was refused. The mistakes are in the log and on the console.
func (g *Gateway) configNote() string {
	if g.configState.successful() == 1 {
		return ""
	}
	return "note: the configuration has mistakes; the one that was read before is in force\n"
}
