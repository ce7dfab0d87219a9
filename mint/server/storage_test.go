package server_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
	"github.com/mintlog/mintlog/mint/request"
)

const password = "a-password-that-must-stand-in-no-log"

// A call is a mint that reached the storage.
type call struct {
	name, user, auditID string
	received            time.Time
	dryRun              bool
	spec                v1alpha1.MintSpec
}

// A recorder is a storage of one credential that keeps nothing but the calls of its mint.
type recorder struct {
	mu    sync.Mutex
	calls []call
	// during, if set, is called within a mint.
	during func()
}

func (r *recorder) storage() map[string]rest.Storage {
	table := rest.NewDefaultTableConvertor(v1alpha1.Resource("credentials"))
	return map[string]rest.Storage{
		"credentials":      &viewStorage{TableConvertor: table},
		"credentials/mint": &mintStorage{recorder: r},
	}
}

func (r *recorder) made() []call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]call{}, r.calls...)
}

type viewStorage struct{ rest.TableConvertor }

func (*viewStorage) New() runtime.Object     { return &v1alpha1.Credential{} }
func (*viewStorage) NewList() runtime.Object { return &v1alpha1.CredentialList{} }
func (*viewStorage) Destroy()                {}
func (*viewStorage) NamespaceScoped() bool   { return true }
func (*viewStorage) GetSingularName() string { return "credential" }
func (*viewStorage) ShortNames() []string    { return []string{"cred"} }

func (*viewStorage) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	return &v1alpha1.Credential{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: genericapirequest.NamespaceValue(ctx)},
		Spec:       v1alpha1.CredentialSpec{Username: "app"},
	}, nil
}

func (s *viewStorage) List(ctx context.Context, _ *metainternalversion.ListOptions) (runtime.Object, error) {
	c, err := s.Get(ctx, "postgres-orders.app", nil)
	return &v1alpha1.CredentialList{Items: []v1alpha1.Credential{*c.(*v1alpha1.Credential)}}, err
}

type mintStorage struct{ *recorder }

func (*mintStorage) New() runtime.Object { return &v1alpha1.CredentialMint{} }
func (*mintStorage) Destroy()            {}

func (s *mintStorage) Create(ctx context.Context, name string, object runtime.Object, _ rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	mint, ok := object.(*v1alpha1.CredentialMint)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the body is a %T", object))
	}
	user, _ := genericapirequest.UserFrom(ctx)
	id, _ := request.AuditID(ctx)
	s.mu.Lock()
	s.calls = append(s.calls, call{
		name: name, user: user.GetName(), auditID: id, received: request.Received(ctx), dryRun: len(options.DryRun) > 0, spec: mint.Spec,
	})
	during := s.during
	s.mu.Unlock()
	if during != nil {
		during()
	}
	answer := mint.DeepCopy()
	answer.Status = v1alpha1.MintStatus{Username: "app", Password: password, Revision: 1}
	return answer, nil
}
