{{/* The job that makes and renews certificates. (dict "root" $ "services" (list "mint")) */}}
{{- define "mintlog.certificatesJob" -}}
{{- $part := dict "root" .root "part" "certificates" "user" 65532 "kubernetes" true -}}
backoffLimit: 20
ttlSecondsAfterFinished: 3600
template:
  metadata:
    labels:
      {{- include "mintlog.labels" $part | nindent 6 }}
  spec:
    {{- include "mintlog.pod" $part | nindent 4 }}
    {{- include "mintlog.place" .root | nindent 4 }}
    restartPolicy: OnFailure
    containers:
      - name: certificates
        image: {{ include "mintlog.image" .root }}
        imagePullPolicy: {{ .root.Values.image.pullPolicy }}
        securityContext:
          {{- include "mintlog.containerSecurity" . | nindent 10 }}
        resources: {requests: {cpu: 10m, memory: 32Mi}, limits: {memory: 128Mi}}
        args:
          - certificates
          - --namespace={{ .root.Release.Namespace }}
          - --authority=mintlog-ca
          {{- range .services }}
          - --serving=mintlog-{{ . }}-tls=mintlog-{{ . }}.{{ $.root.Release.Namespace }}.svc,mintlog-{{ . }}
          {{- end }}
{{- end }}
