package notify

import (
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"unicode/utf8"
)

// chat is what chat servers show of a notice. Nothing in it mentions anybody or shows a link under another text, whoever has
// written parts of it.
type chat struct {
	Type        string          `json:"type,omitempty"`
	Text        string          `json:"text"`    // of Slack and Mattermost
	Content     string          `json:"content"` // of Discord
	Mentions    mentions        `json:"allowed_mentions"`
	Attachments json.RawMessage `json:"attachments,omitempty"` // of Teams
}

// mentions says whom Discord notifies by the content: nobody.
type mentions struct {
	Parse []string `json:"parse"`
}

// adaptiveCard is a card of a paragraph that Teams shows as it is; in a TextBlock, it would interpret Markdown.
const adaptiveCard = `[{"contentType":"application/vnd.microsoft.card.adaptive","content":{` +
	`"$schema":"http://adaptivecards.io/schemas/adaptive-card.json","type":"AdaptiveCard","version":"1.2",` +
	`"body":[{"type":"RichTextBlock","inlines":[{"type":"TextRun","text":%s}]}]}}]`

// newChat returns what the chat server of a webhook shows. Slack and Discord have attachments of their own and refuse cards, and so
// has Mattermost, whose webhooks have this path on any host.
func newChat(text string, webhook *url.URL) chat {
	host := webhook.Hostname()
	c := chat{Text: escapeSlack(text), Content: escapeDiscord(text), Mentions: mentions{Parse: []string{}}}
	if belongsTo(host, "slack.com") || belongsTo(host, "discord.com") || belongsTo(host, "discordapp.com") || strings.HasPrefix(webhook.Path, "/hooks/") {
		return c
	}
	c.Type = "message"
	quoted, _ := json.Marshal(text) // a string can always be encoded
	c.Attachments = fmt.Appendf(nil, adaptiveCard, quoted)
	return c
}

func belongsTo(host, domain string) bool {
	return host == domain || strings.HasSuffix(host, "."+domain)
}

// invisible is a space without width, which ends a mention or a link.
const invisible = "\u200b"

var (
	slackEntities = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "](", "]"+invisible+"(", "][", "]"+invisible+"[", "]:", "]"+invisible+":")
	// domain is what follows the @ of an e-mail address.
	domain = regexp.MustCompile(`^[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+`)
)

// escapeSlack escapes what Slack interprets, and ends the mentions and links of Mattermost's Markdown.
func escapeSlack(text string) string { return slackEntities.Replace(endMentions(text)) }

// endMentions ends what may be a mention: each @ that is not within an e-mail address.
func endMentions(text string) string {
	var b strings.Builder
	for i, r := range text {
		b.WriteRune(r)
		if r == '@' && (i == 0 || !isAlphanumeric(text[i-1]) || !domain.MatchString(text[i+1:])) {
			b.WriteString(invisible)
		}
	}
	return b.String()
}

func isAlphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
}

// maxContent is the most that Discord takes, in characters.
const maxContent = 2000

// escapeDiscord escapes Discord's Markdown and cuts the text to what Discord takes.
func escapeDiscord(text string) string {
	var b strings.Builder
	length := 0
	for _, r := range endMentions(text) {
		escaped := string(r)
		if strings.ContainsRune("\\`*_~|<>[]()#", r) {
			escaped = `\` + escaped
		}
		if length += utf8.RuneCountInString(escaped); length >= maxContent {
			b.WriteString("…")
			break
		}
		b.WriteString(escaped)
	}
	return b.String()
}
