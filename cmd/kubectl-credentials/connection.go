package main

import (
	"context"
	"fmt"
	"net/http"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/json"

	"github.com/mintlog/mintlog/cmd/printable"
	"github.com/mintlog/mintlog/mint/api/v1alpha1"
)

// readRetries is how often a read is repeated while the server asks for it by Retry-After. A mint or revoke is sent
// once: a 503 does not say that nothing was stored, a repeat under --if-id would then collide with itself, and every
// mint is an entry of the history and work for the engine's operator. The exit code tells a script to repeat.
const readRetries = 3

// completionTimeout is how long a shell waits for names.
const completionTimeout = 3 * time.Second

// A connection is the way from the command line's flags to the API server.
type connection struct {
	flags    *genericclioptions.ConfigFlags
	terminal terminal
	level    int // of what is told about requests
}

// open returns a client and the namespace that flags and kubeconfig name.
func (c *connection) open() (*client, error) {
	config, namespace, err := c.configuration()
	if err != nil {
		return nil, err
	}
	config.APIPath = "/apis"
	config.GroupVersion = &v1alpha1.SchemeGroupVersion
	config.ContentType = runtime.ContentTypeJSON
	config.AcceptContentTypes = runtime.ContentTypeJSON
	config.NegotiatedSerializer = statusCodec()
	config.WarningHandler = warnings{c.terminal}
	config.UserAgent = fmt.Sprintf("kubectl-credentials/%s (%s/%s)", version(), goruntime.GOOS, goruntime.GOARCH)
	config.QPS = -1 // a command asks what it needs to; priority and fairness are the server's
	if c.level >= tellRequests {
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return teller{next: next, terminal: c.terminal} })
	}
	r, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, other("", "preparing the connection: %w", err)
	}
	return &client{rest: r, namespace: namespace}, nil
}

// nowhere is the server that kubectl's flags stand for where nothing names one.
const nowhere = "http://localhost:8080"

func (c *connection) configuration() (*rest.Config, string, error) {
	if _, err := clientcmd.ParseTimeout(*c.flags.Timeout); err != nil {
		return nil, "", usage("--request-timeout is %q: it is a number of seconds, or one with its unit such as 1s, 2m, 3h", *c.flags.Timeout)
	}
	loader := c.flags.ToRawKubeConfigLoader()
	raw, err := loader.RawConfig()
	if err != nil {
		return nil, "", unreadable(err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, "", unreadable(err)
	}
	if problems := rest.IsValidPathSegmentName(namespace); len(problems) > 0 {
		return nil, "", usage("%q is not the name of a namespace: it %s", namespace, strings.Join(problems, ", "))
	}
	config, err := c.flags.ToRESTConfig()
	if err != nil {
		return nil, "", unreadable(err)
	}
	if len(raw.Clusters) == 0 && *c.flags.APIServer == "" && config.Host == nowhere {
		return nil, "", other("Give --kubeconfig, or set KUBECONFIG.", "no kubeconfig names a cluster")
	}
	return config, namespace, nil
}

func unreadable(kubeconfig error) *failure {
	hint := ""
	if clientcmd.IsContextNotFound(kubeconfig) {
		hint = "See kubectl config get-contexts."
	}
	return other(hint, "reading the kubeconfig: %w", kubeconfig)
}

// statusCodec decodes the errors of API servers, which is all that is decoded by the client library.
func statusCodec() runtime.NegotiatedSerializer {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return serializer.NewCodecFactory(scheme).WithoutConversion()
}

// warnings prints what the server puts into Warning headers.
type warnings struct{ terminal terminal }

func (w warnings) HandleWarningHeader(code int, _, text string) {
	if code == 299 && text != "" {
		fmt.Fprintf(w.terminal.err, "Warning: %s\n", printable.Escape(text))
	}
}

// tellRequests is the level of --v at which requests are told of. No level tells more.
const tellRequests = 6

// A teller tells on standard error which requests were made: never a header or a body, in which tokens and passwords are.
type teller struct {
	next     http.RoundTripper
	terminal terminal
}

func (t teller) RoundTrip(r *http.Request) (*http.Response, error) {
	began := time.Now()
	response, err := t.next.RoundTrip(r)
	came := "no answer"
	if err == nil {
		came = response.Status
	}
	fmt.Fprintf(t.terminal.err, "%s %s: %s in %d ms\n", printable.Escape(r.Method), printable.Escape(r.URL.Redacted()), printable.Escape(came), time.Since(began).Milliseconds())
	return response, err
}

// A client speaks to the credentials of one namespace. Its errors are failures.
type client struct {
	rest      rest.Interface
	namespace string
}

// list returns the body of a namespace's list in the media type asked for. An empty selector is everything.
func (c *client) list(ctx context.Context, namespace, selector, accept string) ([]byte, error) {
	request := c.rest.Get().Namespace(namespace).Resource(v1alpha1.CredentialResource).SetHeader("Accept", accept).MaxRetries(readRetries)
	if selector != "" {
		request.Param("labelSelector", selector)
	}
	if accept == acceptTable {
		request.Param("includeObject", string(metav1.IncludeNone))
	}
	return c.answer(ctx, request, call{namespace: namespace})
}

// get returns the body of one credential.
func (c *client) get(ctx context.Context, credential string) ([]byte, error) {
	return c.answer(ctx, c.reading(credential), call{namespace: c.namespace, credential: credential})
}

// credential reads one credential. Its failure suggests no other name.
func (c *client) credential(ctx context.Context, name string) (v1alpha1.Credential, error) {
	text, err := c.answer(ctx, c.reading(name), call{namespace: c.namespace})
	if err != nil {
		return v1alpha1.Credential{}, err
	}
	return decodeCredential(text)
}

func (c *client) reading(credential string) *rest.Request {
	return c.rest.Get().Namespace(c.namespace).Resource(v1alpha1.CredentialResource).Name(credential).MaxRetries(readRetries)
}

func decodeCredential(text []byte) (v1alpha1.Credential, error) {
	var answer v1alpha1.Credential
	if err := json.UnmarshalCaseSensitivePreserveInts(text, &answer); err != nil {
		return answer, other("", "the server's answer is not a credential: %w", err)
	}
	if answer.Kind != v1alpha1.CredentialKind {
		return answer, other("", "the server's answer is not a credential")
	}
	return answer, nil
}

// post sends the body of a mint or revoke, once, and decodes the answer.
func (c *client) post(ctx context.Context, a call, body []byte, answer any) error {
	request := c.rest.Post().Namespace(c.namespace).Resource(v1alpha1.CredentialResource).Name(a.credential).SubResource(a.subresource).
		Param("fieldValidation", metav1.FieldValidationStrict).Body(body).
		SetHeader("Content-Type", runtime.ContentTypeJSON).MaxRetries(0)
	if a.dryRun {
		request.Param("dryRun", metav1.DryRunAll)
	}
	text, err := c.answer(ctx, request, a)
	if err != nil {
		return err
	}
	if json.UnmarshalCaseSensitivePreserveInts(text, answer) != nil {
		// The error may quote what it could not read, and that may be the password.
		return other(a.unknown(), "the server's answer could not be read")
	}
	return nil
}

func (c *client) answer(ctx context.Context, request *rest.Request, a call) ([]byte, error) {
	result := request.Do(ctx)
	if err := result.Error(); err != nil {
		f := a.failed(err)
		if f.code == exitNotFound && a.credential != "" && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
			f.hint = c.suggest(ctx, a.credential) + f.hint
		}
		return nil, f
	}
	text, _ := result.Raw()
	return text, nil
}

// suggest names the credential that was probably meant, if there is one and the caller may list.
func (c *client) suggest(ctx context.Context, given string) string {
	names, err := c.names(ctx)
	if err != nil {
		return ""
	}
	if near, ok := nearest(given, names); ok {
		return fmt.Sprintf("Did you mean %s? ", printable.Name(near))
	}
	return ""
}

func (c *client) names(ctx context.Context) ([]string, error) {
	text, err := c.list(ctx, c.namespace, "", runtime.ContentTypeJSON)
	if err != nil {
		return nil, err
	}
	return names(text)
}

// complete offers the names of the namespace's credentials to a shell.
func (c *connection) complete(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	client, err := c.open()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	names, err := client.names(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return slices.DeleteFunc(names, func(n string) bool {
		return !strings.HasPrefix(n, begun) || printable.Name(n) != n
	}), cobra.ShellCompDirectiveNoFileComp
}

// oneName reads the argument NAME, which may also be what `list -o name` printed.
func oneName(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usage("one NAME of a credential is needed, not %d", len(args))
	}
	n := credentialName(args[0])
	if problems := rest.IsValidPathSegmentName(n); n == "" || len(problems) > 0 {
		return usage("%s", strings.Join(append([]string{fmt.Sprintf("%q is not the name of a credential", args[0])}, problems...), ": it "))
	}
	return nil
}

func credentialName(argument string) string {
	kind, n, found := strings.Cut(argument, "/")
	kind = strings.TrimSuffix(kind, "."+v1alpha1.GroupName)
	if found && (kind == "credential" || kind == v1alpha1.CredentialResource) {
		return n
	}
	return argument
}

// nearest returns the other name at the smallest edit distance, if it is small for the length of the name.
func nearest(given string, names []string) (string, bool) {
	best, least := "", max(2, len(given)/4)+1
	for _, n := range names {
		if d := distance(given, n); d > 0 && d < least {
			best, least = n, d
		}
	}
	return best, best != ""
}

// distance is the number of bytes to insert, delete or replace that make a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
