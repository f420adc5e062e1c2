package config

import (
	"fmt"
	"net/url"
	"reflect"
	"strings"
)

// Setting is one key of a configuration with its value, for display. Secrets are masked.
type Setting struct {
	Key     string // such as models[0].backends[0].url
	Value   string // empty if nothing is set
	Default string // only if Changed
	Changed bool   // the value is not the default; a key without a default is always changed
	Pending bool   // a reload has changed it, and it needs a restart; Describe does not set it
}

// Describe returns all settings in the order of the file. Values that can hold secrets are masked: keys and passwords, the
// addresses of webhooks, and the arguments of commands.
func (c *Config) Describe() []Setting {
	var all []Setting
	describe(&all, "", reflect.ValueOf(c).Elem())
	return all
}

// describe appends the settings of a section, of an optional section or of each section of a list.
func describe(all *[]Setting, path string, v reflect.Value) {
	text, isText := reflect.TypeAssert[fmt.Stringer](v)
	switch {
	case isText: // a window is one value
		*all = append(*all, Setting{Key: path, Value: text.String(), Changed: true})
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			describe(all, fmt.Sprintf("%s[%d]", path, i), v.Index(i))
		}
	case v.Kind() == reflect.Pointer:
		if !v.IsNil() {
			describe(all, path, v.Elem())
		}
	default:
		defaults := keysOf(newSection(v.Type()))
		for i, k := range keysOf(v) {
			k.name = strings.TrimPrefix(path+"."+k.name, ".")
			if kind, isScalar := k.kind(); isScalar {
				*all = append(*all, kind.describe(k, defaults[i].field))
			} else {
				describe(all, k.name, k.field)
			}
		}
	}
}

func (k kind) describe(of key, byDefault reflect.Value) Setting {
	s := Setting{Key: of.name, Value: k.format(of.field), Default: k.format(byDefault)}
	s.Changed = !reflect.DeepEqual(of.field.Interface(), byDefault.Interface()) && (s.Value != s.Default || s.Value != "")
	if !s.Changed {
		s.Default = ""
	}
	return s
}

// format formats the value of a field.
func (k kind) format(v reflect.Value) string {
	switch {
	case k.zero != "" && v.IsZero():
		return k.zero
	case k.show != nil:
		return k.show(v)
	}
	return show(v)
}

func show(v reflect.Value) string {
	switch {
	case v.Type() == reflect.TypeFor[Secret]() && v.IsZero(), v.Kind() == reflect.Pointer && v.IsNil():
		return ""
	case v.Kind() == reflect.Slice:
		parts := make([]string, v.Len())
		for i := range parts {
			parts[i] = show(v.Index(i))
		}
		return strings.Join(parts, ", ")
	}
	return fmt.Sprint(v.Interface())
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
	if u, err := url.Parse(v.String()); err == nil && u.Host != "" {
		return maskedURL(reflect.ValueOf(u))
	}
	return v.String()
}

// maskedCommand shows the program. The arguments may be tokens from the environment.
func maskedCommand(v reflect.Value) string {
	if v.Len() == 0 {
		return ""
	}
	return fmt.Sprintf("%s (arguments: %d)", v.Index(0).String(), v.Len()-1)
}
