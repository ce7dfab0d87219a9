package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"

	"github.com/mintlog/mintlog/mint/cluster"
	"github.com/mintlog/mintlog/mint/definition"
	"github.com/mintlog/mintlog/mint/format"
)

// A checker checks definitions, and asks webhooks if it may.
type checker struct {
	webhooks definition.Webhooks // nil: none is asked
}

// check reports on each definition, in their order.
func (c *checker) check(ctx context.Context, subjects []checkSubject) *definitionsReport {
	report := &definitionsReport{Definitions: []definitionReport{}}
	claimed := map[string]int{}
	for _, s := range subjects {
		claimed[s.definition.Kind]++
	}
	for _, s := range subjects {
		d := definitionReport{Name: s.definition.Name, Kind: s.definition.Kind, From: s.from, HasBlock: s.definition.HasBlock}
		switch {
		case d.Kind == "":
			d.Problem = "it has no spec.application.kind"
		case claimed[d.Kind] > 1:
			d.Problem = "several ApplicationDefinitions are of this kind, and none of them is served"
		case s.definition.Err != nil:
			d.Problem = s.definition.Err.Error()
		case d.HasBlock:
			c.block(ctx, s, &d)
		}
		report.add(d)
	}
	return report
}

// block reports on a block that is understood.
func (c *checker) block(ctx context.Context, s checkSubject, d *definitionReport) {
	block := s.definition.Block
	d.Format = &formatReport{Name: block.Format.Name, Kind: block.Format.Kind, Shape: format.Shape(block.Format.Name, block.Format.Parameters)}
	if block.Format.Kind == definition.Webhook {
		d.Format.Shape = "<what the webhook answers>"
		d.Problem = c.tryFormat(ctx, s.definition.Kind, block)
	}
	for _, release := range s.releases {
		d.Applications = append(d.Applications, c.application(ctx, s, release))
	}
}

// tryFormat has a webhook format a password that nobody sees. It returns why that fails.
func (c *checker) tryFormat(ctx context.Context, kind string, block definition.Block) string {
	if c.webhooks == nil {
		return ""
	}
	if _, err := block.Unissued(ctx, kind, c.webhooks, rand.Reader, definition.Account{Name: "example", Username: "example"}); err != nil {
		return err.Error()
	}
	return ""
}

func (c *checker) application(ctx context.Context, s checkSubject, release *cluster.Release) applicationReport {
	report := applicationReport{Namespace: release.Namespace, Release: release.Name, Accounts: []accountReport{}}
	block := s.definition.Block
	if c.webhooks == nil {
		block.Sources = slices.DeleteFunc(slices.Clone(block.Sources), func(s definition.Source) bool { return s.Kind == definition.Webhook })
		if len(block.Sources) < len(s.definition.Block.Sources) {
			report.Note = "the accounts that webhooks add are missing: --ask-webhooks asks them"
		}
	}
	var unreadable error
	accounts, refused, err := release.Accounts(ctx, block, c.webhooks, func(segment string) (string, bool) {
		name, err := definition.SecretName(release.Name, segment)
		if err != nil {
			return "", false
		}
		username, ok, err := s.recorded(ctx, release.Namespace, name)
		if err != nil {
			unreadable = err
		}
		return username, ok
	})
	if err != nil {
		report.Problem = fmt.Sprintf("the accounts are not known: %v", err)
		return report
	}
	if unreadable != nil {
		report.Note = fmt.Sprintf("the account Secrets of the namespace cannot be listed, so a name that is another's there is not noticed: %v", unreadable)
	}
	for _, a := range accounts {
		report.Accounts = append(report.Accounts, accountOf(release, block, a))
	}
	for _, r := range refused {
		report.Accounts = append(report.Accounts, accountReport{Name: r.Name, Username: r.Username, Platform: r.Platform, Reason: r.Reason})
	}
	return report
}

// accountOf reports on an account that is served, unless its place in the values is none.
func accountOf(release *cluster.Release, block definition.Block, a definition.Account) accountReport {
	report := accountReport{
		Name: a.Name, Username: a.Username, Secret: a.SecretName, Credential: release.Name + "." + a.Segment, Served: true,
	}
	if block.ValuesPath == "" {
		return report
	}
	var err error
	if report.ValuesPath, err = block.ValuesPath.TargetPath(a, release.Values); err != nil {
		report.Served, report.Reason = false, err.Error()
	}
	return report
}
