// Package webhook asks the webhooks that an ApplicationDefinition's block names: which accounts an application has, and
// how a password is stored. Its types are what goes over the wire, for whoever writes such a webhook.
//
// A webhook is an HTTPS server, by HTTP/2 or HTTP/1.1. It is sent one POST with a JSON object and answers it with status
// 200, Content-Type application/json and one JSON object, in full and with no field but those described here. It is asked
// once: whatever else it answers, or no answer in time, fails what was being done, and nothing is written. It is not
// redirected, and no proxy stands between.
package webhook

// APIVersion is the version of requests and answers. A webhook refuses what it does not know with a status other than
// 200.
const APIVersion = "webhook.credentials.cozystack.io/v1alpha1"

// The kinds of requests and answers.
const (
	KindAccountsRequest = "AccountsRequest"
	KindAccountsAnswer  = "AccountsAnswer"
	KindFormatRequest   = "FormatRequest"
	KindFormatAnswer    = "FormatAnswer"
)

// A Head is what every request and every answer begins with.
type Head struct {
	// APIVersion is always webhook.credentials.cozystack.io/v1alpha1.
	APIVersion string `json:"apiVersion"`
	// Kind is that of the request or of the answer to it.
	Kind string `json:"kind"`
	// UID is another for each request. The answer repeats it.
	UID string `json:"uid"`
}

// An AccountsRequest asks which accounts an application has, in at most 2 MiB. The same application is asked for again and again, at any
// time and by several mintlogs; the answer must depend on the request alone and change nothing.
type AccountsRequest struct {
	Head `json:",inline"`
	// Application is whose accounts are asked for.
	Application Application `json:"application"`
}

// An Application is one instance of a kind.
type Application struct {
	// Namespace of the application.
	Namespace string `json:"namespace"`
	// Kind of the application, as its definition has it.
	Kind string `json:"kind"`
	// Name of the application.
	Name string `json:"name"`
	// Release is the name of its HelmRelease.
	Release string `json:"release"`
	// Values are the HelmRelease's spec.values. They can hold secrets of the application's.
	Values map[string]any `json:"values"`
}

// An AccountsAnswer says which accounts the application has: at most 4,096, in at most 1 MiB. An empty list means that
// it has none and that their Secrets may go; a webhook that does not know must fail instead.
type AccountsAnswer struct {
	Head `json:",inline"`
	// Accounts are all of them, in any order.
	Accounts []Account `json:"accounts"`
}

// An Account is one login of an application.
type Account struct {
	// Name of the account. Its Secret is named after it.
	Name string `json:"name"`
	// Username is the login; the name, if it is empty.
	Username string `json:"username,omitempty"`
	// Owner is empty, or "platform" for an account that is left alone: no Secret, no credential, no mint.
	Owner string `json:"owner,omitempty"`
}

// A FormatRequest asks for the stored form of a password that was just generated. It holds the password: whoever
// answers it is inside the trust boundary, like the mint server itself, and must neither keep nor log it.
type FormatRequest struct {
	Head `json:",inline"`
	// Format is the name of the format, as the block has it.
	Format string `json:"format"`
	// Username is the account's login.
	Username string `json:"username"`
	// Password is the plaintext.
	Password string `json:"password"`
}

// A FormatAnswer holds the stored form: what the engine needs to check the password with, as it is to stand in the
// account Secret. The answer has at most 16 KiB. It must not be the password, if the engine takes anything else.
type FormatAnswer struct {
	Head `json:",inline"`
	// Stored is 1 to 4,096 characters of printable ASCII, the first and last of which are no blanks.
	Stored string `json:"stored"`
}
