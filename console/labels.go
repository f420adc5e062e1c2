package console

import "fmt"

// labels are the texts that several pages use, by the names that templates have for them.
var labels = map[string]string{
	"month":           "Tokens per month",
	"day":             "Tokens per day",
	"input":           "Prompt tokens per month",
	"output":          "Completion tokens per month",
	"this month":      "This month",
	"today":           "Today",
	"prompt month":    "Prompt tokens, this month",
	"complete month":  "Completion tokens, this month",
	"last use":        "Last used",
	"concurrency":     "Concurrent requests",
	"server default":  "blank = server default",
	"no limit":        "No limit",
	"blank no limit":  "Blank = no limit.",
	"account budget":  "The account’s budgets apply in addition.",
	"by operator":     "set by the operator",
	"create key":      "Create key",
	"create invite":   "Create invitation",
	"utc windows":     "Days and months are in UTC.",
	"set password":    "Set password",
	"change password": "Change password",
	"never stored":    "Prompt text is never stored.",
	"anonymous":       "Anonymous",
	"saved":           "Saved.",
}

// label returns one of labels. A name that is not there is an error of the template.
func label(name string) (string, error) {
	text, ok := labels[name]
	if !ok {
		return "", fmt.Errorf("there is no label %q", name)
	}
	return text, nil
}
