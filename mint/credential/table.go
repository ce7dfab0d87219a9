package credential

import (
	"context"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/mintlog/mintlog/mint/api/v1alpha1"
)

var columns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name", Description: "Release and account, the name to mint by."},
	{Name: "Username", Type: "string", Description: "The login, as the application declares it."},
	{Name: "Origin", Type: "string", Description: "Where the password came from: NotIssued, Migrated, Minted or Revoked."},
	{Name: "Last Change", Type: "string", Description: "How long ago the password was last changed."},
	{Name: "By", Type: "string", Description: "Who asked for the last change, from the audit log."},
	{Name: "Findings", Type: "string", Description: "Where ledger and audit log disagree."},
	{Name: "Age", Type: "string", Description: "How long ago the account was created."},
	{Name: "Revision", Type: "integer", Priority: 1, Description: "How often the password was changed."},
	{Name: "Format", Type: "string", Priority: 1, Description: "How the password is stored."},
}

// ConvertToTable prints what `kubectl get credentials` shows.
func (s *Storage) ConvertToTable(_ context.Context, object runtime.Object, options runtime.Object) (*metav1.Table, error) {
	table := &metav1.Table{}
	switch o := object.(type) {
	case *v1alpha1.CredentialList:
		table.ListMeta = o.ListMeta
		for i := range o.Items {
			table.Rows = append(table.Rows, s.row(&o.Items[i]))
		}
	case *v1alpha1.Credential:
		table.ResourceVersion = o.ResourceVersion
		table.Rows = append(table.Rows, s.row(o))
	}
	if o, ok := options.(*metav1.TableOptions); !ok || !o.NoHeaders {
		table.ColumnDefinitions = columns
	}
	return table, nil
}

func (s *Storage) row(c *v1alpha1.Credential) metav1.TableRow {
	return metav1.TableRow{
		Cells: []any{
			c.Name, c.Spec.Username, c.Status.Password.Origin, s.lastChange(c), by(c), findingTypes(c),
			s.age(c.CreationTimestamp.Time), c.Status.Password.Revision, c.Spec.Format,
		},
		Object: runtime.RawExtension{Object: c},
	}
}

func (s *Storage) lastChange(c *v1alpha1.Credential) string {
	if c.Status.Password.At == nil {
		return unknown
	}
	return s.age(c.Status.Password.At.Time)
}

const unknown = "<unknown>"

func (s *Storage) age(t time.Time) string {
	if t.IsZero() {
		return unknown
	}
	return duration.HumanDuration(s.viewer.now().Sub(t))
}

// by is who asked for the newest operation; where nobody is named, the attribution in brackets says why.
func by(c *v1alpha1.Credential) string {
	if len(c.Status.History) == 0 {
		return unknown
	}
	o := c.Status.History[0]
	switch {
	case o.By == "":
		return "<" + strings.ToLower(o.Attribution) + ">"
	case o.ImpersonatedBy != "":
		return named(o.By) + through + named(o.ImpersonatedBy) + ")"
	default:
		return named(o.By)
	}
}

const through = " (through "

// named is a user's name, in quotes where it looks like words of the table's own: nobody is called <platform>.
func named(user string) string {
	if strings.HasPrefix(user, "<") || strings.HasPrefix(user, `"`) || strings.Contains(user, through) {
		return strconv.Quote(user)
	}
	return user
}

// findingTypes lists each type once, in the order of the findings.
func findingTypes(c *v1alpha1.Credential) string {
	if len(c.Status.Findings) == 0 {
		return "<none>"
	}
	var types []string
	seen := map[string]bool{}
	for _, f := range c.Status.Findings {
		if !seen[f.Type] {
			seen[f.Type] = true
			types = append(types, f.Type)
		}
	}
	return strings.Join(types, ",")
}
