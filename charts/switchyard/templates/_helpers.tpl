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

{{/* By its digest where one is given: the tag is then for people. */}}
{{- define "switchyard.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- with .Values.image.digest }}@{{ . }}{{ end }}
{{- end -}}

{{/* The `to` of a rule, of a list of {cidr} and {namespace}; nothing where the list is empty: anywhere. */}}
{{- define "switchyard.peers" -}}
{{- with . }}
to:
  {{- range . }}
  {{- if .cidr }}
  - ipBlock: {cidr: {{ .cidr }}}
  {{- else }}
  - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ required "give cidr or namespace" .namespace }}}}
  {{- end }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* The broker's address, with the user of `role` (publisher, worker or admin), or with the administrator that
     the operator makes. `root`: the chart. A broker of one's own: a secret holds the address of each role. */}}
{{- define "switchyard.brokerEnv" -}}
{{- with .root }}
{{- $default := printf "%s-broker-default-user" (include "switchyard.name" .) }}
{{- if .Values.broker.operator.enabled }}
- name: BROKER_USER
  {{- if eq $.role "administrator" }}
  valueFrom: {secretKeyRef: {name: {{ $default }}, key: username}}
  {{- else }}
  value: switchyard-{{ $.role }}
  {{- end }}
- name: BROKER_PASSWORD
  valueFrom:
    secretKeyRef:
      {{- if eq $.role "administrator" }}
      name: {{ $default }}
      key: password
      {{- else }}
      name: {{ include "switchyard.usersSecret" . }}
      key: {{ $.role }}-password
      {{- end }}
- name: JOBS_AMQP_URL
  value: amqp://$(BROKER_USER):$(BROKER_PASSWORD)@{{ include "switchyard.name" . }}-broker:5672/
- name: JOBS_MANAGEMENT_URL
  value: http://$(BROKER_USER):$(BROKER_PASSWORD)@{{ include "switchyard.name" . }}-broker:15672/
- name: JOBS_RABBITMQCTL
  value: kubectl -n {{ .Release.Namespace }} exec {{ include "switchyard.name" . }}-broker-server-0 -c rabbitmq -- rabbitmqctl
{{- else }}
{{- $own := dict "publisher" .Values.broker.publisherSecret "worker" .Values.broker.workerSecret }}
{{- $secret := get $own $.role | default .Values.broker.existingSecret | required "name a secret in broker.existingSecret, or set broker.operator.enabled" }}
- name: JOBS_AMQP_URL
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: amqp-url}}
- name: JOBS_MANAGEMENT_URL
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: management-url}}
{{- end }}
{{- end }}
{{- end -}}

{{- define "switchyard.usersSecret" -}}
{{- required "name a secret in broker.operator.usersSecret, with the passwords of the broker's users" .Values.broker.operator.usersSecret -}}
{{- end -}}

{{/* What makes the broker's users: its administrator, and the passwords they get. */}}
{{- define "switchyard.usersEnv" -}}
{{- include "switchyard.brokerEnv" (dict "root" . "role" "administrator") }}
{{- range $role := list "publisher" "worker" "admin" }}
- name: JOBS_{{ upper $role }}_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ include "switchyard.usersSecret" $ }}, key: {{ $role }}-password}}
{{- end }}
{{- end -}}

{{/* Settings of every process: of `root`, as the broker's user of its `role`,
     and where `ledger` is "owner" as the owner of the ledger's tables.
     Inline, for the set-up jobs run before any config map is there. */}}
{{- define "switchyard.env" -}}
{{- include "switchyard.brokerEnv" . }}
{{- with .root }}
- name: JOBS_DATABASE_URL
  valueFrom:
    secretKeyRef:
      {{- $ledger := required "name a secret in ledger.existingSecret" .Values.ledger.existingSecret }}
      name: {{ ternary (.Values.ledger.ownerSecret | default $ledger) $ledger (eq ($.ledger | default "") "owner") }}
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
  value: none
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
