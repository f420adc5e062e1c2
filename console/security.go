package console

import (
	"net/http"
	"net/url"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"
)

// contentSecurityPolicy lets a page load the files of its own origin and nothing else: no inline script or style, no
// other origin, no frame around it.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; " +
	"connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// securityHeaders is middleware that sets the headers by which browsers restrict every page.
func (c *Console) securityHeaders(next echo.HandlerFunc) echo.HandlerFunc {
	return func(ec echo.Context) error {
		h := ec.Response().Header()
		h.Set("Content-Security-Policy", contentSecurityPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if c.usesHTTPS() {
			h.Set("Strict-Transport-Security", "max-age=31536000")
		}
		return next(ec)
	}
}

// newCrossOriginProtection returns a check that trusts the public URL too: behind a proxy that changes the Host header,
// it is the origin of the forms of browsers without Sec-Fetch-Site.
func newCrossOriginProtection(public *url.URL, log *zap.Logger) *http.CrossOriginProtection {
	p := http.NewCrossOriginProtection()
	if err := p.AddTrustedOrigin(public.Scheme + "://" + public.Host); err != nil {
		log.Warn("public URL is not an origin: forms of old browsers behind a proxy are refused", zap.Error(err))
	}
	return p
}

// refuseCrossOrigin is a step against cross-site request forgery: it refuses requests that change something if the
// browser sends them from a page of another origin. A request without Sec-Fetch-Site and Origin is not a browser's, so
// its cookie was sent deliberately.
func (c *Console) refuseCrossOrigin(r *request) error {
	if c.crossOrigin.Check(r.Request()) != nil {
		return errCrossOrigin
	}
	return nil
}
