package projector

import (
	"maps"

	"github.com/mintlog/mintlog/store/history"
)

// fit encodes a history so that it goes with the other annotations: entries are dropped, the oldest first, then the
// messages of findings, then all. The empty history is no annotation. dropped counts what is missing.
func fit(h history.History, annotations map[string]string) (annotation string, dropped int) {
	others := maps.Clone(annotations)
	delete(others, history.Annotation)
	room := history.MaxAnnotationBytes - history.AnnotationBytes(others) - len(history.Annotation)
	for len(h.Entries) > 0 && len(h.Encode()) > room {
		h.Entries = h.Entries[:len(h.Entries)-1]
		dropped++
	}
	if len(h.Findings) > 0 && len(h.Encode()) > room {
		findings := make([]history.Finding, len(h.Findings))
		for i, f := range h.Findings {
			findings[i] = history.Finding{Type: f.Type, Revision: f.Revision}
		}
		h.Findings = findings
		dropped += len(findings)
	}
	if len(h.Entries) == 0 && len(h.Findings) == 0 && len(h.Writers) == 0 {
		return "", dropped
	}
	if annotation = h.Encode(); len(annotation) > room {
		return "", dropped + 1
	}
	return annotation, dropped
}
