package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// configurationFlag names the file that a part's flags can be given in.
const configurationFlag = "config"

const configurationHelp = `Every flag can stand in the YAML file of --config as well, as a key of its name without
the dashes; a flag that can be repeated is a list there. The command line wins over the
file, and the file over the defaults. Nothing secret stands in it, only paths of files.`

// maxConfiguration is how long such a file may be, in bytes.
const maxConfiguration = 1 << 20

// takesConfiguration has every command from c on down that has the flag read its file before it runs.
func takesConfiguration(c *cobra.Command) {
	for _, child := range c.Commands() {
		takesConfiguration(child)
	}
	if c.Flags().Lookup(configurationFlag) == nil {
		return
	}
	c.Long += "\n\n" + configurationHelp
	run := c.RunE
	c.RunE = func(c *cobra.Command, arguments []string) error {
		path, err := c.Flags().GetString(configurationFlag)
		if err != nil || path == "" {
			return errors.Join(err, run(c, arguments))
		}
		file := configuration{path: path, lines: map[string]int{}}
		if err := file.apply(c.Flags()); err != nil {
			return fmt.Errorf("--%s %s: %w", configurationFlag, path, err)
		}
		return file.locate(run(c, arguments))
	}
}

// A configuration is a file that gives flags their values.
type configuration struct {
	path  string
	lines map[string]int // where the values stand that were taken, by the flags' names
}

// apply sets the flags that the command line did not.
func (f *configuration) apply(flags *pflag.FlagSet) error {
	file, err := os.Open(f.path)
	if err != nil {
		return errors.Unwrap(err) // the path is said already
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxConfiguration+1))
	if err != nil {
		return errors.Unwrap(err)
	}
	if len(text) > maxConfiguration {
		return fmt.Errorf("it is longer than %d bytes", maxConfiguration)
	}
	root, err := readMapping(text)
	if err != nil || root == nil {
		return err
	}
	var problems []error
	first := map[string]int{}
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if err := f.take(flags, first, key, value); err != nil {
			problems = append(problems, fmt.Errorf("line %d: %w", key.Line, err))
		}
	}
	return errors.Join(problems...)
}

// readMapping is the one document of a file, nil if there is nothing in it.
func readMapping(text []byte) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document, more yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("it is one YAML document, with nothing behind it")
	}
	root := document.Content[0]
	switch {
	case root.ShortTag() == "!!null":
		return nil, nil
	case root.Kind != yaml.MappingNode:
		return nil, fmt.Errorf("line %d: it is a mapping, with the flags' names as keys", root.Line)
	}
	return root, nil
}

// take sets the flag of a key. first holds the lines of the keys that came before.
func (f *configuration) take(flags *pflag.FlagSet, first map[string]int, key, value *yaml.Node) error {
	name := key.Value
	flag := flags.Lookup(name)
	switch {
	case key.Kind != yaml.ScalarNode || flag == nil || name == "help":
		return fmt.Errorf("%q is no flag of this command%s", name, nearMiss(flags, name))
	case name == configurationFlag:
		return fmt.Errorf("%s: a file does not name another", name)
	case first[name] != 0:
		return fmt.Errorf("%s: it stands in line %d already", name, first[name])
	}
	first[name] = key.Line
	values, err := valuesOf(flag, value)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if slices.ContainsFunc(values, hasCredentials) {
		return fmt.Errorf("%s: user, password or token in a URL are secrets, and none stands in this file", name)
	}
	if flags.Changed(name) { // on the command line, which wins
		return nil
	}
	f.lines[name] = key.Line
	if list, ok := flag.Value.(pflag.SliceValue); ok {
		if err := flags.Set(name, ""); err != nil { // marks it as given
			return fmt.Errorf("%s: %w", name, err)
		}
		return list.Replace(values)
	}
	if flags.Set(name, values[0]) != nil { // whose error quotes the value
		return fmt.Errorf("%s: it is %s", name, described[flag.Value.Type()])
	}
	return nil
}

// described are the types of flags in words.
var described = map[string]string{
	"bool":        "true or false",
	"int":         "a whole number",
	"int64":       "a whole number",
	"duration":    "a duration like 30s, 15m or 12h",
	"string":      "a text (in quotes, if it looks like something else)",
	"stringArray": "a list of texts",
	"stringSlice": "a list of texts",
}

var tags = map[string]string{
	"bool": "!!bool", "int": "!!int", "int64": "!!int",
	"duration": "!!str", "string": "!!str", "stringArray": "!!str", "stringSlice": "!!str",
}

// valuesOf are the texts of a value, if it is of the flag's type: one, or those of a list.
func valuesOf(flag *pflag.Flag, value *yaml.Node) ([]string, error) {
	kind := flag.Value.Type()
	if tags[kind] == "" {
		return nil, errors.New("it can be given on the command line only")
	}
	nodes := []*yaml.Node{value}
	if _, list := flag.Value.(pflag.SliceValue); list {
		if value.Kind != yaml.SequenceNode {
			return nil, fmt.Errorf("it is %s", described[kind])
		}
		nodes = value.Content
	}
	values := []string{}
	for _, node := range nodes {
		if node.Kind != yaml.ScalarNode || node.ShortTag() != tags[kind] {
			return nil, fmt.Errorf("it is %s", described[kind])
		}
		values = append(values, node.Value)
	}
	return values, nil
}

var credentialsInURL = regexp.MustCompile(`://[^/]*@`)

// hasCredentials reports whether a value is a URL, or several, with a user, a password or a token in it.
func hasCredentials(value string) bool { return credentialsInURL.MatchString(value) }

// nearMiss names the flags that may have been meant, with the distance by which cobra suggests commands.
func nearMiss(flags *pflag.FlagSet, name string) string {
	names := &cobra.Command{SuggestionsMinimumDistance: 2}
	flags.VisitAll(func(flag *pflag.Flag) {
		names.AddCommand(&cobra.Command{Use: flag.Name, Run: func(*cobra.Command, []string) {}})
	})
	var near []string
	for _, suggestion := range names.SuggestionsFor(name) {
		if suggestion != configurationFlag && suggestion != "help" {
			near = append(near, suggestion)
		}
	}
	if name == "" || len(near) == 0 {
		return ""
	}
	return "; is it " + strings.Join(near, " or ") + "?"
}

var flagsInText = regexp.MustCompile(`--([a-z0-9][a-z0-9-]*)`)

// locate says of the flags that an error names where in the file they stand.
func (f *configuration) locate(err error) error {
	if err == nil {
		return nil
	}
	var places []string
	for _, found := range flagsInText.FindAllStringSubmatch(err.Error(), -1) {
		name := found[1]
		place := fmt.Sprintf("%s: line %d of %s", name, f.lines[name], f.path)
		if f.lines[name] != 0 && !slices.Contains(places, place) {
			places = append(places, place)
		}
	}
	if len(places) == 0 {
		return err
	}
	return fmt.Errorf("%w (%s)", err, strings.Join(places, "; "))
}
