package breaker

// Classes returns every class.
func Classes() []Class {
	all := make([]Class, classCount)
	for i := range all {
		all[i] = Class(i)
	}
	return all
}

// Proof returns what the class is known by.
func (c Class) Proof() string { return table[c].proof }

// Doubts and Healths are all of each.
var (
	Doubts  = []Doubt{Certain, Failed, Empty, Unavailable, Broken}
	Healths = []Health{Silent, Healthy, Unhealthy, NotListening}
)
