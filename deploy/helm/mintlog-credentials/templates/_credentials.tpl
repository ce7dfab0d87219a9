{{/*
The names of account Secrets, exactly as mintlog makes them. Take the chart as a dependency, or copy this file.

  {{ include "credentials.secretName" (list .Release.Name "Report.Reader") }}   orders.report-reader.account

The release is the name of the HelmRelease; .Release.Name is the same unless its spec.releaseName says otherwise. What
mintlog refuses fails the rendering: a chart that named a Secret which never comes would wait for it in silence.
*/}}

{{/*
The part of an account in the name of its Secret: its name in lower case, every character outside [a-z0-9-] replaced
by "-", leading and trailing "-" taken away. Lower case is Unicode's, so the Kelvin sign K is k. Takes the name.
*/}}
{{- define "credentials.segment" -}}
{{- regexReplaceAll "[^a-z0-9-]" (lower .) "-" | trimAll "-" -}}
{{- end -}}

{{/*
Why an account can have no Secret; nothing if it can. Takes a list of the release and the account's name.
*/}}
{{- define "credentials.problem" -}}
{{- $segment := include "credentials.segment" (index . 1) -}}
{{- $name := printf "%s.%s.account" (index . 0) $segment -}}
{{- $part := "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?" -}}
{{- if not $segment -}}
its name has no letter and no digit, so nothing is left to name a Secret with
{{- else if gt (len $segment) 63 -}}
its name makes a part of more than 63 characters in its Secret's name
{{- else if gt (len $name) 253 -}}
its Secret's name would have more than 253 characters
{{- else if not (regexMatch (printf "^%s(\\.%s)*$" $part $part) $name) -}}
its Secret's name would be no DNS name with parts of at most 63 characters
{{- end -}}
{{- end -}}

{{/*
The name of an account's Secret. Takes a list of the release and the account's name.
*/}}
{{- define "credentials.secretName" -}}
{{- $problem := include "credentials.problem" . -}}
{{- if $problem -}}
{{- fail (printf "the account %q of %s can have no Secret: %s" (index . 1) (index . 0) $problem) -}}
{{- end -}}
{{- printf "%s.%s.account" (index . 0) (include "credentials.segment" (index . 1)) -}}
{{- end -}}
