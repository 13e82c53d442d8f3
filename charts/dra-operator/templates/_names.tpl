{{/* Names and labels. */}}
{{- define "dra-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* The release's name, followed by the chart's name unless it contains it. */}}
{{- define "dra-operator.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "dra-operator.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "dra-operator.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* A Service name has at most 63 characters. */}}
{{- define "dra-operator.metricsName" -}}
{{- printf "%s-metrics" (include "dra-operator.fullname" . | trunc 55 | trimSuffix "-") -}}
{{- end -}}

{{- define "dra-operator.viewerName" -}}
{{- printf "%s-viewer" (include "dra-operator.fullname" . | trunc 56 | trimSuffix "-") -}}
{{- end -}}

{{- define "dra-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "dra-operator.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is required if serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The Deployment selects by these: they never change during the life of a release. */}}
{{- define "dra-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "dra-operator.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: controller
{{- end -}}

{{- define "dra-operator.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{ include "dra-operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
{{- end -}}

{{- define "dra-operator.image" -}}
{{- with .Values.image -}}
{{- $first := first (splitList "/" .repository) -}}
{{- if and .registry (contains "/" .repository) (or (contains "." $first) (eq $first "localhost")) -}}
{{- fail (printf "image.repository %q begins with a registry, and image.registry is %q: set image.registry to %q and leave it out of image.repository" .repository .registry $first) -}}
{{- end -}}
{{- $name := ternary .repository (printf "%s/%s" .registry .repository) (empty .registry) -}}
{{- if .digest -}}
{{- printf "%s@%s" $name .digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default $.Chart.AppVersion .tag) -}}
{{- end -}}
{{- end -}}
{{- end -}}
