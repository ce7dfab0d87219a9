{{/* What follows the audit log's files mounts. */}}
{{- define "mintlog.auditVolume" -}}
- name: audit
  hostPath: {path: {{ dir .Values.ingest.files.auditLog }}, type: Directory}
{{- end -}}
{{- define "mintlog.auditMount" -}}
- {name: audit, mountPath: {{ dir .Values.ingest.files.auditLog }}, readOnly: true}
{{- end -}}

{{/* What receives audit events mounts. */}}
{{- define "mintlog.webhookVolumes" -}}
- name: webhook-tls
  {{- include "mintlog.tlsVolume" (dict "root" . "name" "ingest") | nindent 2 }}
- name: webhook-client-ca
  secret: {secretName: {{ .Values.ingest.webhook.clientCASecret }}, defaultMode: 0440, items: [{key: ca.crt, path: ca.crt}]}
{{- end -}}
{{- define "mintlog.webhookMounts" -}}
- {name: webhook-tls, mountPath: /etc/mintlog/webhook-tls, readOnly: true}
- {name: webhook-client-ca, mountPath: /etc/mintlog/webhook-client-ca, readOnly: true}
{{- end -}}
{{/* (dict "root" $ "prefix" "webhook-") */}}
{{- define "mintlog.webhookArguments" -}}
- --{{ .prefix }}address=:9443
- --{{ .prefix }}tls-cert-file=/etc/mintlog/webhook-tls/tls.crt
- --{{ .prefix }}tls-private-key-file=/etc/mintlog/webhook-tls/tls.key
- --{{ .prefix }}client-ca-file=/etc/mintlog/webhook-client-ca/ca.crt
- --{{ .prefix }}set-aside=/var/lib/mintlog/set-aside
{{- range .root.Values.ingest.webhook.clientNames }}
- {{ printf "--%sclient-name=%s" $.prefix . | toJson }}
{{- end }}
{{- end -}}
