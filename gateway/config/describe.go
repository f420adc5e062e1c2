package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"reflect"
	"strings"
	"time"
	"unicode"
)

// Setting is one key of a configuration with its value, for display. Secrets are masked.
type Setting struct {
	Key     string // such as models[0].backends[0].url
	Value   string // empty if nothing is set
	Default string // only if Changed
	Changed bool   // the value is not the default; a key without a default is always changed
}

// Describe returns all settings in the order of the file. Values that can hold secrets are masked: keys and passwords, the
// addresses of webhooks, and the arguments of commands.
func (c *Config) Describe() []Setting {
	var all []Setting
	appendSettings(&all, "", reflect.ValueOf(*c), reflect.ValueOf(*Default()))
	return all
}

// described are the types that are one value, though they have fields or elements.
var described = map[reflect.Type]func(reflect.Value) string{
	reflect.TypeFor[Secret](): func(v reflect.Value) string {
		if v.IsZero() {
			return ""
		}
		return masked
	},
	reflect.TypeFor[*url.URL](): func(v reflect.Value) string {
		if v.IsNil() {
			return ""
		}
		return v.Interface().(*url.URL).String() //nolint:errcheck,forcetypeassert // the map's key
	},
	reflect.TypeFor[*SMTP](): func(v reflect.Value) string {
		if v.IsNil() {
			return ""
		}
		return v.Interface().(*SMTP).String() //nolint:errcheck,forcetypeassert // the map's key
	},
	reflect.TypeFor[Window]():         func(v reflect.Value) string { return v.Interface().(Window).String() }, //nolint:errcheck,forcetypeassert // the map's key
	reflect.TypeFor[[]string]():       joined,
	reflect.TypeFor[[]netip.Prefix](): joined,
}

func joined(v reflect.Value) string {
	var parts []string
	for i := range v.Len() {
		parts = append(parts, fmt.Sprint(v.Index(i).Interface()))
	}
	return strings.Join(parts, ", ")
}

// describedFields are the fields with a format of their own, by the struct and the name: their values can hold secrets, or
// 0 has a name.
var describedFields = map[string]func(reflect.Value) string{
	"Database.Flush":          flushText,
	"Database.KeepRequests":   keepRequestsText,
	"Database.URL":            redactedDatabase,
	"Console.FeedbackWebhook": maskedURL,
	"Notifications.Webhook":   maskedURL,
	"Receipts.Publish":        maskedTarget,
	"Launch.Start":            maskedCommand,
	"Launch.Stop":             maskedCommand,
}

// flushText is the value as the file has it.
func flushText(v reflect.Value) string {
	if v.IsZero() {
		return flushAtCommit
	}
	return scalarText(v)
}

// keepRequestsText is the value as the file has it.
func keepRequestsText(v reflect.Value) string {
	if v.IsZero() {
		return keepForever
	}
	return fmt.Sprintf("%dd", v.Int()/int64(24*time.Hour))
}

// redactedDatabase shows the URL of a database without its password.
func redactedDatabase(v reflect.Value) string {
	d := Database{}
	d.URL, _ = reflect.TypeAssert[Secret](v)
	return d.Location()
}

// maskedURL shows which server a webhook is at. Its path and its query are often a secret.
func maskedURL(v reflect.Value) string {
	u, ok := reflect.TypeAssert[*url.URL](v)
	if !ok || u == nil {
		return ""
	}
	return u.Scheme + "://" + u.Host + "/" + masked
}

// maskedTarget shows the path of a file, or what maskedURL shows of a webhook.
func maskedTarget(v reflect.Value) string {
	if !strings.Contains(v.String(), "://") {
		return v.String()
	}
	u, err := url.Parse(v.String())
	if err != nil {
		return masked
	}
	return maskedURL(reflect.ValueOf(u))
}

// maskedCommand shows the program. The arguments may be tokens from the environment.
func maskedCommand(v reflect.Value) string {
	if v.Len() == 0 {
		return ""
	}
	return fmt.Sprintf("%s (arguments: %d)", v.Index(0).String(), v.Len()-1)
}

// appendSettings appends the settings of a value. byDefault is invalid if there is no default.
func appendSettings(all *[]Setting, key string, v, byDefault reflect.Value) {
	if format, ok := described[v.Type()]; ok {
		add(all, key, format, v, byDefault)
		return
	}
	switch v.Kind() { //nolint:exhaustive // all other kinds are scalars
	case reflect.Pointer: // an optional section
		if !v.IsNil() {
			appendSettings(all, key, v.Elem(), sectionDefault(v.Type().Elem()))
		}
	case reflect.Slice:
		for i := range v.Len() {
			appendSettings(all, fmt.Sprintf("%s[%d]", key, i), v.Index(i), sectionDefault(v.Type().Elem()))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if field.Type == reflect.TypeFor[[]Diagnostic]() || field.Name == "HoldsSecrets" {
				continue // no keys of the file
			}
			var own reflect.Value
			if byDefault.IsValid() {
				own = byDefault.Field(i)
			}
			name := strings.TrimPrefix(key+"."+snakeCase(field.Name), ".")
			if format, ok := describedFields[v.Type().Name()+"."+field.Name]; ok {
				add(all, name, format, v.Field(i), own)
				continue
			}
			appendSettings(all, name, v.Field(i), own)
		}
	default:
		add(all, key, scalarText, v, byDefault)
	}
}

func scalarText(v reflect.Value) string {
	if d, ok := reflect.TypeAssert[time.Duration](v); ok {
		return d.String()
	}
	return fmt.Sprint(v.Interface())
}

// sectionDefault returns the defaults of a section that may be absent or repeated.
func sectionDefault(t reflect.Type) reflect.Value {
	switch t {
	case reflect.TypeFor[Model]():
		return reflect.ValueOf(defaultModel())
	case reflect.TypeFor[Launch]():
		return reflect.ValueOf(defaultLaunch())
	case reflect.TypeFor[Sleep]():
		return reflect.ValueOf(defaultSleep())
	case reflect.TypeFor[Backend]():
		return reflect.ValueOf(Backend{})
	}
	return reflect.Value{}
}

func add(all *[]Setting, key string, format func(reflect.Value) string, v, byDefault reflect.Value) {
	s := Setting{Key: key, Value: format(v), Changed: true}
	if byDefault.IsValid() {
		s.Default = format(byDefault)
		s.Changed = !reflect.DeepEqual(v.Interface(), byDefault.Interface()) && (s.Value != s.Default || s.Value != "")
	}
	if !s.Changed {
		s.Default = ""
	}
	*all = append(*all, s)
}

// snakeCase converts the name of a field to the key in the file: APIKey to api_key.
func snakeCase(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if i > 0 && unicode.IsUpper(r) && (unicode.IsLower(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
