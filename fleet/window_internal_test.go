package fleet

import (
	"net/url"
	"testing"
	"time"

	"go.uber.org/zap"

	"basegate/gateway/config"
)

func timeOfDay(hour, minute int) time.Duration {
	return time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute
}

func loadLocation(t *testing.T, name string) *time.Location {
	t.Helper()
	l, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// changes returns the minutes, in UTC, at which a window opens or closes in a period.
func changes(w config.Window, from, to time.Time) (all []string) {
	open := contains(w, from.Add(-time.Minute))
	for t := from; t.Before(to); t = t.Add(time.Minute) {
		if now := contains(w, t); now != open {
			all = append(all, t.UTC().Format("01-02 15:04"))
			open = now
		}
	}
	return all
}

func TestWindowIsExactToTheMinuteAcrossClockChanges(t *testing.T) {
	days := func(text string) config.Days {
		d, err := config.ParseDays(text)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	prague, sydney := loadLocation(t, "Europe/Prague"), loadLocation(t, "Australia/Sydney")
	for _, c := range []struct {
		name string
		w    config.Window
		day  string // the first of two days, in UTC
		want []string
	}{
		{"a working day, winter", config.Window{Days: days("mon-fri"), From: timeOfDay(9, 0), To: timeOfDay(18, 0), Location: prague}, "2026-03-27", []string{"03-27 08:00", "03-27 17:00"}},
		{"a working day, summer", config.Window{Days: days("mon-fri"), From: timeOfDay(9, 0), To: timeOfDay(18, 0), Location: prague}, "2026-03-30", []string{"03-30 07:00", "03-30 16:00", "03-31 07:00", "03-31 16:00"}},
		{"across the night that loses an hour", config.Window{Days: days("sat"), From: timeOfDay(22, 0), To: timeOfDay(6, 0), Location: prague}, "2026-03-28", []string{"03-28 21:00", "03-29 04:00"}},
		{"across the night that gains an hour", config.Window{Days: days("sat"), From: timeOfDay(22, 0), To: timeOfDay(6, 0), Location: prague}, "2026-10-24", []string{"10-24 20:00", "10-25 05:00"}},
		{"begins in the skipped hour", config.Window{Days: days("sun"), From: timeOfDay(2, 30), To: timeOfDay(4, 0), Location: prague}, "2026-03-29", []string{"03-29 01:00", "03-29 02:00"}},
		{"is the skipped hour", config.Window{Days: days("sun"), From: timeOfDay(2, 0), To: timeOfDay(3, 0), Location: prague}, "2026-03-29", nil},
		{"is the repeated hour", config.Window{Days: days("sun"), From: timeOfDay(2, 0), To: timeOfDay(3, 0), Location: prague}, "2026-10-25", []string{"10-25 00:00", "10-25 02:00"}},
		{"autumn on the southern hemisphere", config.Window{Days: days("sun"), From: timeOfDay(1, 0), To: timeOfDay(5, 0), Location: sydney}, "2026-04-04", []string{"04-04 14:00", "04-04 19:00"}},
		{"spring on the southern hemisphere", config.Window{Days: days("sun"), From: timeOfDay(1, 0), To: timeOfDay(5, 0), Location: sydney}, "2026-10-03", []string{"10-03 15:00", "10-03 18:00"}},
		{"the whole day", config.Window{Days: days("wed"), From: 0, To: timeOfDay(24, 0), Location: time.UTC}, "2026-11-17", []string{"11-18 00:00"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			from, err := time.Parse(time.DateOnly, c.day)
			if err != nil {
				t.Fatal(err)
			}
			got := changes(c.w, from, from.Add(48*time.Hour))
			if len(got) != len(c.want) {
				t.Fatalf("got %q, want %q", got, c.want)
			}
			for i := range got {
				if got[i] != c.want[i] {
					t.Errorf("got %q, want %q", got, c.want)
				}
			}
		})
	}
}

// newWindowFleet returns a fleet with a stopped backend whose boot is estimated at 30 s. It is not started, so it runs no command.
func newWindowFleet(t *testing.T, now time.Time, windows ...config.Window) (*Fleet, *Backend) {
	t.Helper()
	launch := &config.Launch{
		Start: []string{"start"}, Stop: []string{"stop"}, IdleAfter: 2 * time.Second, BootEstimate: 30 * time.Second, BootTimeout: time.Minute,
	}
	f := New([]config.Model{{ID: "m", Checkpoint: "c", WarmWindows: windows, Backends: []config.Backend{
		{Name: "b", URL: &url.URL{Host: "x"}, Launch: launch},
	}}}, Settings{}, nil, nil, zap.NewNop())
	b := f.BaseModels()[0].backends[0]
	b.clock = func() time.Time { return now }
	return f, b
}

func TestWindowStartsAModelEarlyHoweverShortItIs(t *testing.T) {
	day := time.Date(2026, time.November, 18, 0, 0, 0, 0, time.UTC)
	minute := config.Window{Days: 127, From: timeOfDay(9, 0), To: timeOfDay(9, 1), Location: time.UTC}
	for name, c := range map[string]struct {
		now      time.Time
		from, to time.Duration // of a booked window, after now
		windows  []config.Window
		starts   bool
	}{
		"booked, within the estimate":          {now: day, from: 20 * time.Second, to: 26 * time.Second, starts: true},
		"booked, after the estimate":           {now: day, from: 31 * time.Second, to: time.Hour},
		"booked, over":                         {now: day, from: -time.Hour, to: 0},
		"recurring, begins in the estimate":    {now: day.Add(timeOfDay(9, 0) - 20*time.Second), windows: []config.Window{minute}, starts: true},
		"recurring, begins after the estimate": {now: day.Add(timeOfDay(9, 0) - 31*time.Second), windows: []config.Window{minute}},
		"recurring, over":                      {now: day.Add(timeOfDay(9, 1)), windows: []config.Window{minute}},
	} {
		t.Run(name, func(t *testing.T) {
			f, b := newWindowFleet(t, c.now, c.windows...)
			f.booked.Store(&[]BookedWindow{{Model: "m", From: c.now.Add(c.from), To: c.now.Add(c.to)}})
			f.reconcile(c.now)
			if got := b.is(Starting); got != c.starts {
				t.Errorf("started: %t, want %t", got, c.starts)
			}
		})
	}
	if from := day.Add(timeOfDay(8, 0)); !overlaps(minute, from, from.Add(2*time.Hour)) || overlaps(minute, from, from.Add(59*time.Minute)) {
		t.Error("a period of hours does not overlap exactly the window within it")
	}
}

// The measured boot is much shorter than the estimate by which the model was started.
func TestModelStartedForAWindowDoesNotIdleOutBeforeIt(t *testing.T) {
	now := time.Date(2026, time.November, 18, 0, 0, 0, 0, time.UTC)
	f, b := newWindowFleet(t, now)
	f.booked.Store(&[]BookedWindow{{Model: "m", From: now.Add(20 * time.Second), To: now.Add(2 * time.Minute)}})
	b.bootTimes.add(time.Second)
	b.apply(eventAnswered, "")
	b.clock = func() time.Time { return now.Add(3 * time.Second) }
	f.reconcile(now.Add(3 * time.Second))
	if state, reason := b.State(); state != Ready {
		t.Errorf("got %s (%s), want %s", state, reason, Ready)
	}
}
