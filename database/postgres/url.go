package postgres

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// WantURL is the form of the URL of a database.
const WantURL = "postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=verify-full"

// ErrURL is returned for what is not the URL of a PostgreSQL database.
var ErrURL = fmt.Errorf("want %s", WantURL)

var (
	// errAt is returned for a URL with an @ behind the host: what was taken for the host may be the end of a password.
	errAt = fmt.Errorf("want %s: in a password, write %%40 for @, %%2F for /, %%3F for ?, %%23 for # and %%25 for %%", WantURL)

	errAttributes = errors.New("target_session_attrs is any, primary, read-write or prefer-standby: a gateway writes to the database")
)

// ParseURL parses the URL of a database. No error quotes it, since it may hold a password. Every other parser, such as that of
// the driver, gets the String of the result, in which user name and password are encoded: parsers disagree on which @ is
// before the host if there are several.
func ParseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Opaque != "" || u.Fragment != "" || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return nil, ErrURL
	}
	if strings.Contains(u.EscapedPath(), "@") || strings.Contains(u.RawQuery, "@") {
		return nil, errAt
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, ErrURL
	}
	for name, values := range query {
		if len(values) > 1 {
			return nil, fmt.Errorf("the parameter %s is there twice", name)
		}
	}
	allowed := []string{"", "any", "primary", "read-write", "prefer-standby"}
	if !slices.Contains(allowed, query.Get("target_session_attrs")) {
		return nil, errAttributes
	}
	return u, nil
}
