{{/* A release called "spark-log" does not become "spark-log-spark-log". 40 characters leave room for the longest suffix. */}}
{{- define "spark-log.fullname" -}}
{{- $name := contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) -}}
{{- $name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* Labels that select pods; they never change, because selectors cannot. Argument: (list $ "gateway"). */}}
{{- define "spark-log.selector" -}}
app.kubernetes.io/name: spark-log
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "spark-log.labels" -}}
{{ include "spark-log.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version }}
{{- end }}

{{- define "spark-log.podMetadata" -}}
labels:
  {{- include "spark-log.labels" . | nindent 2 }}
{{- with (index . 0).Values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "spark-log.serviceAccount" -}}
{{- default (include "spark-log.fullname" .) .Values.serviceAccount.name -}}
{{- end }}

{{/* The init Job runs before the chart's ServiceAccount exists, so it has one of its own. */}}
{{- define "spark-log.initServiceAccount" -}}
{{- default (printf "%s-init" (include "spark-log.fullname" .)) .Values.serviceAccount.name -}}
{{- end }}

{{/* The Secret with the certificate of gateways; empty without TLS. */}}
{{- define "spark-log.tlsSecret" -}}
{{- .Values.tls.certManager.enabled | ternary (printf "%s-gateway-tls" (include "spark-log.fullname" .)) .Values.tls.existingSecret -}}
{{- end }}

{{/* The highest number of gateways. Each may need a Service, and a name in the certificate. */}}
{{- define "spark-log.gatewaysMax" -}}
{{- .Values.gateway.hpa.enabled | ternary .Values.gateway.hpa.maxReplicas .Values.gateway.replicas -}}
{{- end }}

{{/* Errors that values.schema.json cannot express. */}}
{{- define "spark-log.checkValues" -}}
{{- if and (hasPrefix "/" .Values.logDir.uri) (not .Values.logDir.existingClaim) -}}
{{- fail "logDir.uri is a folder: logDir.existingClaim must name a volume (ReadWriteMany) to keep it" -}}
{{- end -}}
{{- if and .Values.logDir.existingClaim (not (hasPrefix (printf "%s/" .Values.logDir.mountPath) .Values.logDir.uri)) -}}
{{- fail (printf "logDir.uri %s is not below logDir.mountPath %s; with object storage, set logDir.existingClaim to \"\"" .Values.logDir.uri .Values.logDir.mountPath) -}}
{{- end -}}
{{- if and .Values.tls.certManager.enabled (not .Values.tls.certManager.issuer.name) -}}
{{- fail "tls.certManager.issuer.name: expected the name of an Issuer of cert-manager" -}}
{{- end -}}
{{- if and .Values.tls.certManager.enabled .Values.tls.existingSecret -}}
{{- fail "tls: either certManager.enabled or existingSecret" -}}
{{- end -}}
{{- if and .Values.tls.clientCaSecret (not (include "spark-log.tlsSecret" .)) -}}
{{- fail "tls.clientCaSecret: certificates of clients need a certificate of the gateway: tls.existingSecret or tls.certManager.enabled" -}}
{{- end -}}
{{- if and (has "PLAIN" .Values.gateway.sasl) (not (include "spark-log.tlsSecret" .)) -}}
{{- fail "gateway.sasl: PLAIN sends passwords, so it needs tls.existingSecret or tls.certManager.enabled" -}}
{{- end -}}
{{- if and .Values.gateway.acls (not .Values.gateway.sasl) (not .Values.tls.clientCaSecret) -}}
{{- fail "gateway.acls: without gateway.sasl or tls.clientCaSecret every client is User:ANONYMOUS" -}}
{{- end -}}
{{- if and .Values.console.enabled (not (and .Values.console.publicUrl .Values.console.accessSecret)) -}}
{{- fail "console: needs publicUrl and accessSecret" -}}
{{- end -}}
{{- end }}

{{/* Annotations of what runs before an install or upgrade, in the order of the argument, and is deleted afterwards. */}}
{{- define "spark-log.initHook" -}}
helm.sh/hook: pre-install,pre-upgrade
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/* What every pod may connect to. */}}
{{- define "spark-log.egress" -}}
- ports:   # DNS
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- range list .Values.networkPolicy.store .Values.networkPolicy.storage }}
{{- if .ports }}
- ports:
    {{- range .ports }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  {{- with .to }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}
{{- with .Values.networkPolicy.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end }}
