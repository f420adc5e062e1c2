package budget

// WindowTotals are the tokens that a key or an account has used in the current windows.
type WindowTotals struct {
	MonthInput  int64
	MonthOutput int64
	Day         int64 // input and output
	Reserved    int64 // by requests in flight that were admitted this month
}

// Month returns the tokens that a monthly total cap counts.
func (t WindowTotals) Month() int64 { return t.MonthInput + t.MonthOutput }

// KeyTotals returns the totals of one key.
func (l *Ledger) KeyTotals(id string) WindowTotals { return l.totals(l.keys, id) }

// AccountTotals returns the totals of all keys of an account.
func (l *Ledger) AccountTotals(id string) WindowTotals { return l.totals(l.accounts, id) }

// totals reads the counters of one owner. It creates none for an owner or a month without usage.
func (l *Ledger) totals(all map[string]*owner, id string) WindowTotals {
	l.mu.Lock()
	defer l.mu.Unlock()
	today := dateOf(l.clock())
	found := all[id]
	if found == nil {
		return WindowTotals{}
	}
	for _, m := range found.months {
		if m.month == today.month {
			return WindowTotals{
				MonthInput: m.input.used, MonthOutput: m.output.used, Day: m.days[today.day].used, Reserved: m.total.reserved,
			}
		}
	}
	return WindowTotals{}
}

// Headroom returns the headroom of the total cap with the fewest tokens left, by the caps currently configured. It
// returns false if no total cap is set or the key may not be used.
func (l *Ledger) Headroom(p Payer) (h Headroom, ok bool) {
	if !p.KeyCaps.Any() && !p.AccountCaps.Any() {
		return Headroom{}, false
	}
	if l.refreshCaps(&p) != nil {
		return Headroom{}, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bucket(l.owners(&p)).headroom(&p)
}

func (b bucket) headroom(p *Payer) (h Headroom, ok bool) {
	caps := b.capChecks(p)
	for _, c := range caps.all() {
		left := max(c.remaining(), 0)
		if c.meter == Total && (!ok || left < h.Remaining) {
			h, ok = Headroom{Limit: c.limit, Remaining: left, ResetsAt: b.date.windowEnd(c.window)}, true
		}
	}
	return h, ok
}

// Waiting returns the number of requests that wait until reservations of others end.
func (l *Ledger) Waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting
}
