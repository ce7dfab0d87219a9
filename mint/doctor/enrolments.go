package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/mintlog/mintlog/mint/enrolment"
)

// enrolmentFacts are who works where, and what is there for them.
type enrolmentFacts struct {
	enrolled []enrolment.Enrolment
	served   map[string]bool // kinds
	releases []releaseFacts
	secrets  []secretFacts // nil where they could not be listed
}

func (d *Doctor) lookAtEnrolments(context.Context) []Finding {
	var f enrolmentFacts
	var err error
	if f.enrolled, err = d.enrolled(); err != nil {
		return []Finding{unseen(err, rightBindings)}
	}
	definitions, err := d.definitions()
	if err != nil {
		return []Finding{unseen(err, rightDefinitions)}
	}
	f.served = servedKinds(definitions)
	if f.releases, err = d.releases(); err != nil {
		return []Finding{unseen(err, rightReleases)}
	}
	if f.secrets, err = d.secrets(); err != nil {
		return append(judgeEnrolments(f), unseen(err, rightSecrets))
	}
	return judgeEnrolments(f)
}

func judgeEnrolments(f enrolmentFacts) []Finding {
	applications, accounts := f.inUse()
	var findings []Finding
	var whole, idle []string
	in := map[string]bool{}
	for _, e := range f.enrolled {
		in[e.Namespace] = e.Mint || e.Accounts
		findings = append(findings, judgeEnrolment(e)...)
		if e.Mint && e.Accounts {
			whole = append(whole, e.Namespace)
			if applications[e.Namespace]+accounts[e.Namespace] == 0 {
				idle = append(idle, e.Namespace)
			}
		}
	}
	findings = append(findings, judgeNotEnrolled(in, applications, accounts)...)
	if len(idle) > 0 {
		findings = append(findings, warn("mintlog unenroll NAMESPACE, unless applications are to come: the mint server may read every Secret there", "enrolled without an application of a served kind: %s", some(idle)))
	}
	if len(whole) == 0 {
		return append(findings, warn("mintlog enroll NAMESPACE", "no namespace is enrolled"))
	}
	return append(findings, good("%d namespaces are enrolled", len(whole)))
}

// inUse counts the applications of served kinds, and the account Secrets, in each namespace that has some.
func (f *enrolmentFacts) inUse() (applications, accounts map[string]int) {
	applications, accounts = map[string]int{}, map[string]int{}
	for _, r := range f.releases {
		if f.served[r.kind] && !r.leaving {
			applications[r.Namespace]++
		}
	}
	for _, s := range f.secrets {
		if s.labelled && !s.leaving {
			accounts[s.namespace]++
		}
	}
	return applications, accounts
}

// judgeEnrolment is what is wrong with one. One for neither part is left of grants, which have a check of their own.
func judgeEnrolment(e enrolment.Enrolment) []Finding {
	var findings []Finding
	if len(e.Others) > 0 {
		findings = append(findings, warn("take the RoleBinding away, unless it is another installation's: its subject may read every Secret there", "in %s also %s hold a role of mintlog's", e.Namespace, some(e.Others)))
	}
	missing := ""
	switch {
	case e.Accounts && !e.Mint:
		missing = "the mint server"
	case e.Mint && !e.Accounts:
		missing = "the accounts role"
	default:
		return findings
	}
	return append(findings, fail("mintlog enroll "+e.Namespace, "%s is enrolled by half: %s may not work there", e.Namespace, missing))
}

// judgeNotEnrolled names the namespaces in use that are not enrolled.
func judgeNotEnrolled(enrolled map[string]bool, applications, accounts map[string]int) []Finding {
	var findings []Finding
	var never []string
	for _, namespace := range slices.Sorted(maps.Keys(union(applications, accounts))) {
		switch {
		case enrolled[namespace]:
		case accounts[namespace] > 0:
			findings = append(findings, fail("mintlog enroll "+namespace+", or delete its account Secrets", "%s is not enrolled and has %d account Secrets: nobody can mint or read them", namespace, accounts[namespace]))
		default:
			never = append(never, fmt.Sprintf("%s (%d)", namespace, applications[namespace]))
		}
	}
	if len(never) > 0 {
		findings = append(findings, warn("mintlog enroll NAMESPACE, where accounts are wanted", "applications of served kinds in namespaces that are not enrolled: %s", some(never)))
	}
	return findings
}

func union(maps ...map[string]int) map[string]bool {
	all := map[string]bool{}
	for _, m := range maps {
		for key := range m {
			all[key] = true
		}
	}
	return all
}
