package budget

import "time"

// Counters are the tokens of a key or an account in the day and the month of some time.
type Counters struct {
	MonthInput, MonthOutput       int64 // used
	Day                           int64 // used, input and output
	ReservedInput, ReservedOutput int64 // by requests in flight that were admitted this month
	ReservedDay                   int64 // by those that were admitted on this day
}

// Balance is a payer with its counters at some time. It evaluates caps as a Ledger does, for ledgers that hold their
// counters elsewhere.
type Balance struct {
	Payer        Payer
	Key, Account Counters
	Time         time.Time
}

// month returns the counters in the form that caps are evaluated on.
func (c *Counters) month(d date) *monthCounters {
	m := &monthCounters{
		month:  d.month,
		total:  counter{used: c.MonthInput + c.MonthOutput, reserved: c.ReservedInput + c.ReservedOutput},
		input:  counter{used: c.MonthInput, reserved: c.ReservedInput},
		output: counter{used: c.MonthOutput, reserved: c.ReservedOutput},
	}
	m.days[d.day] = counter{used: c.Day, reserved: c.ReservedDay}
	return m
}

func (b *Balance) bucket() bucket {
	today := dateOf(b.Time)
	return bucket{key: b.Key.month(today), account: b.Account.month(today), date: today, time: b.Time}
}

// Exhausted returns the cap of which all tokens are used, or nil if every cap has tokens left. Reservations do not count.
func (b Balance) Exhausted() *Exceeded {
	if !b.Payer.KeyCaps.Any() && !b.Payer.AccountCaps.Any() {
		return nil
	}
	return b.bucket().exhausted(&b.Payer)
}

// Standings returns all caps that are set: the key's, then the account's.
func (b Balance) Standings() []Standing { return b.bucket().standings(&b.Payer) }

// Headroom returns the headroom of the total cap with the fewest tokens left, and false if none is set.
func (b Balance) Headroom() (h Headroom, ok bool) {
	if !b.Payer.KeyCaps.Any() && !b.Payer.AccountCaps.Any() {
		return Headroom{}, false
	}
	return b.bucket().headroom(&b.Payer)
}

// Estimate returns what would be decided about a request if no other one were in flight. It takes PromptTokens for the
// exact count.
func (b Balance) Estimate(d Demand) Estimate {
	return b.bucket().estimate(&waiter{payer: b.Payer, demand: d.normalized(), key: &owner{}, account: &owner{}})
}
