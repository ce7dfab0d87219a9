// Package server is the aggregated API server around the storage of credentials: it lets in what comes through
// kube-apiserver's front proxy and stands in its audit log, and nothing else.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/mintlog/mintlog/mint/api/openapi"
	"github.com/mintlog/mintlog/mint/api/v1alpha1"
)

// healthPaths are what anybody may get.
var healthPaths = []string{"/livez", "/readyz", "/healthz"}

const (
	startTimeout   = 30 * time.Second
	requestTimeout = 30 * time.Second
)

// Options of the server.
type Options struct {
	// Address is where the API is served, host:port; port 0 takes a free one.
	Address string
	// CertFile and KeyFile are the server's certificate and key in PEM. Changed files are taken over without a restart.
	CertFile, KeyFile string
	// Config reaches kube-apiserver with the mint server's own identity, which may read the configmap
	// extension-apiserver-authentication and create SubjectAccessReviews.
	Config *restclient.Config
	// Storage serves the resources of the group, by path: credentials, credentials/mint, credentials/revoke.
	Storage map[string]rest.Storage
	// Ready are what must hold, beside the server's own, for it to be ready; by name.
	Ready map[string]func() error
	// ShutdownDelay is for how long the server goes on serving, not ready any more, after it was told to stop: until
	// nobody sends it requests. 0 stops at once.
	ShutdownDelay time.Duration
	Now           func() time.Time
	Log           *slog.Logger
	Registerer    prometheus.Registerer
}

// A Server serves the API.
type Server struct {
	generic *genericapiserver.GenericAPIServer
	address net.Addr
}

// New listens and prepares to serve. It fails if kube-apiserver is not set up so that everything served here stands in
// its audit log, and says what to set.
func New(o Options) (*Server, error) {
	if err := capVerbosity(); err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(o.Config)
	if err != nil {
		return nil, fmt.Errorf("build the client of kube-apiserver: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	proxy, err := newFrontProxy(ctx, client, o.Log)
	if err != nil {
		return nil, err
	}
	serving, err := listen(o)
	if err != nil {
		return nil, err
	}
	s, err := build(o, proxy, serving)
	if err != nil {
		return nil, errors.Join(err, serving.Listener.Close())
	}
	return s, nil
}

// Address is where the server listens.
func (s *Server) Address() net.Addr { return s.address }

// Run serves until ctx is done, and then until the requests in flight are answered.
func (s *Server) Run(ctx context.Context) error {
	if err := s.generic.PrepareRun().RunWithContext(ctx); err != nil {
		return fmt.Errorf("serve the API: %w", err)
	}
	return nil
}

// listen opens the listener. HTTP/2 is off: its server would hide an Expect header from the guard.
func listen(o Options) (*genericapiserver.SecureServingInfo, error) {
	listener, err := net.Listen("tcp", o.Address)
	if err != nil {
		return nil, fmt.Errorf("listen for the API: %w", err)
	}
	certificate, err := dynamiccertificates.NewDynamicServingContentFromFiles("serving", o.CertFile, o.KeyFile)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read the certificate of the API server: %w", err), listener.Close())
	}
	return &genericapiserver.SecureServingInfo{Listener: listener, Cert: certificate, DisableHTTP2: true}, nil
}

func build(o Options, proxy *frontProxy, serving *genericapiserver.SecureServingInfo) (*Server, error) {
	scheme := newScheme()
	codecs := textCodecs{serializer.NewCodecFactory(scheme)}
	config := genericapiserver.NewConfig(codecs.CodecFactory)
	config.Serializer = codecs
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	config.RequestTimeout = requestTimeout
	config.MaxRequestBodyBytes = maxBody
	config.ShutdownDelayDuration = o.ShutdownDelay
	// Nothing but the API and its health: metrics have a listener of their own, and a profile holds passwords.
	config.EnableIndex, config.EnableProfiling, config.EnableMetrics = false, false, false
	// No audit log of our own: it would hold the bodies, and with them the passwords.
	config.AuditBackend, config.AuditPolicyRuleEvaluator = nil, nil
	// An identity for calls of the server to itself would be a bearer token that gets in.
	config.LoopbackClientConfig = &restclient.Config{}

	config.SecureServing = serving
	serving.ClientCA = proxy
	var err error
	if config.Authentication.Authenticator, config.Authentication.RequestHeaderConfig, err = proxy.authenticator(); err != nil {
		return nil, err
	}
	if config.Authorization.Authorizer, err = newAuthorizer(o.Config); err != nil {
		return nil, err
	}
	config.AddReadyzChecks(readiness(o, proxy)...)

	namer := openapinamer.NewDefinitionNamer(scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIConfig.Info.Title, config.OpenAPIV3Config.Info.Title = "mintlog", "mintlog"

	var guardError error
	config.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		guard, err := newGuard(genericapiserver.DefaultBuildHandlerChain(api, c), o.Now, o.Log, o.Registerer)
		guardError = err
		return guard
	}
	generic, err := config.Complete(nil).New("mintlog", genericapiserver.NewEmptyDelegate())
	if err = errors.Join(err, guardError); err != nil {
		return nil, fmt.Errorf("build the API server: %w", err)
	}
	group := genericapiserver.NewDefaultAPIGroupInfo(v1alpha1.GroupName, scheme, runtime.NewParameterCodec(scheme), codecs.CodecFactory)
	group.NegotiatedSerializer = codecs
	group.OptionsExternalVersion = &schema.GroupVersion{Version: "v1"}
	group.VersionedResourcesStorageMap[v1alpha1.SchemeGroupVersion.Version] = o.Storage
	if err := generic.InstallAPIGroup(&group); err != nil {
		return nil, fmt.Errorf("install the API group %s: %w", v1alpha1.GroupName, err)
	}
	return &Server{generic: generic, address: serving.Listener.Addr()}, nil
}

// readiness is that the front proxy is known by its certificates, and what else the server was given.
func readiness(o Options, proxy *frontProxy) []healthz.HealthChecker {
	checks := []healthz.HealthChecker{healthz.NamedCheck("front-proxy", func(*http.Request) error {
		if _, ok := proxy.VerifyOptions(); !ok {
			return proxy.Err()
		}
		return nil
	})}
	for name, ready := range o.Ready {
		checks = append(checks, healthz.NamedCheck(name, func(*http.Request) error { return ready() }))
	}
	return checks
}
