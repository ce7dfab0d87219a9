package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// A kindConfig has the fields of kind.x-k8s.io/v1alpha4 that ours uses; kind refuses what it does not know.
type kindConfig struct {
	Kind       string `json:"kind"`
	APIVersion string `json:"apiVersion"`
	Name       string `json:"name"`
	Nodes      []struct {
		Role        string `json:"role"`
		ExtraMounts []struct {
			HostPath      string `json:"hostPath"`
			ContainerPath string `json:"containerPath"`
			ReadOnly      bool   `json:"readOnly"`
		} `json:"extraMounts"`
	} `json:"nodes"`
	KubeadmConfigPatches []string `json:"kubeadmConfigPatches"`
}

// A clusterConfiguration is kubeadm's; Arguments is a list in v1beta4 and a map in v1beta3.
type clusterConfiguration[Arguments any] struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	APIServer  struct {
		ExtraArgs    Arguments `json:"extraArgs"`
		ExtraVolumes []struct {
			Name      string `json:"name"`
			HostPath  string `json:"hostPath"`
			MountPath string `json:"mountPath"`
			ReadOnly  bool   `json:"readOnly"`
			PathType  string `json:"pathType"`
		} `json:"extraVolumes"`
	} `json:"apiServer"`
}

type (
	argument struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	v1beta4 = clusterConfiguration[[]argument]
	v1beta3 = clusterConfiguration[map[string]string]
)

func read(root string, into any, names ...string) error {
	text, err := os.ReadFile(filepath.Join(append([]string{root}, names...)...))
	if err != nil {
		return err
	}
	if err := yaml.UnmarshalStrict(text, into); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(names...), err)
	}
	return nil
}

// quickstartPatches are kind.yaml and its two patches.
func quickstartPatches(root string) (config kindConfig, newer v1beta4, older v1beta3, err error) {
	if err = read(root, &config, "deploy", "examples", "quickstart", "kind.yaml"); err != nil {
		return
	}
	if len(config.KubeadmConfigPatches) != 2 {
		err = fmt.Errorf("kind.yaml has %d patches", len(config.KubeadmConfigPatches))
		return
	}
	if err = yaml.UnmarshalStrict([]byte(config.KubeadmConfigPatches[0]), &newer); err != nil {
		return
	}
	err = yaml.UnmarshalStrict([]byte(config.KubeadmConfigPatches[1]), &older)
	return
}

// quickstartFlags are kube-apiserver's audit flags in the quickstart, but for the paths, which are the sandbox's own.
func quickstartFlags(root string) ([]string, error) {
	_, newer, _, err := quickstartPatches(root)
	var flags []string
	for _, a := range newer.APIServer.ExtraArgs {
		if a.Name != "audit-policy-file" && a.Name != "audit-log-path" {
			flags = append(flags, "--"+a.Name+"="+a.Value)
		}
	}
	return flags, err
}

func TestTheQuickstartsClusterIsSetUpAsTheOneOfDeployAudit(t *testing.T) {
	config, newer, older, err := quickstartPatches(cluster.Root())
	require.NoError(t, err)
	require.Equal(t, []string{"Cluster", "kind.x-k8s.io/v1alpha4"}, []string{config.Kind, config.APIVersion})
	require.Equal(t, "kubeadm.k8s.io/v1beta3", older.APIVersion)
	require.Equal(t, "ClusterConfiguration", older.Kind)

	var shipped v1beta4
	require.NoError(t, read(cluster.Root(), &shipped, "deploy", "audit", "kube-apiserver-file.yaml"))
	require.Equal(t, shipped, newer)
	require.Equal(t, newer.APIServer.ExtraVolumes, older.APIServer.ExtraVolumes)
	asMap := map[string]string{}
	for _, a := range newer.APIServer.ExtraArgs {
		asMap[a.Name] = a.Value
	}
	require.Equal(t, asMap, older.APIServer.ExtraArgs)

	// The policy's way: from the repository to the node, from there to kube-apiserver.
	require.Len(t, config.Nodes, 1)
	require.Len(t, config.Nodes[0].ExtraMounts, 1)
	mount := config.Nodes[0].ExtraMounts[0]
	volumes := newer.APIServer.ExtraVolumes
	at := slices.IndexFunc(volumes, func(v struct {
		Name      string `json:"name"`
		HostPath  string `json:"hostPath"`
		MountPath string `json:"mountPath"`
		ReadOnly  bool   `json:"readOnly"`
		PathType  string `json:"pathType"`
	}) bool {
		return v.HostPath == mount.ContainerPath
	})
	require.GreaterOrEqual(t, at, 0)
	inside, err := filepath.Rel(volumes[at].MountPath, asMap["audit-policy-file"])
	require.NoError(t, err)
	require.Equal(t, filepath.Join("deploy", "audit", "policy.yaml"), filepath.Join(mount.HostPath, inside))
	require.FileExists(t, filepath.Join(cluster.Root(), mount.HostPath, inside))
}

func TestTheQuickstartsVictoriaLogsIsTheOneThatTheTestsRun(t *testing.T) {
	manifest, err := os.ReadFile(filepath.Join(cluster.Root(), "deploy", "examples", "quickstart", "victoria-logs.yaml"))
	require.NoError(t, err)
	image := regexp.MustCompile(`victoria-logs:(\S+)`).FindSubmatch(manifest)
	require.NotNil(t, image)
	module, err := os.ReadFile(filepath.Join(cluster.Root(), "test", "tools", "victorialogs", "go.mod"))
	require.NoError(t, err)
	require.True(t, strings.Contains(string(module), "github.com/VictoriaMetrics/VictoriaLogs "+string(image[1])+" "), "%s", image[1])
}

func TestThePagesNameTheVersionsThatTheChartHas(t *testing.T) {
	var chart struct {
		AppVersion  string `json:"appVersion"`
		KubeVersion string `json:"kubeVersion"`
	}
	var values struct {
		Image struct {
			Repository string `json:"repository"`
		} `json:"image"`
	}
	for name, into := range map[string]any{"Chart.yaml": &chart, "values.yaml": &values} {
		text, err := os.ReadFile(filepath.Join(cluster.Root(), "deploy", "chart", "mintlog", name))
		require.NoError(t, err)
		require.NoError(t, yaml.Unmarshal(text, into))
	}
	quickstart, operators := pages(t)[filepath.Join("docs", "quickstart.md")], pages(t)[filepath.Join("docs", "operators.md")]
	image := values.Image.Repository + ":" + chart.AppVersion
	require.Contains(t, quickstart, "docker build --tag "+image+" .")
	require.Contains(t, quickstart, "kind load docker-image "+image+" ")
	oldest := regexp.MustCompile(`^>=(\d+\.\d+)\.0-0$`).FindStringSubmatch(chart.KubeVersion)
	require.NotNil(t, oldest, chart.KubeVersion)
	require.Contains(t, quickstart, "Kubernetes "+oldest[1]+" or later")
	require.Contains(t, operators, "Kubernetes "+oldest[1]+" or later")
}
