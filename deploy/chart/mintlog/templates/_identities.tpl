{{/* The ServiceAccount of a part. In the shape "all" the parts are one process and one identity.
     (dict "root" $ "part" "mint") */}}
{{- define "mintlog.serviceAccount" -}}
{{- if and (eq .root.Values.shape "all") (ne .part "certificates") -}}{{ .root.Values.serviceAccounts.all }}{{- else -}}{{ get .root.Values.serviceAccounts .part }}{{- end -}}
{{- end -}}

{{/* The user that a part is to kube-apiserver, as in its audit log. */}}
{{- define "mintlog.user" -}}
system:serviceaccount:{{ .root.Release.Namespace }}:{{ include "mintlog.serviceAccount" . }}
{{- end -}}
