package auditlog

import (
	"fmt"

	authnv1 "k8s.io/api/authentication/v1"
)

const (
	nodes   = 60
	tenants = 120
)

var (
	systemNamespaces = []string{"kube-system", "cozy-system", "cozy-fluxcd", "cozy-cert-manager", "cozy-monitoring", "cozy-kubevirt", "cozy-postgres-operator"}
	operators        = []string{"helm-controller", "source-controller", "cert-manager-cainjector", "cloudnative-pg-controller-manager", "kubevirt-controller", "vm-operator", "linstor-csi-controller", "external-secrets", "clickhouse-operator", "cilium-operator"}
	releases         = []string{"postgres-orders", "postgres-billing", "mysql-shop", "clickhouse-events", "redis-sessions", "kubernetes-prod", "postgres-reports", "kafka-main", "rabbitmq-jobs", "http-cache-front"}
	logins           = []string{"app", "report-reader", "migrations", "grafana", "backup", "default"}
	probed           = []string{"/readyz", "/livez", "/healthz?timeout=32s", "/metrics", "/openapi/v3", "/apis?timeout=32s", "/version?timeout=32s"}
	controllers      = []string{"replicaset-controller", "endpointslice-controller", "pod-garbage-collector", "statefulset-controller", "job-controller"}
)

func (g *Generator) node() string {
	return fmt.Sprintf("worker-%02d.example.org", g.random.IntN(nodes))
}

func (g *Generator) tenant() string { return fmt.Sprintf("tenant-%03d", g.random.IntN(tenants)) }

func (g *Generator) ip() string {
	return fmt.Sprintf("10.%d.%d.%d", g.random.IntN(4), g.random.IntN(256), 1+g.random.IntN(254))
}

const credentialID = "authentication.kubernetes.io/credential-id"

// byCertificate is somebody who authenticates with a client certificate.
func (g *Generator) byCertificate(username string, groups ...string) authnv1.UserInfo {
	return authnv1.UserInfo{
		Username: username, Groups: append(groups, "system:authenticated"),
		Extra: map[string]authnv1.ExtraValue{credentialID: {fmt.Sprintf("X509SHA256=%016x%016x%016x%016x",
			g.random.Uint64(), g.random.Uint64(), g.random.Uint64(), g.random.Uint64())}},
	}
}

// serviceAccount is a pod's.
func (g *Generator) serviceAccount(namespace, name string) authnv1.UserInfo {
	return authnv1.UserInfo{
		Username: "system:serviceaccount:" + namespace + ":" + name, UID: string(g.uuid()),
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
		Extra: map[string]authnv1.ExtraValue{
			credentialID:                            {"JTI=" + string(g.uuid())},
			"authentication.kubernetes.io/pod-name": {fmt.Sprintf("%s-%08x-%05x", name, g.random.Uint32(), g.random.IntN(1<<20))},
			"authentication.kubernetes.io/pod-uid":  {string(g.uuid())},
		},
	}
}

func kubelet(g *Generator) caller {
	return caller{
		user: g.byCertificate("system:node:"+g.node(), "system:nodes"), ip: g.ip(),
		agent: "kubelet/v1.37.2 (linux/amd64) kubernetes/3f5a8c1",
	}
}

// operator is a pod's, or, one in two, of a token that is bound to no pod.
func operator(g *Generator) caller {
	name, namespace := pick(g, operators), pick(g, systemNamespaces)
	user := g.serviceAccount(namespace, name)
	if g.random.IntN(2) == 0 {
		user.Extra = map[string]authnv1.ExtraValue{credentialID: user.Extra[credentialID]}
	}
	return caller{
		user: user, ip: g.ip(),
		agent:  name + "/v1.29.0 (linux/amd64)",
		reason: fmt.Sprintf("RBAC: allowed by ClusterRoleBinding %q of ClusterRole %q to ServiceAccount %q", name, name, name+"/"+namespace),
	}
}

func controller(g *Generator) caller {
	name := pick(g, controllers)
	role := "system:controller:" + name
	user := g.serviceAccount("kube-system", name)
	user.Extra = map[string]authnv1.ExtraValue{credentialID: user.Extra[credentialID]} // it runs in no pod
	return caller{
		user: user, ip: g.ip(),
		agent:  "kube-controller-manager/v1.37.2 (linux/amd64) kubernetes/3f5a8c1/system:serviceaccount:kube-system:" + name,
		reason: fmt.Sprintf("RBAC: allowed by ClusterRoleBinding %q of ClusterRole %q to ServiceAccount %q", role, role, name+"/kube-system"),
	}
}

func probe(g *Generator) caller {
	return caller{
		user: authnv1.UserInfo{Username: "system:anonymous", Groups: []string{"system:unauthenticated"}}, ip: "127.0.0.1", agent: "kube-probe/1.37",
		reason: `RBAC: allowed by ClusterRoleBinding "system:public-info-viewer" of ClusterRole "system:public-info-viewer" to Group "system:unauthenticated"`,
	}
}

// person is a tenant's user, by OIDC and the dashboard.
func person(g *Generator) caller {
	tenant := g.tenant()
	return caller{
		user: authnv1.UserInfo{
			Username: fmt.Sprintf("oidc:user%04d@%s.example.org", g.random.IntN(2000), tenant),
			Groups:   []string{tenant + "-admin", tenant + "-use", "cozystack-users", "system:authenticated"},
			Extra:    map[string]authnv1.ExtraValue{credentialID: {"JTI=" + string(g.uuid())}},
		},
		ip: g.ip(), agent: "kubectl/v1.37.2 (linux/amd64) kubernetes/3f5a8c1",
		reason: fmt.Sprintf("RBAC: allowed by RoleBinding %q of ClusterRole %q to Group %q", tenant+"-admin/"+tenant, "cozy:tenant:admin", tenant+"-admin"),
	}
}
