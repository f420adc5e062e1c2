package console

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"
)

// drippingConn is the connection of a client that sends a byte each second.
type drippingConn struct {
	http.ResponseWriter
	deadline time.Time
}

func (c *drippingConn) SetReadDeadline(deadline time.Time) error {
	c.deadline = deadline
	return nil
}

func (c *drippingConn) Read(p []byte) (int, error) {
	if time.Sleep(time.Second); !time.Now().Before(c.deadline) {
		return 0, os.ErrDeadlineExceeded
	}
	p[0] = ' '
	return 1, nil
}

func (c *drippingConn) Close() error { return nil }

// A form could be held for two minutes, and a script's body too.
func TestSlowFormEndsAsOtherSlowBodiesDo(t *testing.T) {
	for path, read := range map[string]handler{
		"/keys":                parseForm,
		"/console/api/session": func(_ *Console, r *request) error { return r.readJSON(new(any)) },
	} {
		synctest.Test(t, func(t *testing.T) {
			conn := &drippingConn{ResponseWriter: httptest.NewRecorder()}
			r := httptest.NewRequest(http.MethodPost, path, conn)
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			began := time.Now()
			handler := (&Console{Deps: Deps{Log: zap.NewNop()}}).renderError(func(ec echo.Context) error {
				if err := read(nil, requestOf(ec)); !errors.Is(err, errSlow) {
					t.Errorf("%s: got %v, want %v", path, err, errSlow)
				}
				return nil
			})
			if err := handler(echo.New().NewContext(r, conn)); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("%s: the form ended after %v, want 20 s", path, took)
			}
		})
	}
}
