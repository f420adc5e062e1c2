package console

import (
	"basegate/console/history"
	apierr "basegate/errors"
)

// errorWords are the console's own words for an error, which is known by its code.
type errorWords struct {
	Text   string `json:"text"`             // a sentence: what has happened
	Action string `json:"action,omitempty"` // what to do
	Retry  bool   `json:"retry,omitempty"`  // it is to try again; the scripts say when
	Quote  bool   `json:"quote,omitempty"`  // scripts show the message of the response in their place: it has the field, or what to do instead
}

// String returns what a page shows.
func (w errorWords) String() string {
	switch {
	case w.Retry:
		return w.Text + " Try again in a few seconds."
	case w.Action == "":
		return w.Text
	}
	return w.Text + " " + w.Action
}

// errorTable is the only place with the texts of errors: those of the API and its batches, those that the console's pages and its API respond
// with, and those that its scripts find.
var errorTable = map[apierr.Code]errorWords{
	apierr.InvalidRequest:             {Text: "The request was not accepted.", Action: "Correct the field and send it again.", Quote: true},
	apierr.BadJSON:                    {Text: "The request is not JSON.", Action: "Correct it and send it again.", Quote: true},
	apierr.ModelNotFound:              {Text: "There is no such model for this key.", Action: "Choose another model or key.", Quote: true},
	apierr.ContextLengthExceeded:      {Text: "The request exceeds the model’s context.", Action: "Shorten the text, or ask for fewer tokens.", Quote: true},
	apierr.ChatCompletionsUnsupported: {Text: "The model does not chat.", Action: "Choose one that does, or use completions."},
	apierr.InvalidAPIKey:              {Text: "The key is not valid: it may be paused, expired or revoked.", Action: "Choose another key, or create one on the dashboard."},
	apierr.PermissionDenied:           {Text: "The key has no right to this.", Action: "Ask the operator.", Quote: true},
	apierr.NotFound:                   {Text: "What was asked for does not exist.", Action: "Check the name.", Quote: true},
	apierr.MethodNotAllowed:           {Text: "The path has another method.", Action: "Check it in the API’s reference."},
	apierr.AdapterExists:              {Text: "A model or an adapter has this name.", Action: "Choose another name."},
	apierr.FileInUse:                  {Text: "A batch that has not ended needs the file.", Action: "Cancel the batch, or wait for its end."},
	apierr.BatchNotCancellable:        {Text: "The batch has ended, or is about to.", Action: "Its results are in its files."},
	apierr.IdempotencyConflict:        {Text: "The idempotency key was used for another request.", Action: "Use a new one."},
	apierr.RequestTooLarge:            {Text: "The request is too large.", Action: "Split it.", Quote: true},
	apierr.StorageQuotaExceeded:       {Text: "The account’s files are too large or too many.", Action: "Delete some.", Quote: true},
	apierr.UnsupportedEncoding:        {Text: "The request is compressed in a way that is not supported.", Action: "Use gzip or none."},
	apierr.BudgetExceeded:             {Text: "The request exceeds what is left of a budget.", Action: "Lower max_tokens, choose another key, or wait until the budget resets."},
	apierr.TooManyBatches:             {Text: "Too many batches of the account have not ended.", Action: "Wait for one, or cancel one."},
	apierr.TooManyKeys:                {Text: "The key has made as many keys as it may.", Action: "Revoke one."},
	apierr.UpstreamUnreachable:        {Text: "The model’s servers do not respond.", Retry: true},
	apierr.VLLMOutOfMemory:            {Text: "The model’s server has run out of memory.", Action: "Shorten the prompt, or lower max_tokens or n."},
	apierr.VLLMContextLength:          {Text: "The model’s server found the prompt too long.", Action: "Shorten it."},
	apierr.VLLMEngineDead:             {Text: "The model’s server has stopped.", Retry: true},
	apierr.UpstreamServerError:        {Text: "The model’s server has failed.", Retry: true},
	apierr.AdapterUnavailable:         {Text: "No server can load the adapter.", Action: "Correct its files.", Quote: true},
	apierr.ColdBoot:                   {Text: "The model is starting.", Retry: true},
	apierr.CircuitOpen:                {Text: "The model’s servers have failed repeatedly, and are left alone for a moment.", Retry: true},
	apierr.Overloaded:                 {Text: "The gateway is busy.", Retry: true},
	apierr.StorageUnavailable:         {Text: "Files and batches cannot be read or written, and nothing was stored.", Retry: true},
	apierr.Internal:                   {Text: "This is an error of the gateway and has been logged.", Action: "Try again, and send feedback if it persists."},

	history.ClientGone: {Text: "The client disconnected before the response was complete."},
	"batch_expired":    {Text: "The batch expired before the line had ended."},
	"batch_cancelled":  {Text: "The batch was cancelled, or its key revoked, before the line had ended."},

	// Of the console's pages and its API.
	codePageNotFound:  {Text: "There is nothing at this address.", Action: "Check it, or go to one of the pages above."},
	codeSignedOut:     {Text: "Your session has ended.", Action: "Sign in again to continue; what you have typed is kept."},
	codeCrossOrigin:   {Text: "This form was sent by another site, so nothing was changed.", Action: "Open the console and try again there."},
	codeFormTooLarge:  {Text: "The form is larger than the limit.", Action: "Nothing was changed."},
	codeUnreadable:    {Text: "The request arrived incomplete or malformed.", Action: "Nothing was changed."},
	codeSlowRequest:   {Text: "The request arrived too slowly, and nothing was changed.", Action: "Try again."},
	codeNoDatabase:    {Text: "The database does not respond, and nothing was changed.", Action: "Try again in a moment."},
	codeReportsBusy:   {Text: "Too many reports or downloads are running.", Retry: true},
	codeReportTooSlow: {Text: "The report took too long.", Action: "Choose a shorter period or another filter, or try again later."},

	// Of the workbench's scripts.
	"connection_lost": {Text: "The connection to the gateway was lost.", Action: "Check your connection and try again."},
	"stream_ended":    {Text: "The answer ended early.", Retry: true},
}

// The codes of the console's own.
const (
	codePageNotFound  apierr.Code = "page_not_found"
	codeSignedOut     apierr.Code = "unauthorized"
	codeCrossOrigin   apierr.Code = "cross_origin"
	codeFormTooLarge  apierr.Code = "form_too_large"
	codeUnreadable    apierr.Code = "unreadable_request"
	codeSlowRequest   apierr.Code = "slow_request"
	codeNoDatabase    apierr.Code = "database_unavailable"
	codeReportsBusy   apierr.Code = "reports_busy"
	codeReportTooSlow apierr.Code = "report_too_slow"
)
