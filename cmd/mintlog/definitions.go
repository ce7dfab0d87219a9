package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/webhook"
)

// standardInput stands for it where a file is asked for.
const standardInput = "-"

// maxDefinitionBytes is how much is read of a file.
const maxDefinitionBytes = 16 << 20

func definitionsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "definitions",
		Short: "Check the blocks of ApplicationDefinitions",
	}
	c.AddCommand(definitionsCheckCommand())
	return c
}

// checkFlags say which definitions are checked, and for which application.
type checkFlags struct {
	cluster                    bool
	kubeconfig, context        string
	values, release, namespace string
	askWebhooks                bool
	output                     string
}

func definitionsCheckCommand() *cobra.Command {
	var f checkFlags
	c := &cobra.Command{
		Use:   "check FILE… | --cluster",
		Short: "Say whether definitions are served, which accounts they yield, and why not",
		Long: `check reads the block spec.credentials of ApplicationDefinitions as mintlog does, and
changes nothing. It prints for each whether its kind is served and what a stored
password looks like, and for an application its accounts: their Secrets, where the
stored form goes in the values, and why one is not served. No password is made that
anybody sees.

The definitions are those of files, "-" for standard input, each of one or several
documents in YAML or JSON; what is no ApplicationDefinition in them is passed over.
The application is the one of --values, its HelmRelease's spec.values in a file.

With --cluster they are those of a cluster, with all its applications. An
administrator's rights are needed: to list ApplicationDefinitions and HelmReleases,
and account Secrets, which tell whose a name is where two meet in one. Where those
cannot be listed, that is said, and is no problem.

Webhooks are not asked without --ask-webhooks: the accounts that they add are then
missing, which is said and is no problem. With it, a source is sent the application's
values, and a format a password that is thrown away. They are asked from here: a
Service's name may not resolve outside of the cluster.

The exit status is 1 if anything is wrong: a file that cannot be read, a block that is
not understood, no block at all in the files, a kind with two definitions, a source or
webhook that fails, an account that is refused. An account that is the platform's own
is not wrong.`,
		Example: `  mintlog definitions check wiki.yaml
  mintlog definitions check wiki.yaml --values values.yaml --release wiki-docs
  helm template ./platform | mintlog definitions check -
  mintlog definitions check --cluster -o json`,
		RunE: func(c *cobra.Command, paths []string) error { return f.run(c, paths) },
	}
	flags := c.Flags()
	flags.BoolVar(&f.cluster, "cluster", false, "check the definitions and applications of a cluster")
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "with --cluster: kubeconfig of an administrator; default: $KUBECONFIG, or ~/.kube/config")
	flags.StringVar(&f.context, "context", "", "with --cluster: context in it")
	flags.StringVar(&f.values, "values", "", `file with an application's values, YAML or JSON; "-" for standard input`)
	flags.StringVar(&f.release, "release", "", "name of the application's HelmRelease; default: the definition's prefix and \"example\"")
	flags.StringVar(&f.namespace, "namespace", "tenant-example", "namespace of the application, which webhooks are told")
	flags.BoolVar(&f.askWebhooks, "ask-webhooks", false, "ask the webhooks of sources and formats")
	flags.StringVarP(&f.output, "output", "o", "table", "table or json")
	return c
}

func (f *checkFlags) run(c *cobra.Command, paths []string) error {
	if err := f.validate(c, paths); err != nil {
		return err
	}
	checker := &checker{}
	if f.askWebhooks {
		checker.webhooks = webhook.New(webhook.Options{})
	}
	var subjects []checkSubject
	var unreadable []unreadableReport
	var err error
	if f.cluster {
		subjects, err = f.clusterSubjects(c.Context())
	} else {
		subjects, unreadable, err = f.fileSubjects(c.InOrStdin(), paths)
	}
	if err != nil {
		return err
	}
	report := checker.check(c.Context(), subjects)
	report.count(unreadable)
	if err := report.print(c.OutOrStdout(), f.output); err != nil {
		return err
	}
	switch {
	case report.Problems > 0:
		return fmt.Errorf("problems that were found: %d", report.Problems)
	case !f.cluster && !slices.ContainsFunc(report.Definitions, func(d definitionReport) bool { return d.HasBlock }):
		return errors.New("no ApplicationDefinition with a block spec.credentials was found")
	}
	return nil
}

func (f *checkFlags) validate(c *cobra.Command, paths []string) error {
	inputs := append(slices.Clone(paths), f.values)
	first := slices.Index(inputs, standardInput)
	given := func(names ...string) string {
		i := slices.IndexFunc(names, func(name string) bool { return c.Flags().Changed(name) })
		if i < 0 {
			return ""
		}
		return names[i]
	}
	switch {
	case f.output != "table" && f.output != "json":
		return fmt.Errorf("-o %q: use table or json", f.output)
	case f.cluster && len(paths) > 0:
		return errors.New("--cluster: the definitions are a cluster's, or those of files")
	case !f.cluster && len(paths) == 0:
		return errors.New("name the files with ApplicationDefinitions, \"-\" for standard input, or give --cluster")
	case f.cluster && given("values", "release", "namespace") != "":
		return fmt.Errorf("--%s: with --cluster the applications are the cluster's", given("values", "release", "namespace"))
	case !f.cluster && given("kubeconfig", "context") != "":
		return fmt.Errorf("--%s is for --cluster", given("kubeconfig", "context"))
	case first >= 0 && slices.Contains(inputs[first+1:], standardInput):
		return fmt.Errorf("%s: standard input can be read once", standardInput)
	}
	return nil
}

// A checkSubject is a definition with the applications that it is checked for.
type checkSubject struct {
	from       string // the file; empty: the cluster
	definition *cluster.Definition
	releases   []*cluster.Release
	// recorded is the username that the account Secret of a name in a namespace holds.
	recorded func(ctx context.Context, namespace, secret string) (username string, ok bool, err error)
}

// fileSubjects are the definitions in files, each with the application of --values.
func (f *checkFlags) fileSubjects(stdin io.Reader, paths []string) (subjects []checkSubject, unreadable []unreadableReport, err error) {
	application := f.values != "" || f.release != ""
	values := map[string]any{}
	if f.values != "" {
		if values, err = readValuesFile(stdin, f.values); err != nil {
			return nil, nil, err
		}
	}
	for _, path := range paths {
		definitions, problems := readDefinitions(stdin, path)
		unreadable = append(unreadable, problems...)
		for _, u := range definitions {
			subject := checkSubject{from: path, definition: cluster.ReadDefinition(u), recorded: nobodyRecorded}
			if application {
				subject.releases = []*cluster.Release{f.application(u, subject.definition.Kind, values)}
			}
			subjects = append(subjects, subject)
		}
	}
	return subjects, unreadable, nil
}

func nobodyRecorded(context.Context, string, string) (string, bool, error) { return "", false, nil }

// application is an application of a definition with those values.
func (f *checkFlags) application(definition *unstructured.Unstructured, kind string, values map[string]any) *cluster.Release {
	prefix, _, _ := unstructured.NestedString(definition.Object, "spec", "release", "prefix")
	name := f.release
	if name == "" {
		name = prefix + "example"
	}
	return &cluster.Release{
		Namespace: f.namespace, Name: name, Kind: kind, Application: strings.TrimPrefix(name, prefix), Values: values,
	}
}

// readDefinitions are the ApplicationDefinitions of a file, and what in it cannot be read.
func readDefinitions(stdin io.Reader, path string) (definitions []*unstructured.Unstructured, problems []unreadableReport) {
	content, err := readInput(stdin, path)
	if err != nil {
		return nil, []unreadableReport{{From: path, Problem: err.Error()}}
	}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for number := 1; ; number++ {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return definitions, problems
		}
		var object map[string]any
		if err == nil {
			object, err = decodeYAML(text)
		}
		if err != nil {
			return definitions, append(problems, unreadableReport{From: path, Problem: fmt.Sprintf("document %d: %v", number, err)})
		}
		definitions = append(definitions, definitionsIn(object)...)
	}
}

// definitionsIn is a document's definition, or those of a list.
func definitionsIn(object map[string]any) []*unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: object}
	if u.GetKind() == "List" {
		var all []*unstructured.Unstructured
		items, _, _ := unstructured.NestedSlice(object, "items")
		for _, item := range items {
			if content, ok := item.(map[string]any); ok {
				all = append(all, definitionsIn(content)...)
			}
		}
		return all
	}
	kind := u.GroupVersionKind()
	if kind.Kind != "ApplicationDefinition" || kind.Group != cluster.DefinitionResource.Group {
		return nil
	}
	return []*unstructured.Unstructured{u}
}

// readValuesFile is an application's values. An error quotes nothing of them.
func readValuesFile(stdin io.Reader, path string) (map[string]any, error) {
	content, err := readInput(stdin, path)
	if err != nil {
		return nil, fmt.Errorf("--values: %w", err)
	}
	values, err := decodeYAML(content)
	if err != nil {
		return nil, fmt.Errorf("--values %s: it is no YAML of one object, or has a key twice", path)
	}
	if values == nil {
		values = map[string]any{}
	}
	return values, nil
}

func readInput(stdin io.Reader, path string) ([]byte, error) {
	in := stdin
	if path != standardInput {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in = file
	}
	content, err := io.ReadAll(io.LimitReader(in, maxDefinitionBytes+1))
	if err == nil && len(content) > maxDefinitionBytes {
		err = fmt.Errorf("%s has more than %d bytes", path, maxDefinitionBytes)
	}
	return content, err
}

// decodeYAML is a document as the API server would hand it out: whole numbers are integers.
func decodeYAML(text []byte) (map[string]any, error) {
	document, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, err
	}
	var object map[string]any
	if err := utiljson.Unmarshal(document, &object); err != nil {
		return nil, errors.New("it is no object")
	}
	return object, nil
}
