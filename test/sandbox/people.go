package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// The people of the sandbox.
const (
	Jane         = "jane"          // admin of tenant-acme
	Ivan         = "ivan"          // sees tenant-acme
	Olga         = "olga"          // admin of tenant-beta
	TenantRoot   = "root"          // admin of tenant-root and so of all tenants; may act as jane
	ClusterAdmin = "cluster-admin" // system:masters, and in the BreakGlassGroup

	controllerManager = "system:kube-controller-manager"
)

// groups are what the people's certificates say.
var groups = map[string][]string{
	Jane:              {"tenant-acme-admin"},
	Ivan:              {"tenant-acme-view"},
	Olga:              {"tenant-beta-admin"},
	TenantRoot:        {"tenant-root-admin"},
	ClusterAdmin:      {"system:masters", BreakGlassGroup},
	controllerManager: nil,
}

// namespaces are where the people's kubectl is without --namespace: their own tenant.
var namespaces = map[string]string{
	Jane: TenantAcme, Ivan: TenantAcme, Olga: TenantBeta, TenantRoot: TenantRootNamespace,
}

// A person authenticates with a client certificate (both PEM).
type person struct{ certificate, key []byte }

// People are those a person at a terminal can be.
func People() []string { return []string{ClusterAdmin, Jane, Ivan, Olga, TenantRoot} }

func (s *Sandbox) preparePeople() error {
	s.people = map[string]person{}
	for name, groups := range groups {
		certificate, key, err := s.clients.Issue(Identity{Name: name, Groups: groups})
		if err != nil {
			return err
		}
		s.people[name] = person{certificate: certificate, key: key}
		for number := range s.apiServers {
			user := clientcmdapi.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key}
			if err := s.writeKubeconfig(s.Kubeconfig(name, number), name, user, number); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Sandbox) writeKubeconfig(file, name string, user clientcmdapi.AuthInfo, apiserver int) error {
	configuration := clientcmdapi.NewConfig()
	configuration.Clusters["sandbox"] = &clientcmdapi.Cluster{
		Server:                   s.APIServerURL(apiserver),
		CertificateAuthorityData: s.serving.PEM(),
	}
	configuration.AuthInfos[name] = &user
	configuration.Contexts["sandbox"] = &clientcmdapi.Context{Cluster: "sandbox", AuthInfo: name, Namespace: namespaces[name]}
	configuration.CurrentContext = "sandbox"
	text, err := clientcmd.Write(*configuration)
	if err == nil {
		err = replace(file, text)
	}
	if err != nil {
		return fmt.Errorf("writing the kubeconfig of %s: %w", name, err)
	}
	return nil
}

// replace writes a file anew; who reads it meanwhile reads all of the old one or all of the new one.
func replace(file string, text []byte) error {
	next, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	_, err = next.Write(text)
	if err := errors.Join(err, next.Close()); err != nil {
		return err
	}
	return os.Rename(next.Name(), file)
}

// Kubeconfig is the path of a person's kubeconfig for a kube-apiserver.
func (s *Sandbox) Kubeconfig(person string, apiserver int) string {
	return s.path("kubeconfig", fmt.Sprintf("%s-%d.yaml", person, apiserver))
}

// RESTConfig is the same for client-go, without a limit to its rate. It panics when there is nobody of that name.
func (s *Sandbox) RESTConfig(name string, apiserver int) *rest.Config {
	person, ok := s.people[name]
	if !ok {
		panic("the sandbox knows nobody called " + name)
	}
	return &rest.Config{
		Host: s.APIServerURL(apiserver),
		TLSClientConfig: rest.TLSClientConfig{
			CAData: s.serving.PEM(), CertData: person.certificate, KeyData: person.key,
		},
		QPS: -1,
	}
}

// Kubernetes is a person's client.
func (s *Sandbox) Kubernetes(person string, apiserver int) kubernetes.Interface {
	return kubernetes.NewForConfigOrDie(s.RESTConfig(person, apiserver)) // fails on bad TLS data only, and this is ours
}

// ServiceAccountKubeconfig writes a kubeconfig with a token of 24 hours for one of mintlog's service accounts (mint,
// accounts, projector, ingest, archiver), and returns its path.
func (s *Sandbox) ServiceAccountKubeconfig(ctx context.Context, name string, apiserver int) (string, error) {
	day := int64(24 * 60 * 60)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &day}}
	answer, err := s.Kubernetes(ClusterAdmin, apiserver).CoreV1().ServiceAccounts(Namespace).
		CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("asking for a token of the service account %s: %w", name, err)
	}
	file := s.serviceAccountKubeconfig(name, apiserver)
	return file, s.writeKubeconfig(file, name, clientcmdapi.AuthInfo{Token: answer.Status.Token}, apiserver)
}

func (s *Sandbox) serviceAccountKubeconfig(name string, apiserver int) string {
	return s.path("kubeconfig", fmt.Sprintf("serviceaccount-%s-%d.yaml", name, apiserver))
}
