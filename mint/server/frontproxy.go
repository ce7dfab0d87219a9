package server

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/cert"
)

// Where kube-apiserver publishes how its calls to other API servers can be told from anybody else's.
const (
	authenticationNamespace = metav1.NamespaceSystem
	authenticationConfigMap = "extension-apiserver-authentication"

	clientCAKey     = "client-ca-file"
	frontProxyCAKey = "requestheader-client-ca-file"
	allowedNamesKey = "requestheader-allowed-names"
)

// A frontProxy knows by which certificates kube-apiserver calls as the front proxy. It is the one way in: such a call
// has an audit event in kube-apiserver's log, and no other has.
//
// It follows what kube-apiserver publishes. If that can no longer keep others out, nobody is let in until it can.
type frontProxy struct {
	client kubernetes.Interface
	log    *slog.Logger

	mu        sync.RWMutex
	trust     *trust // nil as long as err is not
	err       error
	listeners []dynamiccertificates.Listener
}

// trust is what a certificate of the front proxy must satisfy.
type trust struct {
	bundle []byte // PEM
	verify x509.VerifyOptions
	names  []string // common names
}

var (
	_ dynamiccertificates.CAContentProvider = &frontProxy{}
	_ dynamiccertificates.ControllerRunner  = &frontProxy{}
)

// newFrontProxy reads what kube-apiserver publishes, and fails if that does not keep others out.
func newFrontProxy(ctx context.Context, client kubernetes.Interface, log *slog.Logger) (*frontProxy, error) {
	published, err := client.CoreV1().ConfigMaps(authenticationNamespace).Get(ctx, authenticationConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		published, err = &corev1.ConfigMap{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read configmap %s/%s, for which the mint server needs the role extension-apiserver-authentication-reader: %w",
			authenticationNamespace, authenticationConfigMap, err)
	}
	p := &frontProxy{client: client, log: log}
	p.apply(published.Data)
	return p, p.Err()
}

// readTrust reads the data of the configmap. Its errors name what to set on kube-apiserver.
func readTrust(published map[string]string) (*trust, error) {
	if published[frontProxyCAKey] == "" {
		return nil, errors.New("kube-apiserver does not call other API servers as a front proxy, so its audit log cannot be relied on: " +
			"start it with --requestheader-client-ca-file, --requestheader-allowed-names, --proxy-client-cert-file and --proxy-client-key-file")
	}
	own, err := cert.ParseCertsPEM([]byte(published[frontProxyCAKey]))
	if err != nil {
		return nil, fmt.Errorf("kube-apiserver's --requestheader-client-ca-file holds no certificates in PEM: %w", err)
	}
	var names []string
	if text := published[allowedNamesKey]; text != "" {
		if err := json.Unmarshal([]byte(text), &names); err != nil {
			return nil, fmt.Errorf("%s of configmap %s/%s is no list of names", allowedNamesKey, authenticationNamespace, authenticationConfigMap)
		}
	}
	if len(names) == 0 {
		return nil, errors.New("any certificate of the front proxy's authority could name any user, past the audit log: " +
			"start kube-apiserver with --requestheader-allowed-names set to the common name in its --proxy-client-cert-file")
	}
	if err := checkApart(own, published[clientCAKey]); err != nil {
		return nil, err
	}
	t := &trust{bundle: []byte(published[frontProxyCAKey]), verify: x509request.DefaultVerifyOptions(), names: names}
	t.verify.Roots = x509.NewCertPool()
	for _, authority := range own {
		t.verify.Roots.AddCert(authority)
	}
	return t, nil
}

// FrontProxy reads what kube-apiserver publishes about its front proxy, the data of the configmap
// extension-apiserver-authentication in kube-system. Its error says why the mint server lets nobody in, and what to set.
func FrontProxy(published map[string]string) (authorities []*x509.Certificate, names []string, err error) {
	t, err := readTrust(published)
	if err != nil {
		return nil, nil, err
	}
	authorities, err = cert.ParseCertsPEM(t.bundle)
	return authorities, t.names, err
}

// checkApart fails if an authority that signs users' certificates is one of the front proxy's, or is signed by one.
func checkApart(frontProxy []*x509.Certificate, clientBundle string) error {
	if clientBundle == "" {
		return nil
	}
	clients, err := cert.ParseCertsPEM([]byte(clientBundle))
	if err != nil {
		return fmt.Errorf("kube-apiserver's --client-ca-file holds no certificates in PEM: %w", err)
	}
	for _, client := range clients {
		for _, own := range frontProxy {
			if string(client.RawSubjectPublicKeyInfo) == string(own.RawSubjectPublicKeyInfo) || client.CheckSignatureFrom(own) == nil {
				return fmt.Errorf("the authority %q signs users' certificates and the front proxy's alike, so a user could pass the audit log: "+
					"start kube-apiserver with a --requestheader-client-ca-file of its own, apart from --client-ca-file", own.Subject.CommonName)
			}
		}
	}
	return nil
}

// apply takes over what kube-apiserver publishes.
func (p *frontProxy) apply(published map[string]string) {
	trust, err := readTrust(published)
	p.mu.Lock()
	p.trust, p.err = trust, err
	listeners := p.listeners
	p.mu.Unlock()
	for _, listener := range listeners {
		listener.Enqueue()
	}
}

// Err is why nobody is let in, nil if kube-apiserver is.
func (p *frontProxy) Err() error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.err
}

func (p *frontProxy) current() (trust, bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.trust == nil {
		return trust{}, false
	}
	return *p.trust, true
}

// Name is for the logs of the library.
func (p *frontProxy) Name() string { return "front-proxy" }

// CurrentCABundleContent is the PEM of the authorities, which the server names in its handshakes.
func (p *frontProxy) CurrentCABundleContent() []byte {
	t, _ := p.current()
	return t.bundle
}

// VerifyOptions are how a certificate is verified, and false as long as none can be.
func (p *frontProxy) VerifyOptions() (x509.VerifyOptions, bool) {
	t, ok := p.current()
	return t.verify, ok
}

// nobody is a name that no certificate has: it is drawn when the process starts, and told to none.
var nobody = rand.Text()

// allowedNames is never empty, for an empty list would allow every name: a request may have taken its VerifyOptions
// just before there was nobody to let in.
func (p *frontProxy) allowedNames() []string {
	if t, ok := p.current(); ok {
		return t.names
	}
	return []string{nobody}
}

// AddListener has listener told of changes.
func (p *frontProxy) AddListener(listener dynamiccertificates.Listener) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listeners = append(p.listeners, listener)
}

// RunOnce has nothing to do: newFrontProxy has read.
func (p *frontProxy) RunOnce(context.Context) error { return nil }

// Run follows what kube-apiserver publishes until ctx is done. A configmap that is deleted changes nothing:
// kube-apiserver writes it anew.
func (p *frontProxy) Run(ctx context.Context, _ int) {
	factory := informers.NewSharedInformerFactoryWithOptions(p.client, 0, informers.WithNamespace(authenticationNamespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", authenticationConfigMap).String()
		}))
	take := func(object any) {
		if published, ok := object.(*corev1.ConfigMap); ok {
			p.apply(published.Data)
			if err := p.Err(); err != nil {
				p.log.Error("nobody is let in", "error", err)
			}
		}
	}
	informer := factory.Core().V1().ConfigMaps().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    take,
		UpdateFunc: func(_, object any) { take(object) },
	}); err != nil {
		p.log.Error("cannot follow the front proxy's certificates", "error", err)
		return
	}
	informer.RunWithContext(ctx)
}

// authenticator lets in what the front proxy sends, on behalf of the user it names, and lets anybody ask how the server
// is. No bearer token and no certificate of a user's gets in: these would have no audit event.
//
// The headers are the ones that kube-apiserver always sends, whatever else it is configured to accept itself.
func (p *frontProxy) authenticator() (authenticator.Request, *authenticatorfactory.RequestHeaderConfig, error) {
	headers := &authenticatorfactory.RequestHeaderConfig{
		UsernameHeaders:     headerrequest.StaticStringSlice{remoteUserHeader},
		UIDHeaders:          headerrequest.StaticStringSlice{},
		GroupHeaders:        headerrequest.StaticStringSlice{remoteGroupHeader},
		ExtraHeaderPrefixes: headerrequest.StaticStringSlice{remoteExtraPrefix},
		CAContentProvider:   p,
		AllowedClientNames:  headerrequest.StringSliceProviderFunc(p.allowedNames),
	}
	anonymous := &apiserver.AnonymousAuthConfig{Enabled: true}
	for _, path := range healthPaths {
		anonymous.Conditions = append(anonymous.Conditions, apiserver.AnonymousAuthCondition{Path: path})
	}
	config := authenticatorfactory.DelegatingAuthenticatorConfig{Anonymous: anonymous, RequestHeaderConfig: headers}
	a, _, err := config.New()
	if err != nil {
		return nil, nil, fmt.Errorf("build the authenticator of the front proxy: %w", err)
	}
	return a, headers, nil
}
