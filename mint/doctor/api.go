package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/cert"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/mint/server"
)

const apiServiceName = "v1alpha1." + v1alpha1.GroupName

var apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

// soon is how long before its end a certificate should have been renewed: what renews at two thirds of a life is overdue.
const soon = 14 * 24 * time.Hour

// maxAnswer is how much of an answer is read, in bytes.
const maxAnswer = 4 << 20

// apiServiceFacts are what the APIService says.
type apiServiceFacts struct {
	missing                    bool
	available, reason, message string // of the condition Available
	namespace, service         string // empty: kube-apiserver would serve it itself
	port                       int64
	insecure                   bool
	bundle                     []byte // PEM
}

func (f apiServiceFacts) target() string {
	return fmt.Sprintf("%s/%s:%d", f.namespace, f.service, f.port)
}

func (d *Doctor) readAPIService(ctx context.Context) (apiServiceFacts, error) {
	u, err := d.objects.Resource(apiServices).Get(ctx, apiServiceName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return apiServiceFacts{missing: true}, nil
	}
	if err != nil {
		return apiServiceFacts{}, err
	}
	return readAPIServiceObject(u), nil
}

func readAPIServiceObject(u *unstructured.Unstructured) apiServiceFacts {
	f := apiServiceFacts{port: 443}
	f.namespace, _, _ = unstructured.NestedString(u.Object, "spec", "service", "namespace")
	f.service, _, _ = unstructured.NestedString(u.Object, "spec", "service", "name")
	if port, ok, _ := unstructured.NestedInt64(u.Object, "spec", "service", "port"); ok {
		f.port = port
	}
	f.insecure, _, _ = unstructured.NestedBool(u.Object, "spec", "insecureSkipTLSVerify")
	bundle, _, _ := unstructured.NestedString(u.Object, "spec", "caBundle")
	f.bundle, _ = base64.StdEncoding.DecodeString(bundle)
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == "Available" {
			f.available, _ = c["status"].(string)
			f.reason, _ = c["reason"].(string)
			f.message, _ = c["message"].(string)
		}
	}
	return f
}

const rightAPIService = "get the APIService " + apiServiceName

func (d *Doctor) lookAtAPIService(ctx context.Context) []Finding {
	f, err := d.apiService()
	if err != nil {
		return []Finding{unseen(err, rightAPIService)}
	}
	findings := judgeAPIService(f)
	if f.missing || f.service == "" {
		return findings
	}
	service, err := d.client.CoreV1().Services(f.namespace).Get(ctx, f.service, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return append(findings, fail("install the Service with mintlog's chart, or point the APIService at the right one", "there is no Service %s/%s", f.namespace, f.service))
	case err != nil:
		return append(findings, unseen(err, "get services in the namespace "+f.namespace))
	case service.Spec.Type == corev1.ServiceTypeExternalName:
		return append(findings, good("the Service leads to %s", service.Spec.ExternalName))
	}
	slices, err := d.client.DiscoveryV1().EndpointSlices(f.namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + f.service})
	if err != nil {
		return append(findings, unseen(err, "list endpointslices in the namespace "+f.namespace))
	}
	return append(findings, judgeEndpoints(f, slices.Items))
}

func judgeAPIService(f apiServiceFacts) []Finding {
	const install = "install mintlog's chart, which brings the APIService"
	switch {
	case f.missing:
		return []Finding{fail(install, "there is no APIService %s: the credentials API is not served", apiServiceName)}
	case f.service == "":
		return []Finding{fail(install, "the APIService names no Service")}
	}
	var findings []Finding
	switch f.available {
	case "True":
		findings = append(findings, good("Available, served by %s", f.target()))
	case "":
		findings = append(findings, fail("wait for kube-apiserver to look; if it stays so, see kube-apiserver's log", "kube-apiserver has not said whether %s answers", f.target()))
	default:
		findings = append(findings, fail("see that the mint server runs and is ready, that kube-apiserver reaches "+f.target()+" past every NetworkPolicy, and that caBundle signs its certificate; until then no namespace of the cluster can be deleted",
			"not Available, served by %s: %s: %s", f.target(), f.reason, f.message))
	}
	if f.insecure {
		findings = append(findings, fail("take insecureSkipTLSVerify out and set caBundle", "kube-apiserver verifies no certificate: whoever is in its way learns every password"))
	}
	return findings
}

func judgeEndpoints(f apiServiceFacts, list []discoveryv1.EndpointSlice) Finding {
	ready := map[string]bool{}
	for _, s := range list {
		for _, e := range s.Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				for _, address := range e.Addresses {
					ready[address] = true
				}
			}
		}
	}
	if len(ready) == 0 {
		return fail("see why the mint server's pods are not ready", "no ready endpoint behind %s", f.target())
	}
	return good("%d ready endpoints", len(ready))
}

// certificateFacts are the mint server's certificate and what kube-apiserver trusts.
type certificateFacts struct {
	bundle []byte // PEM
	host   string // that kube-apiserver asks for
	chain  []*x509.Certificate
	from   string // where the chain was seen
}

func (d *Doctor) lookAtCertificate(ctx context.Context) []Finding {
	f, err := d.apiService()
	if err != nil {
		return []Finding{unseen(err, rightAPIService)}
	}
	if f.missing || f.service == "" {
		return []Finding{warn("see the check api-service", "not looked at: no APIService says where the mint server is")}
	}
	facts := certificateFacts{bundle: f.bundle, host: f.service + "." + f.namespace + ".svc"}
	if facts.chain, facts.from, err = d.servingChain(ctx, f); err != nil {
		return append(judgeAuthorities(facts.bundle, d.Now()), warn("give --mint-address, where this machine reaches the mint server, or look with the right to get the Secret "+d.Identities.Namespace+"/"+d.ServingSecret,
			"the serving certificate was not seen: %s", words(err)))
	}
	return append(judgeAuthorities(facts.bundle, d.Now()), judgeCertificate(facts, d.Now())...)
}

// servingChain is the chain that the mint server shows, or else the one in its Secret, of which nothing else is looked at.
func (d *Doctor) servingChain(ctx context.Context, f apiServiceFacts) (chain []*x509.Certificate, from string, err error) {
	address := d.MintAddress
	if address == "" {
		if service, err := d.client.CoreV1().Services(f.namespace).Get(ctx, f.service, metav1.GetOptions{}); err == nil {
			host := service.Spec.ClusterIP
			if service.Spec.Type == corev1.ServiceTypeExternalName {
				host = service.Spec.ExternalName
			}
			address = net.JoinHostPort(host, fmt.Sprint(f.port))
		}
	}
	chain, dialed := shownChain(ctx, address)
	if dialed == nil {
		return chain, address, nil
	}
	if d.MintAddress != "" {
		return nil, "", dialed
	}
	secret, err := d.client.CoreV1().Secrets(d.Identities.Namespace).Get(ctx, d.ServingSecret, metav1.GetOptions{})
	if err != nil {
		return nil, "", errors.Join(dialed, errors.New(words(err)))
	}
	chain, err = cert.ParseCertsPEM(secret.Data[corev1.TLSCertKey])
	if err != nil {
		return nil, "", fmt.Errorf("the Secret %s/%s holds no certificate in PEM", d.Identities.Namespace, d.ServingSecret)
	}
	return chain, "the Secret " + d.ServingSecret, nil
}

// shownChain is what a server shows, whoever signed it: it is judged afterwards, and nothing is sent.
func shownChain(ctx context.Context, address string) ([]*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	dialer := &tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
	connection, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	defer connection.Close()
	return connection.(*tls.Conn).ConnectionState().PeerCertificates, nil
}

func judgeAuthorities(bundle []byte, now time.Time) []Finding {
	authorities, err := cert.ParseCertsPEM(bundle)
	if err != nil {
		return []Finding{fail("set spec.caBundle of the APIService: mintlog certificates, cert-manager's injector or the chart's tls.caBundle does", "the APIService's caBundle holds no certificate")}
	}
	last := slices.MaxFunc(authorities, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	return []Finding{judgeEnd("the authority in caBundle", last.NotAfter, now, "renew the authority and put it into caBundle before a certificate that it signed is served")}
}

// judgeEnd judges how long a certificate is good.
func judgeEnd(what string, end, now time.Time, mend string) Finding {
	left := end.Sub(now)
	days := int(left / (24 * time.Hour))
	switch {
	case left <= 0:
		return fail(mend, "%s ended on %s", what, end.UTC().Format(time.DateOnly))
	case left < soon:
		return warn(mend, "%s ends in %d days, on %s", what, days, end.UTC().Format(time.DateOnly))
	}
	return good("%s is good for %d days", what, days)
}

func judgeCertificate(f certificateFacts, now time.Time) []Finding {
	const renew = "have it issued again for that name by the authority in caBundle: mintlog certificates, cert-manager, or whoever keeps the Secret"
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	roots.AppendCertsFromPEM(f.bundle)
	for _, c := range f.chain[1:] {
		intermediates.AddCert(c)
	}
	leaf := f.chain[0]
	findings := []Finding{judgeEnd("the serving certificate ("+f.from+")", leaf.NotAfter, now, renew)}
	// Its time is judged above: what is verified is who signed it, and for which name.
	at := now
	if now.After(leaf.NotAfter) {
		at = leaf.NotAfter
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates, DNSName: f.host, CurrentTime: at}); err != nil {
		return append(findings, fail(renew, "kube-apiserver does not take the serving certificate for %s: %s", f.host, err))
	}
	return append(findings, good("caBundle signs it, for %s", f.host))
}

func (d *Doctor) lookAtFrontProxy(ctx context.Context) []Finding {
	published, err := d.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		published, err = &corev1.ConfigMap{}, nil
	}
	if err != nil {
		return []Finding{unseen(err, "get the configmap extension-apiserver-authentication in the namespace kube-system")}
	}
	return judgeFrontProxy(published.Data, d.Now())
}

func judgeFrontProxy(published map[string]string, now time.Time) []Finding {
	authorities, names, err := server.FrontProxy(published)
	if err != nil {
		why, mend, ok := strings.Cut(err.Error(), ": ")
		if !ok {
			mend = "set kube-apiserver's --requestheader-client-ca-file and --requestheader-allowed-names"
		}
		return []Finding{fail(mend, "%s", why)}
	}
	last := slices.MaxFunc(authorities, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	return []Finding{
		good("only %s may name users; the front proxy's authority is not that of the users' certificates", strings.Join(names, ", ")),
		judgeEnd("the front proxy's authority", last.NotAfter, now, "renew the authority of kube-apiserver's --requestheader-client-ca-file"),
	}
}

// An answer is what kube-apiserver, or the mint server behind it, answered.
type answer struct {
	code    int
	message string // of an error
	date    time.Time
	asked   time.Time
	took    time.Duration
}

// ask sends a request through kube-apiserver. What a success says is not looked at.
func (d *Doctor) ask(ctx context.Context, method, path, body string, header http.Header) (answer, error) {
	request, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(d.Config.Host, "/")+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	request.Header = header
	if request.Header == nil {
		request.Header = http.Header{}
	}
	request.Header.Set("Accept", "application/json")
	a := answer{asked: d.Now()}
	response, err := d.http.Do(request)
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	a.took, a.code = d.Now().Sub(a.asked), response.StatusCode
	a.date, _ = http.ParseTime(response.Header.Get("Date"))
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil || a.code < 400 {
		return a, err
	}
	var status metav1.Status
	if json.Unmarshal(text, &status) == nil && status.Kind == "Status" {
		a.message = status.Message
	} else {
		a.message = http.StatusText(a.code)
	}
	return a, nil
}

const groupPath = "/apis/" + v1alpha1.GroupName + "/v1alpha1"

func (d *Doctor) lookAtAPI(ctx context.Context) []Finding {
	discovery, err := d.ask(ctx, http.MethodGet, groupPath, "", nil)
	if err != nil {
		return []Finding{fail("see that kube-apiserver can be reached with this kubeconfig", "no answer: %s", words(err))}
	}
	findings := []Finding{judgeAPI("what it serves", discovery)}
	if discovery.code != http.StatusOK {
		return findings
	}
	enrolled, err := d.enrolled()
	if err != nil {
		return findings
	}
	for _, e := range enrolled {
		if !e.Mint {
			continue
		}
		list, err := d.ask(ctx, http.MethodGet, groupPath+"/namespaces/"+e.Namespace+"/credentials", "", nil)
		if err != nil {
			return append(findings, fail("see the mint server's log", "no list of %s: %s", e.Namespace, words(err)))
		}
		return append(findings, judgeAPI("the credentials of "+e.Namespace, list))
	}
	return findings
}

func judgeAPI(what string, a answer) Finding {
	switch {
	case a.code == http.StatusOK:
		return good("the mint server answered %s through kube-apiserver in %s", what, a.took.Round(time.Millisecond))
	case a.code == http.StatusForbidden || a.code == http.StatusUnauthorized:
		return warn("look with an identity that may list credentials."+v1alpha1.GroupName, "not looked at: %s: %s", what, a.message)
	case a.code == http.StatusNotFound:
		return fail("install the APIService (mintlog's chart brings it)", "kube-apiserver does not know the credentials API")
	}
	return fail("see that the mint server runs and is ready, and its log", "asked for %s, kube-apiserver answered %d: %s", what, a.code, a.message)
}
