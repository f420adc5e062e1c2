package console

import (
	"net/http"

	"go.uber.org/zap"
)

// policy lets a page load what this origin serves as files, and nothing else: no script or style within a page, no
// other origin, no frame around it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// defend sets what browsers are told of every page, and refuses what another site makes a browser send. A request that
// says nothing of where it comes from is no browser's, and has no cookie that it was not given on purpose.
func (c *Console) defend(pages http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	own := c.settings.Load().PublicURL
	if err := protection.AddTrustedOrigin(own.Scheme + "://" + own.Host); err != nil { // where a proxy changes the host
		c.log.Warn("the public URL is no origin, so old browsers behind a proxy cannot send forms", zap.Error(err))
	}
	protection.SetDenyHandler(c.serve(route{access: anyone, handler: (*Console).refuseForeign}))
	same := protection.Handler(pages)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if c.secure() {
			h.Set("Strict-Transport-Security", "max-age=31536000")
		}
		same.ServeHTTP(w, r)
	})
}

func (*Console) refuseForeign(*visit) error { return errForeign }
