package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/mintlog/mintlog/test/sandbox"
)

// An applier stands in for Flux's helm-controller and for ClickHouse's operator: it looks at a HelmRelease when its spec
// or the request on it changes, gathers the values as Flux does, renders the kind's own chart with the real helm, and
// takes over which users the installation has. Neither of the two watches Secrets.
type applier struct {
	house    *house
	releases dynamic.ResourceInterface
	chart    string
	scratch  string

	mu       sync.Mutex
	hashes   map[string]map[string]string // by release and user, what the engine checks passwords with
	upgrades map[string]int               // by release
	looked   map[string]string            // by release, at what it was last looked
	deployed map[string]string            // by release, with what values
}

// apply runs an applier until the test ends.
func (h *house) apply(t *testing.T) *applier {
	t.Helper()
	a := &applier{
		house: h, releases: h.helmReleases(), chart: filepath.Join(h.Root(), clickHouse, "chart"), scratch: t.TempDir(),
		hashes: map[string]map[string]string{}, upgrades: map[string]int{}, looked: map[string]string{}, deployed: map[string]string{},
	}
	h.meanwhile(t, func(ctx context.Context, u *unstructured.Unstructured) { a.look(ctx, u) })
	return a
}

func (h *house) helmReleases() dynamic.ResourceInterface {
	return dynamic.NewForConfigOrDie(h.RESTConfig(sandbox.ClusterAdmin, 0)).Resource(sandbox.HelmReleases).Namespace(acme)
}

// meanwhile shows somebody every HelmRelease of the kind again and again, as a controller's watch does, until the test
// ends or the returned function is called.
func (h *house) meanwhile(t *testing.T, look func(context.Context, *unstructured.Unstructured)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			list, err := h.helmReleases().List(ctx, metav1.ListOptions{LabelSelector: "apps.cozystack.io/application.kind=ClickHouse"})
			if err == nil {
				for i := range list.Items {
					look(ctx, &list.Items[i])
				}
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(stop)
	return stop
}

const requestedAt = "reconcile.fluxcd.io/requestedAt"

// look does what helm-controller does when it is woken; what fails is tried again.
func (a *applier) look(ctx context.Context, u *unstructured.Unstructured) {
	a.mu.Lock()
	defer a.mu.Unlock()
	seen := fmt.Sprint(u.GetUID(), u.GetGeneration(), u.GetAnnotations()[requestedAt])
	if a.looked[u.GetName()] == seen {
		return
	}
	status := map[string]any{"lastHandledReconcileAt": u.GetAnnotations()[requestedAt], "observedGeneration": u.GetGeneration()}
	if suspended, _, _ := unstructured.NestedBool(u.Object, "spec", "suspend"); !suspended {
		history, err := a.upgrade(ctx, u)
		if err != nil {
			status["conditions"] = []any{map[string]any{"type": "Ready", "status": "False", "reason": "UpgradeFailed", "message": err.Error(), "lastTransitionTime": time.Now().UTC().Format(time.RFC3339)}}
			delete(a.looked, u.GetName())
		}
		if history != nil {
			status["history"] = history
		}
		if err != nil {
			a.write(ctx, u, status)
			return
		}
	}
	if a.write(ctx, u, status) {
		a.looked[u.GetName()] = seen
	}
}

func (a *applier) write(ctx context.Context, u *unstructured.Unstructured, status map[string]any) bool {
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return false
	}
	_, err = a.releases.Patch(ctx, u.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "helm-controller"}, "status")
	return err == nil
}

// upgrade renders the chart and has the engine take it over, if the values are others than those it runs with.
func (a *applier) upgrade(ctx context.Context, u *unstructured.Unstructured) ([]any, error) {
	arguments, err := a.values(ctx, u)
	if err != nil {
		return nil, err
	}
	if a.deployed[u.GetName()] == strings.Join(arguments, "\n") {
		return nil, nil
	}
	command := exec.CommandContext(ctx, filepath.Join(a.house.Root(), "bin", "helm"), append([]string{"template", u.GetName(), a.chart}, arguments...)...)
	command.Env = append(os.Environ(), "HELM_CACHE_HOME="+a.scratch, "HELM_CONFIG_HOME="+a.scratch, "HELM_DATA_HOME="+a.scratch)
	out, err := command.CombinedOutput()
	if err != nil {
		return nil, errors.New("the chart does not render") // its words may hold values
	}
	var installation struct {
		Spec struct {
			Configuration struct{ Users map[string]any }
		}
	}
	if err := yaml.Unmarshal(out, &installation); err != nil {
		return nil, err
	}
	users := map[string]string{}
	for setting, value := range installation.Spec.Configuration.Users {
		if user, ok := strings.CutSuffix(setting, "/password_sha256_hex"); ok {
			users[user] = fmt.Sprint(value)
		}
	}
	a.hashes[u.GetName()], a.deployed[u.GetName()] = users, strings.Join(arguments, "\n")
	a.upgrades[u.GetName()]++
	return []any{map[string]any{"version": int64(a.upgrades[u.GetName()]), "status": "deployed", "lastDeployed": time.Now().UTC().Format(time.RFC3339)}}, nil
}

// values are what helm is to be given: the values of each reference and those of the spec, and what goes to a target
// path over them. A reference to a Secret or a key that is not there fails.
func (a *applier) values(ctx context.Context, u *unstructured.Unstructured) ([]string, error) {
	references, _, _ := unstructured.NestedSlice(u.Object, "spec", "valuesFrom")
	var files, sets []string
	for _, raw := range references {
		reference := raw.(map[string]any)
		key, _ := reference["valuesKey"].(string)
		if key == "" {
			key = "values.yaml"
		}
		name := reference["name"].(string)
		secret, err := a.house.Kubernetes(sandbox.ClusterAdmin, 0).CoreV1().Secrets(acme).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("no Secret %s", name)
		}
		content, ok := secret.Data[key]
		if !ok {
			return nil, fmt.Errorf("the Secret %s has no key %s", name, key)
		}
		if path, ok := reference["targetPath"].(string); ok {
			sets = append(sets, "--set", path+"="+string(content))
			continue
		}
		file, err := a.file(content)
		if err != nil {
			return nil, err
		}
		files = append(files, "--values", file)
	}
	inline, _, _ := unstructured.NestedMap(u.Object, "spec", "values")
	content, err := yaml.Marshal(inline)
	if err != nil {
		return nil, err
	}
	file, err := a.file(content)
	return slices.Concat(files, []string{"--values", file}, sets), err
}

// file is a file with a content, named after it.
func (a *applier) file(content []byte) (string, error) {
	digest := sha256.Sum256(content)
	name := filepath.Join(a.scratch, hex.EncodeToString(digest[:8])+".yaml")
	return name, os.WriteFile(name, content, 0o600)
}

var errRefused = errors.New("the engine refuses the password")

// login compares as ClickHouse does.
func (a *applier) login(release, user, password string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	digest := sha256.Sum256([]byte(password))
	if hash, ok := a.hashes[release][user]; !ok || hash != hex.EncodeToString(digest[:]) {
		return errRefused
	}
	return nil
}

func (a *applier) users(release string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Sorted(maps.Keys(a.hashes[release]))
}

func (a *applier) count(release string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.upgrades[release]
}
