package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/mintlog/mintlog/cmd/printable"
)

// Exit codes; exitCodes is their documentation.
const (
	exitOK = iota
	exitOther
	exitUsage
	exitRefused
	exitNotFound
	exitConflict
	exitLater
	exitTime
)

// A failure is an error, the exit code it stands for, and what to do about it.
type failure struct {
	err  error
	code int
	hint string
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// print writes the error and the hint. A server chose parts of the error, so that none of it reaches a terminal as it
// is; what cobra says of a command line may have several lines.
func (f *failure) print(w io.Writer) {
	text := f.err.Error()
	lines := []string{text}
	if f.code == exitUsage {
		lines = strings.Split(strings.TrimSpace(text), "\n")
	}
	prefix := "error: "
	var status *apierrors.StatusError
	if errors.As(f.err, &status) {
		prefix = fmt.Sprintf("Error from server (%s): ", printable.Escape(string(status.ErrStatus.Reason)))
	}
	for _, line := range lines {
		fmt.Fprintf(w, "%s%s\n", prefix, printable.Escape(line))
		prefix = ""
	}
	if f.hint != "" {
		fmt.Fprintln(w, f.hint)
	}
}

func usage(format string, args ...any) *failure {
	return &failure{
		err:  fmt.Errorf(format, args...),
		code: exitUsage,
		hint: "See --help.",
	}
}

func other(hint, format string, args ...any) *failure {
	return &failure{err: fmt.Errorf(format, args...), code: exitOther, hint: hint}
}

// written is the failure of writing on standard output, nil if there was none.
func written(err error) error {
	if err == nil {
		return nil
	}
	return other("", "writing on standard output: %w", err)
}

// A call is what was asked of the server: what an error is explained by.
type call struct {
	namespace   string
	credential  string // empty: the list
	subresource string // empty: a read
	conditional bool   // with preconditions
	dryRun      bool
}

func (c call) changes() bool { return c.subresource != "" && !c.dryRun }

// history is the command that shows what happened to the credential.
func (c call) history() string {
	return fmt.Sprintf("kubectl credentials history %s -n %s", printable.Name(c.credential), printable.Name(c.namespace))
}

func (c call) list() string { return "kubectl credentials list -n " + printable.Name(c.namespace) }

// failed explains what came back instead of an answer.
func (c call) failed(err error) *failure {
	f := &failure{err: err, code: exitOther}
	switch {
	case apierrors.IsForbidden(err):
		f.code, f.hint = exitRefused, c.forbidden(err)
	case apierrors.IsUnauthorized(err):
		f.hint = "The cluster does not know you: log in again, or choose another --context."
	case apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		f.code = exitNotFound
		f.hint = "This cluster does not serve credentials.credentials.cozystack.io/v1alpha1: see kubectl get apiservices, and choose the right --context."
	case apierrors.IsNotFound(err):
		f.code = exitNotFound
		f.hint = "List what there is: " + c.list()
	case apierrors.IsBadRequest(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse), isNoAPIServer(err):
		f.hint = "What answers there is not the API server of this kubeconfig: see kubectl config view --minify, and choose the right --context."
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		f.code, f.hint = exitConflict, c.conflict()
	case isLater(err):
		f.code, f.hint = exitLater, c.later(err)
	case c.changes() && isUnknown(err):
		f.hint = c.unknown()
	}
	return f
}

func (c call) forbidden(err error) string {
	switch {
	case strings.Contains(err.Error(), "cannot impersonate"):
		return "You may not act as somebody else here: leave out --as, or ask who administers the cluster for the verb impersonate."
	case isNotEnrolled(err):
		return "If " + printable.Name(c.namespace) + " is the namespace you mean, ask the platform's administrators to enrol it."
	case c.subresource != "":
		return fmt.Sprintf("You need create on credentials/%[1]s in %[2]s, which a tenant's admins have (group %[2]s-admin) and its viewers have not.\n"+
			"Check: kubectl auth can-i create credentials.credentials.cozystack.io --subresource=%[1]s -n %[2]s", c.subresource, printable.Name(c.namespace))
	default:
		return fmt.Sprintf("You need get and list on credentials in %[1]s, which everybody in a tenant has (group %[1]s-view and above).\n"+
			"Check: kubectl auth can-i list credentials.credentials.cozystack.io -n %[1]s", printable.Name(c.namespace))
	}
}

func (c call) conflict() string {
	if c.conditional {
		return "Nothing was done. Look at " + c.history() + " and repeat with --if-id <id of the newest entry> if you still want to."
	}
	return "Nothing was done. If somebody was faster, look at " + c.history() + " and repeat, with --if-id <id of the newest entry>."
}

func (c call) later(err error) string {
	// Too many requests are turned away at the door, and without a connection nothing was asked.
	switch {
	case isUnreachable(err):
		return "Nothing was asked. See that kubectl reaches the cluster (kubectl get --raw /version), and try again."
	case !c.changes() || apierrors.IsTooManyRequests(err):
		return "Try again in a moment."
	}
	return c.unknown()
}

// unknown is for an error that does not say whether the password was changed. The command has sent its request once.
func (c call) unknown() string {
	return "It was asked once. Unless the server says that nothing was written, the password may have been changed all the same.\n" +
		"Look at " + c.history() + ": if there is a new entry, nobody has its password. Then, or if there is none, " + c.subresource + " again."
}

// isNotEnrolled tells the mint server's refusal of a whole namespace from one of RBAC's.
func isNotEnrolled(err error) bool { return strings.Contains(err.Error(), "not enrolled") }

// isLater reports whether the same request may well succeed in a moment.
func isLater(err error) bool {
	return apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) ||
		statusCode(err) == http.StatusServiceUnavailable || statusCode(err) == http.StatusGatewayTimeout || statusCode(err) == http.StatusBadGateway ||
		utilnet.IsTimeout(err) || isUnreachable(err) || isCutOff(err)
}

// isUnreachable reports whether no connection came about.
func isUnreachable(err error) bool {
	var of *net.OpError
	return errors.As(err, &of) && of.Op == "dial"
}

// isNoAPIServer reports whether whoever answered showed no certificate that this kubeconfig trusts, or speaks no TLS.
func isNoAPIServer(err error) bool {
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	return errors.As(err, &certificate) || errors.As(err, &record) || errors.Is(err, http.ErrSchemeMismatch)
}

// isUnknown reports whether the request may have taken effect, apart from what isLater says of it.
func isUnknown(err error) bool {
	return errors.Is(err, context.Canceled) || statusCode(err) >= http.StatusInternalServerError
}

// isCutOff reports whether the connection ended before the answer did.
func isCutOff(err error) bool {
	return utilnet.IsConnectionReset(err) || utilnet.IsHTTP2ConnectionLost(err) || utilnet.IsProbableEOF(err) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

func statusCode(err error) int {
	var status *apierrors.StatusError
	if errors.As(err, &status) {
		return int(status.ErrStatus.Code)
	}
	return 0
}
