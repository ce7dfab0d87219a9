{{/* Labels of everything of a part. (dict "root" $ "part" "mint") */}}
{{- define "mintlog.labels" -}}
app.kubernetes.io/name: mintlog
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end -}}

{{- define "mintlog.selector" -}}
app.kubernetes.io/name: mintlog
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{- define "mintlog.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end -}}

{{/* What every container is: nothing to write to, nothing to gain. */}}
{{- define "mintlog.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* (dict "root" $ "user" 65532) */}}
{{- define "mintlog.podSecurity" -}}
runAsNonRoot: {{ ne (int .user) 0 }}
runAsUser: {{ .user }}
runAsGroup: {{ .user }}
fsGroup: {{ .user }}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* What every pod of a part has beside its containers. (dict "root" $ "part" "mint" "user" 65532 "kubernetes" true) */}}
{{- define "mintlog.pod" -}}
serviceAccountName: {{ include "mintlog.serviceAccount" . }}
automountServiceAccountToken: {{ .kubernetes }}
enableServiceLinks: false
securityContext:
  {{- include "mintlog.podSecurity" . | nindent 2 }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{- define "mintlog.place" -}}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end -}}

{{/* (dict "root" $ "resources" …) */}}
{{- define "mintlog.container" -}}
image: {{ include "mintlog.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  {{- include "mintlog.containerSecurity" . | nindent 2 }}
resources: {{ toJson .resources }}
{{- if .root.Values.authorities.configMap }}
env:
  - {name: SSL_CERT_DIR, value: /etc/mintlog/authorities}
{{- end }}
# /healthz answers when the part has begun, and asks nothing of the stream, VictoriaLogs or kube-apiserver. A start may
# wait for NATS, or read the stream's store: it gives up by itself before ten minutes.
startupProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 300
# Two minutes without an answer: on a node under load a part is slow, and to kill it makes the node slower.
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 20
  timeoutSeconds: 10
  failureThreshold: 6
{{- end -}}

{{/* The mint server is asked no more when it is not ready or does not answer; one slow answer is no reason. */}}
{{- define "mintlog.mintReadiness" -}}
httpGet: {path: /readyz, port: api, scheme: HTTPS}
periodSeconds: 2
timeoutSeconds: 5
failureThreshold: 3
{{- end -}}

{{/* Of the pods that kube-apiserver calls one is evicted at a time. Accounts, projector, archiver and streams have no such
     budget: what waits while none of them runs is done when one does. (dict "root" $ "part" "mint") */}}
{{- define "mintlog.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: mintlog-{{ .part }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "mintlog.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "mintlog.selector" . | nindent 6 }}
{{- end -}}

{{/* Arguments of the parts that write account Secrets. */}}
{{- define "mintlog.houseArguments" -}}
- --namespace={{ .Release.Namespace }}
- --admission-policies={{ ternary "require" "warn" .Values.policies.enabled }}
{{- end -}}

{{/* Where the external stream is, and as whom to use it. (dict "root" $ "part" "ingest") */}}
{{- define "mintlog.natsArguments" -}}
- --nats={{ .root.Values.stream.url }}
{{- if get .root.Values.stream.nkeys .part }}
- --nats-nkey-file=/etc/mintlog/nats/nkey
{{- end }}
{{- end -}}

{{/* How large the stream becomes, for who makes it. */}}
{{- define "mintlog.streamSizes" -}}
- --stream-max-bytes={{ int64 .Values.stream.maxBytes }}
- --evidence-max-bytes={{ int64 .Values.stream.evidenceMaxBytes }}
{{- end -}}

{{/* What every part mounts that is given it: its nkey, and authorities. (dict "root" $ "part" "ingest") */}}
{{- define "mintlog.mounts" -}}
{{- if get .root.Values.stream.nkeys .part }}
- {name: nats, mountPath: /etc/mintlog/nats, readOnly: true}
{{- end }}
{{- if .root.Values.authorities.configMap }}
- {name: authorities, mountPath: /etc/mintlog/authorities, readOnly: true}
{{- end }}
{{- end -}}

{{- define "mintlog.volumes" -}}
{{- with get .root.Values.stream.nkeys .part }}
- name: nats
  secret: {secretName: {{ . }}, defaultMode: 0440, items: [{key: nkey, path: nkey}]}
{{- end }}
{{- with .root.Values.authorities.configMap }}
- name: authorities
  configMap: {name: {{ . }}}
{{- end }}
{{- end -}}

{{/* The identities whose writes of account Secrets are mintlog's own. */}}
{{- define "mintlog.ownUsers" -}}
{{- $users := list }}
{{- range $part := list "mint" "accounts" "projector" }}
{{- $users = append $users (include "mintlog.user" (dict "root" $ "part" $part)) }}
{{- end }}
{{- $users | uniq | join "," }}
{{- end -}}

{{/* The Secret with a serving certificate. (dict "root" $ "name" "mint") */}}
{{- define "mintlog.tlsSecret" -}}
{{- if eq .root.Values.tls.source "existingSecret" -}}{{ .root.Values.tls.existingSecret }}{{- else -}}mintlog-{{ .name }}-tls{{- end -}}
{{- end -}}

{{/* The same as a volume's source. A pod whose certificate is not made yet waits for it. */}}
{{- define "mintlog.tlsVolume" -}}
secret:
  secretName: {{ include "mintlog.tlsSecret" . }}
  defaultMode: 0440
  items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]
{{- end -}}
