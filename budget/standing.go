package budget

// WindowTotals is what a key or an account has taken in the present windows, in tokens.
type WindowTotals struct {
	MonthInput  int64
	MonthOutput int64
	Day         int64
	Reserved    int64 // by requests in flight, this month
}

// Month is what the monthly total counts.
func (s WindowTotals) Month() int64 { return s.MonthInput + s.MonthOutput }

// KeyTotals is what a key has taken.
func (l *Ledger) KeyTotals(id string) WindowTotals { return l.standing(l.keys, id) }

// AccountTotals is what all keys of an account have taken.
func (l *Ledger) AccountTotals(id string) WindowTotals { return l.standing(l.accounts, id) }

// standing reads one party's month; a party or a month that nobody has used is not made for this.
func (l *Ledger) standing(all map[string]*party, id string) WindowTotals {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, _ := l.now()
	found := all[id]
	if found == nil {
		return WindowTotals{}
	}
	for _, p := range found.periods {
		if p.month == now.month {
			return WindowTotals{
				MonthInput: p.input.used, MonthOutput: p.output.used, Day: p.days[now.day].used, Reserved: p.total.reserved,
			}
		}
	}
	return WindowTotals{}
}
