package breaker

// Classes returns every class.
func Classes() []Class {
	all := make([]Class, classCount)
	for i := range all {
		all[i] = Class(i)
	}
	return all
}
