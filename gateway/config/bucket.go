package config

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Bucket is where files are kept on an S3 server.
type Bucket struct {
	Name      string
	Prefix    string // of all keys, without a slash at its ends; may be empty
	Endpoint  string // host:port
	Region    string // empty: the server is asked
	Plaintext bool   // HTTP without TLS
}

// Bucket returns the bucket of the files, and false if they are in a folder.
func (f *Files) Bucket() (b Bucket, ok bool) {
	if f.URL == nil || f.URL.Scheme != "s3" {
		return Bucket{}, false
	}
	b, err := parseBucket(f.URL)
	return b, err == nil
}

const wantFiles = "file:///… with the path of a folder, s3://BUCKET/PREFIX?endpoint=HOST:PORT&region=REGION, or nothing"

var errBucketSecret = errors.New("no user name and no password; credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")

// parseFiles parses the URL of a folder or a bucket.
func parseFiles(s *scalar) (any, error) {
	u, err := url.Parse(s.text)
	if err == nil && u.Scheme == "s3" {
		_, err := parseBucket(u)
		if err == nil {
			return u, nil
		}
		if errors.Is(err, errBucketSecret) {
			s.got = ""
		}
		return nil, s.unwanted(fmt.Sprintf("%s; %v", wantFiles, err))
	}
	switch {
	case err == nil && u.Scheme == "file" && u.Host == "" && strings.HasPrefix(u.Path, "/") && u.RawQuery == "" && u.Fragment == "":
		return u, nil
	case err == nil && suggestKey(u.Scheme, []string{"file"}) != "" && u.Host != "":
		return nil, fmt.Errorf("%w; did you mean file:///%s%s?", s.unwanted(wantFiles), u.Host, u.Path)
	}
	return nil, errUnwanted
}

var (
	bucketName   = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	bucketPrefix = regexp.MustCompile(`^[A-Za-z0-9!_.*'()-]+(/[A-Za-z0-9!_.*'()-]+)*$`)
	regionName   = regexp.MustCompile(`^[A-Za-z0-9-]+$`)
	bucketKeys   = []string{"endpoint", "region", "insecure"}

	secretParameter = regexp.MustCompile(`(?i)key|secret|token`)
)

// parseBucket parses the URL of a bucket. The error says what is wrong with it.
func parseBucket(u *url.URL) (b Bucket, err error) {
	b = Bucket{Name: u.Host, Prefix: strings.Trim(u.Path, "/")}
	query, err := url.ParseQuery(u.RawQuery)
	switch {
	case u.User != nil:
		return b, errBucketSecret
	case u.Fragment != "":
		return b, errors.New("no fragment")
	case u.Host == "":
		return b, errors.New("the bucket is missing")
	case !bucketName.MatchString(u.Host) || strings.Contains(u.Host, ".."):
		return b, errors.New("the name of a bucket has 3 to 63 small letters, digits, dots and hyphens")
	case b.Prefix != "" && (!bucketPrefix.MatchString(b.Prefix) || path.Clean("/"+b.Prefix) != "/"+b.Prefix):
		return b, errors.New("a prefix has letters, digits and !_.*'()- between single slashes")
	case err != nil:
		return b, errors.New("the query is not NAME=VALUE&NAME=VALUE")
	}
	if err := checkBucketQuery(query); err != nil {
		return b, err
	}
	b.Region = query.Get("region")
	insecure := query.Get("insecure") == "true"
	switch {
	case b.Region != "" && !regionName.MatchString(b.Region):
		return b, errors.New("a region has letters, digits and hyphens")
	case query.Has("endpoint"):
		err = b.parseEndpoint(query.Get("endpoint"), insecure)
	case insecure:
		return b, errors.New("insecure needs an endpoint")
	case b.Region != "":
		b.Endpoint = "s3." + b.Region + ".amazonaws.com"
	default:
		b.Endpoint = "s3.amazonaws.com"
	}
	return b, err
}

func checkBucketQuery(query url.Values) error {
	for _, name := range slices.Sorted(maps.Keys(query)) {
		switch {
		case secretParameter.MatchString(name):
			return errBucketSecret
		case !slices.Contains(bucketKeys, name):
			return fmt.Errorf("unknown parameter %s; %s", quote(name), keyHint(name, bucketKeys))
		case len(query[name]) > 1:
			return fmt.Errorf("%s stands there twice", name)
		}
	}
	if !slices.Contains([]string{"", "true", "false"}, query.Get("insecure")) {
		return errors.New("insecure is true or false")
	}
	return nil
}

// parseEndpoint sets the endpoint from host:port, or a URL without a path. Without a scheme it is TLS, but on loopback or
// if insecure is set.
func (b *Bucket) parseEndpoint(text string, insecure bool) error {
	scheme, host, found := strings.Cut(text, "://")
	if !found {
		scheme, host = "", text
	}
	u, err := parseServerURL("https://" + host)
	switch {
	case err != nil || strings.Trim(u.Path, "/") != "":
		return errors.New("endpoint is HOST:PORT of the S3 server, or a URL without a path")
	case scheme != "" && scheme != "http" && scheme != "https":
		return errors.New("endpoint is HOST:PORT of the S3 server, or a URL with http:// or https://")
	case scheme == "https" && insecure:
		return errors.New("insecure=true contradicts https://")
	}
	b.Plaintext = scheme == "http" || scheme == "" && (insecure || IsLoopback(u.Hostname()))
	if b.Plaintext && !insecure && !IsLoopback(u.Hostname()) {
		return errors.New("http:// sends files without TLS: want https://, or add insecure=true")
	}
	b.Endpoint = u.Host
	return nil
}

// isLocal reports whether the server is this machine.
func (b *Bucket) isLocal() bool {
	u := url.URL{Host: b.Endpoint}
	return IsLoopback(u.Hostname())
}
