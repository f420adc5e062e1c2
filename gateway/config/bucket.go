package config

import (
	"net/url"
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
	b, problem := parseBucket(f.URL)
	return b, problem == ""
}

const (
	wantFiles  = "file:///… with the path of a folder, s3://BUCKET/PREFIX?endpoint=HOST:PORT&region=REGION, or nothing"
	awsS3      = "s3.amazonaws.com"
	secretHint = "no user name and no password; credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
)

// filesURL decodes the URL of a folder or a bucket. An empty one leaves it unset.
func filesURL(to **url.URL) decodeFunc {
	return func(v value) {
		s, ok := v.url(wantFiles)
		if !ok || s.text == "" {
			return
		}
		u, err := url.Parse(s.text)
		switch {
		case err == nil && u.Scheme == "s3":
			decodeBucket(v, s, u, to)
		case err != nil || u.Scheme != "file" || u.Host != "" || !strings.HasPrefix(u.Path, "/") || u.RawQuery != "" || u.Fragment != "":
			hint := ""
			if err == nil && suggestKey(u.Scheme, []string{"file"}) != "" && u.Host != "" {
				hint = "; did you mean file:///" + u.Host + u.Path + "?"
			}
			v.errorf("want %s, got %s%s", wantFiles, s.got, hint)
		default:
			*to = u
		}
	}
}

func decodeBucket(v value, s scalar, u *url.URL, to **url.URL) {
	b, problem := parseBucket(u)
	switch {
	case problem == "":
		if b.Plaintext && !isLocal(b.Endpoint) {
			v.warnf("files travel to %s without TLS, prompts and completions among them", b.Endpoint)
		}
		*to = u
	case u.User != nil || problem == secretHint:
		v.errorf("want %s; %s", wantFiles, problem) // the text is not quoted: it holds a secret
	default:
		v.errorf("want %s; %s, got %s", wantFiles, problem, s.got)
	}
}

var (
	bucketName   = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	bucketPrefix = regexp.MustCompile(`^[A-Za-z0-9!_.*'()-]+(/[A-Za-z0-9!_.*'()-]+)*$`)
	regionName   = regexp.MustCompile(`^[A-Za-z0-9-]+$`)
	bucketKeys   = []string{"endpoint", "region", "insecure"}
)

// parseBucket returns the bucket of a URL, and what is wrong with it, or "".
func parseBucket(u *url.URL) (b Bucket, problem string) {
	b = Bucket{Name: u.Host, Prefix: strings.Trim(u.Path, "/")}
	switch {
	case u.User != nil:
		return b, secretHint
	case u.Fragment != "":
		return b, "no fragment"
	case u.Host == "":
		return b, "the bucket is missing"
	case !bucketName.MatchString(u.Host) || strings.Contains(u.Host, ".."):
		return b, "the name of a bucket has 3 to 63 small letters, digits, dots and hyphens"
	case b.Prefix != "" && !bucketPrefix.MatchString(b.Prefix) || slices.ContainsFunc(strings.Split(b.Prefix, "/"), isDots):
		return b, "a prefix has letters, digits and !_.*'()- between single slashes"
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return b, "the query is not NAME=VALUE&NAME=VALUE"
	}
	if problem := checkBucketQuery(query); problem != "" {
		return b, problem
	}
	b.Region = query.Get("region")
	if b.Region != "" && !regionName.MatchString(b.Region) {
		return b, "a region has letters, digits and hyphens"
	}
	insecure := query.Get("insecure") == "true"
	if !query.Has("endpoint") {
		if insecure {
			return b, "insecure needs an endpoint"
		}
		b.Endpoint = awsS3
		if b.Region != "" {
			b.Endpoint = "s3." + b.Region + ".amazonaws.com"
		}
		return b, ""
	}
	problem = b.parseEndpoint(query.Get("endpoint"), insecure)
	return b, problem
}

func isDots(part string) bool { return part == "." || part == ".." }

// checkBucketQuery returns what is wrong with the parameters.
func checkBucketQuery(query url.Values) string {
	names := make([]string, 0, len(query))
	for name := range query {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		lower := strings.ToLower(name)
		switch {
		case strings.Contains(lower, "key") || strings.Contains(lower, "secret") || strings.Contains(lower, "token"):
			return secretHint
		case !slices.Contains(bucketKeys, name):
			problem := "unknown parameter " + quote(name) + "; known here: " + strings.Join(bucketKeys, ", ")
			if suggestion := suggestKey(name, bucketKeys); suggestion != "" {
				problem = "unknown parameter " + quote(name) + "; did you mean " + suggestion + "?"
			}
			return problem
		case len(query[name]) > 1:
			return name + " stands there twice"
		}
	}
	if v := query.Get("insecure"); v != "" && v != "true" && v != "false" {
		return "insecure is true or false"
	}
	return ""
}

// parseEndpoint sets the endpoint from host:port, or a URL without a path. Without a scheme it is TLS, but on loopback or
// if insecure is set.
func (b *Bucket) parseEndpoint(text string, insecure bool) (problem string) {
	scheme, host, found := strings.Cut(text, "://")
	if !found {
		scheme, host = "", text
	}
	u, problem := parseServerURL("https://" + host)
	switch {
	case problem != "" || u.Path != "":
		return "endpoint is HOST:PORT of the S3 server, or a URL without a path"
	case scheme != "" && scheme != "http" && scheme != "https":
		return "endpoint is HOST:PORT of the S3 server, or a URL with http:// or https://"
	}
	if scheme == "https" && insecure {
		return "insecure=true contradicts https://"
	}
	b.Plaintext = scheme == "http" || scheme == "" && (insecure || isLoopback(u.Hostname()))
	if b.Plaintext && !insecure && !isLoopback(u.Hostname()) {
		return "http:// sends files without TLS: want https://, or add insecure=true"
	}
	b.Endpoint = u.Host
	return ""
}

// isLocal reports whether host[:port] is this machine.
func isLocal(hostPort string) bool {
	u := url.URL{Host: hostPort}
	return isLoopback(u.Hostname())
}
