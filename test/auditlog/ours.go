package auditlog

import (
	"fmt"
	"maps"
	"time"

	authnv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// operation is all events of one operation, in their order.
func (g *Generator) operation() []auditv1.Event {
	switch n := g.random.IntN(20); {
	case n < 10:
		return g.change("mint", false)
	case n < 12:
		return g.change("mint", true)
	case n < 15:
		return g.change("revoke", false)
	case n < 17:
		return g.refused()
	}
	namespace, name := g.tenant(), g.credential()
	return []auditv1.Event{g.write("create", namespace, name, g.part("accounts"))}
}

func (g *Generator) credential() string { return pick(g, releases) + "." + pick(g, logins) }

// part is one of mintlog's own service accounts.
func (g *Generator) part(part string) caller {
	return caller{
		user: g.serviceAccount("mintlog", part), ip: g.ip(), agent: "mintlog-" + part,
		reason: fmt.Sprintf("RBAC: allowed by RoleBinding %q of ClusterRole %q to ServiceAccount %q", "mintlog-"+part+"/tenant", "mintlog-"+part, part+"/mintlog"),
	}
}

// change is a mint or revoke that is done.
func (g *Generator) change(operation string, impersonated bool) []auditv1.Event {
	received, done := g.asked(operation)
	if impersonated {
		done.ImpersonatedUser = &authnv1.UserInfo{Username: done.User.Username, Groups: done.User.Groups}
		done.User = g.byCertificate("root@example.org", "tenant-root-admin")
		received.User = done.User
	}
	commit := g.write("update", done.ObjectRef.Namespace, done.ObjectRef.Name, g.part("mint"))
	commit.AuditID = done.AuditID
	shown := g.write("patch", done.ObjectRef.Namespace, done.ObjectRef.Name, g.part("projector"))
	return []auditv1.Event{received, commit, done, shown}
}

// refused is a mint that the caller has no right to.
func (g *Generator) refused() []auditv1.Event {
	received, done := g.asked("mint")
	done.ResponseStatus = &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: 403}
	done.Annotations = map[string]string{"authorization.k8s.io/decision": "forbid", "authorization.k8s.io/reason": ""}
	return []auditv1.Event{received, done}
}

// asked is the request for an operation, at both of its stages.
func (g *Generator) asked(operation string) (received, done auditv1.Event) {
	done = g.event(request{
		user: person, verb: "create", api: "credentials.cozystack.io/v1alpha1", resource: "credentials/" + operation,
		in: "tenant", unnamed: true, code: 201,
	})
	done.ObjectRef.Name = g.credential()
	done.RequestURI = fmt.Sprintf("/apis/credentials.cozystack.io/v1alpha1/namespaces/%s/credentials/%s/%s?fieldValidation=Strict",
		done.ObjectRef.Namespace, done.ObjectRef.Name, operation)
	done.RequestReceivedTimestamp = metav1.NewMicroTime(done.StageTimestamp.Add(-20 * time.Millisecond))
	received = done
	received.Stage, received.StageTimestamp = auditv1.StageRequestReceived, done.RequestReceivedTimestamp
	received.ResponseStatus, received.Annotations = nil, nil
	return received, done
}

// write is a write of an account Secret.
func (g *Generator) write(verb, namespace, credential string, by caller) auditv1.Event {
	code := map[string]int32{"create": 201, "update": 200, "patch": 200}[verb]
	e := g.event(request{user: func(*Generator) caller { return by }, verb: verb, api: "v1", resource: "secrets", in: "tenant", unnamed: true, code: code})
	e.ObjectRef.Namespace, e.ObjectRef.Name, e.ObjectRef.UID = namespace, credential+".account", g.uuid()
	e.RequestURI = fmt.Sprintf("/api/v1/namespaces/%s/secrets/%s?fieldManager=mintlog&timeout=10s", namespace, e.ObjectRef.Name)
	if verb == "create" {
		e.RequestURI = fmt.Sprintf("/api/v1/namespaces/%s/secrets", namespace)
	}
	e.Annotations = maps.Clone(e.Annotations)
	return e
}
