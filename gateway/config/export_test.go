package config

import "reflect"

// Keys returns the names of all keys of a configuration.
func Keys() []string { return keysBelow(reflect.TypeFor[Config]()) }

func keysBelow(section reflect.Type) (names []string) {
	for _, k := range keysOf(reflect.New(section).Elem()) {
		names = append(names, k.name)
		if _, isScalar := k.kind(); isScalar {
			continue
		}
		below := k.field.Type()
		if below.Kind() != reflect.Struct {
			below = below.Elem()
		}
		names = append(names, keysBelow(below)...)
	}
	return names
}
