package doctor

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mintlog/mintlog/mint/cluster"
)

// kindsRecord is where the accounts role notes when it first saw the block of a kind.
const kindsRecord = "mintlog-kinds"

// definitionFacts are one ApplicationDefinition.
type definitionFacts struct {
	name, kind string
	hasBlock   bool
	err        error // why its kind is not served
}

func (d *Doctor) readDefinitions(ctx context.Context) ([]definitionFacts, error) {
	list, err := d.objects.Resource(cluster.DefinitionResource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var all []definitionFacts
	for i := range list.Items {
		is := cluster.ReadDefinition(&list.Items[i])
		all = append(all, definitionFacts{name: is.Name, kind: is.Kind, hasBlock: is.HasBlock, err: is.Err})
	}
	return all, nil
}

const rightDefinitions = "list applicationdefinitions.cozystack.io"

func (d *Doctor) lookAtDefinitions(ctx context.Context) []Finding {
	definitions, err := d.definitions()
	if err != nil {
		return []Finding{unseen(err, rightDefinitions)}
	}
	record, err := d.client.CoreV1().ConfigMaps(d.Identities.Namespace).Get(ctx, kindsRecord, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		record, err = &corev1.ConfigMap{}, nil
	}
	if err != nil {
		return append(judgeDefinitions(definitions, nil), unseen(err, "get the configmap "+d.Identities.Namespace+"/"+kindsRecord))
	}
	if record.Data == nil {
		record.Data = map[string]string{}
	}
	return judgeDefinitions(definitions, record.Data)
}

// servedKinds are the kinds whose applications have accounts.
func servedKinds(definitions []definitionFacts) map[string]bool {
	served := map[string]bool{}
	for kind, names := range byKind(definitions) {
		served[kind] = len(names) == 1 && names[0].hasBlock && names[0].err == nil
	}
	return served
}

func byKind(definitions []definitionFacts) map[string][]definitionFacts {
	kinds := map[string][]definitionFacts{}
	for _, f := range definitions {
		kinds[f.kind] = append(kinds[f.kind], f)
	}
	return kinds
}

// judgeDefinitions wants every kind with a block to be served, and to be noted by the accounts role. Sights are nil where
// they could not be read.
func judgeDefinitions(definitions []definitionFacts, sights map[string]string) []Finding {
	var findings []Finding
	var served, unnoted []string
	kinds := byKind(definitions)
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		var names []string
		hasBlock := false
		for _, f := range kinds[kind] {
			names = append(names, f.name)
			hasBlock = hasBlock || f.hasBlock
			if f.err != nil {
				findings = append(findings, fail("correct the block; mintlog definitions check FILE tells beforehand", "the kind %s is not served, by the definition %s: %s", kind, f.name, f.err))
			}
		}
		switch {
		case !hasBlock:
		case len(names) > 1:
			findings = append(findings, fail("leave one of them", "the kind %s is not served: several definitions are of it: %s", kind, some(names)))
		case kinds[kind][0].err == nil:
			served = append(served, kind)
			if sights != nil && sights[kind] == "" {
				unnoted = append(unnoted, kind)
			}
		}
	}
	if len(unnoted) > 0 {
		findings = append(findings, fail("see that the accounts role runs, and its log", "the accounts role has not seen the kinds %s: their applications get no accounts", some(unnoted)))
	}
	if len(served) == 0 {
		return append(findings, warn("add a block spec.credentials to an ApplicationDefinition (docs/kinds.md)", "no kind is served"))
	}
	return append(findings, good("%d kinds are served: %s", len(served), some(served)))
}
