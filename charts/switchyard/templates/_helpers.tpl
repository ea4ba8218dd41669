{{- define "switchyard.name" -}}
{{- if contains "switchyard" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-switchyard" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "switchyard.selector" -}}
app.kubernetes.io/name: switchyard
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "switchyard.labels" -}}
{{ include "switchyard.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "switchyard.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* Settings of every process: of `root`, with the broker's user in the secret `own`, if it names one.
     Inline, for the set-up jobs run before any config map is there. */}}
{{- define "switchyard.env" -}}
{{- with .root }}
{{- if and .Values.broker.operator.enabled (not $.own) }}
{{- $user := printf "%s-broker-default-user" (include "switchyard.name" .) }}
- name: BROKER_USER
  valueFrom: {secretKeyRef: {name: {{ $user }}, key: username}}
- name: BROKER_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ $user }}, key: password}}
- name: JOBS_AMQP_URL
  value: amqp://$(BROKER_USER):$(BROKER_PASSWORD)@{{ include "switchyard.name" . }}-broker:5672/
- name: JOBS_MANAGEMENT_URL
  value: http://$(BROKER_USER):$(BROKER_PASSWORD)@{{ include "switchyard.name" . }}-broker:15672/
{{- else }}
{{- $secret := $.own | default .Values.broker.existingSecret | required "name a secret in broker.existingSecret, or set broker.operator.enabled" }}
- name: JOBS_AMQP_URL
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: amqp-url}}
- name: JOBS_MANAGEMENT_URL
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: management-url}}
{{- end }}
- name: JOBS_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ required "name a secret in ledger.existingSecret" .Values.ledger.existingSecret }}
      key: database-url
- name: JOBS_PROFILE
  value: {{ .Values.broker.profile }}
- name: JOBS_METRICS_HOST
  value: 0.0.0.0
- name: JOBS_METRICS_PORT
  value: "9464"
- name: JOBS_DATA_DIR
  value: /data
- name: JOBS_INGEST_PATHS
  value: ""
{{- with .Values.storage.url }}
- name: JOBS_STORAGE_URL
  value: {{ . | quote }}
{{- end }}
{{- with .Values.storage.indexUrl }}
- name: JOBS_INDEX_URL
  value: {{ . | quote }}
{{- end }}
{{- if .Values.tls.caSecret }}
- name: PGSSLROOTCERT
  value: /etc/switchyard/ca.pem
{{- end }}
{{- range $name, $value := .Values.settings }}
- name: {{ $name }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "switchyard.envFrom" -}}
{{- range $secret := list .Values.settingsSecret .Values.storage.credentialsSecret }}
{{- with $secret }}
- secretRef: {name: {{ . }}}
{{- end }}
{{- end }}
{{- end -}}

{{- define "switchyard.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "switchyard.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "switchyard.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: data, mountPath: /data}
{{- include "switchyard.caMount" . }}
{{- end -}}

{{/* Who has signed the certificates of broker and database. */}}
{{- define "switchyard.caMount" -}}
{{- if .Values.tls.caSecret }}
- {name: ca, mountPath: /etc/switchyard, readOnly: true}
{{- end }}
{{- end -}}

{{- define "switchyard.caVolume" -}}
{{- with .Values.tls.caSecret }}
- name: ca
  secret:
    secretName: {{ . }}
    items: [{key: ca.pem, path: ca.pem}]
{{- end }}
{{- end -}}

{{- define "switchyard.volumes" -}}
- name: tmp
  emptyDir: {}
- name: data
{{- if .Values.storage.volume.enabled }}
  persistentVolumeClaim:
    claimName: {{ .Values.storage.volume.existingClaim | default (printf "%s-data" (include "switchyard.name" .)) }}
{{- else }}
  emptyDir: {}
{{- end }}
{{- include "switchyard.caVolume" . }}
{{- end -}}

{{- define "switchyard.placement" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Replicas on different nodes, as far as there are enough. */}}
{{- define "switchyard.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "switchyard.selector" .root | nindent 8 }}
        app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* A process that shows its metrics and health on a port of its own. */}}
{{- define "switchyard.probes" -}}
startupProbe:
  httpGet: {path: /health/live, port: metrics}
  periodSeconds: 5
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /health/live, port: metrics}
  periodSeconds: 15
  timeoutSeconds: 10
  failureThreshold: 4
readinessProbe:
  httpGet: {path: /health/ready, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
{{- end -}}

{{- define "switchyard.disruption" -}}
{{- if .root.Values.podDisruptionBudgets.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "switchyard.name" .root }}-{{ .component }}
  labels: {{- include "switchyard.labels" .root | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "switchyard.selector" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .component }}
{{- end }}
{{- end -}}
