{{/* The settings of a pod, apart from containers. The list of volumes comes last, so
that a template may add to it. Argument: (list $ "gateway"). */}}
{{- define "spark-log.pod" -}}
{{- $root := index . 0 -}}
serviceAccountName: {{ include (eq (index . 1) "init" | ternary "spark-log.initServiceAccount" "spark-log.serviceAccount") $root }}
# No process of spark-log calls the Kubernetes API. A role for storage brings a token of its own.
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  # Makes a volume writable for the user; its files are not walked at each start.
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - topologyKey: {{ . }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway   # a second pod on a node is better than none
    labelSelector:
      matchLabels:
        {{- include "spark-log.selector" $ | nindent 8 }}
  {{- end }}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumes:
  - name: tmp
    emptyDir:
      sizeLimit: 2Gi
  - name: store
    projected:
      defaultMode: 0440    # read by the group of the pod (fsGroup), and by no other user
      sources:
        - secret:
            name: {{ $root.Values.store.existingSecret }}
            items:
              - {key: password, path: password}
              {{- if not $root.Values.store.address }}
              - {key: address, path: address}
              {{- end }}
        {{- if eq $root.Values.store.ca "secret" }}
        - secret:
            name: {{ default $root.Values.store.existingSecret $root.Values.store.caSecret }}
            items:
              - {key: ca.crt, path: ca.crt}
        {{- end }}
  {{- with $root.Values.stores }}
  - name: stores
    projected:
      defaultMode: 0440    # read by the group of the pod (fsGroup), and by no other user
      sources:
        {{- range $name, $store := . }}
        - secret:
            name: {{ $store.existingSecret }}
            items:
              - {key: address, path: {{ $name }}/address}
        {{- with $store.caSecret }}
        - secret:
            name: {{ . }}
            items:
              - {key: ca.crt, path: {{ $name }}/ca.crt}
        {{- end }}
        {{- end }}
  {{- end }}
  {{- with $root.Values.logDir.existingClaim }}
  - name: segments
    persistentVolumeClaim:
      claimName: {{ . }}
  {{- end }}
{{- end }}

{{/* The settings of a container, apart from its name, arguments, ports and probes. Its list of volume mounts comes last, so
that a template may add to it. Argument: (list $ "gateway" (list of further environment variables)). */}}
{{- define "spark-log.container" -}}
{{- $root := index . 0 -}}
image: {{ printf "%s:%s" $root.Values.image.repository (default $root.Chart.AppVersion $root.Values.image.tag) }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
workingDir: /tmp
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
resources:
  {{- toYaml (index $root.Values.resources (index . 1)) | nindent 2 }}
env:
  - name: SPARK_LOG_CLUSTER   # the address, or the path of a file with it
    value: {{ default "/etc/spark-log/store/address" $root.Values.store.address | quote }}
  - name: PGPASSWORD_FILE
    value: /etc/spark-log/store/password
  {{- if ne $root.Values.store.ca "address" }}
  - name: PGSSLMODE
    value: verify-full
  - name: PGSSLROOTCERT
    value: {{ eq $root.Values.store.ca "secret" | ternary "/etc/spark-log/store/ca.crt" "/etc/ssl/certs/ca-certificates.crt" }}
  {{- end }}
  {{- range $name, $store := $root.Values.stores }}
  - name: SPARK_LOG_STORE_{{ $name | upper | replace "-" "_" }}
    value: /etc/spark-log/stores/{{ $name }}/address
  {{- end }}
  {{- with $root.Values.s3.region }}
  - name: AWS_REGION
    value: {{ . | quote }}
  {{- end }}
  {{- with $root.Values.s3.endpoint }}
  - name: AWS_ENDPOINT_URL
    value: {{ . | quote }}
  {{- end }}
  {{- with $root.Values.s3.existingSecret }}
  {{- range list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" }}
  - name: {{ . }}
    valueFrom:
      secretKeyRef: {name: {{ $root.Values.s3.existingSecret }}, key: {{ . }}}
  {{- end }}
  {{- end }}
  {{- with index . 2 }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $root.Values.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  - {name: store, mountPath: /etc/spark-log/store, readOnly: true}
  {{- if $root.Values.stores }}
  - {name: stores, mountPath: /etc/spark-log/stores, readOnly: true}
  {{- end }}
  {{- if $root.Values.logDir.existingClaim }}
  - {name: segments, mountPath: {{ $root.Values.logDir.mountPath }}}
  {{- end }}
{{- end }}

{{/* Probes of a process with /health and /ready. /health fails if the process must be started again, and does not depend on
PostgreSQL: a failover of the store must not restart all pods. Argument: the name of the port. */}}
{{- define "spark-log.probes" -}}
startupProbe:
  httpGet: {path: /health, port: {{ . }}}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /health, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /ready, port: {{ . }}}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}
