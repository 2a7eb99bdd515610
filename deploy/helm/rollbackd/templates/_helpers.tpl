{{- define "rollbackd.name" -}}
{{- $name := printf "%s-%s" .Release.Name .Chart.Name }}
{{- if contains .Chart.Name .Release.Name }}{{ $name = .Release.Name }}{{ end }}
{{- trunc 50 $name | trimSuffix "-" }}
{{- end }}

{{- define "rollbackd.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{- define "rollbackd.labels" -}}
{{ include "rollbackd.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- /* What an object is called, and its labels: root, component, suffix. */}}
{{- define "rollbackd.metadata" -}}
metadata:
  name: {{ include "rollbackd.name" .root }}{{ .suffix }}
  labels:
    {{- include "rollbackd.labels" . | nindent 4 }}
{{- end }}

{{- /* Seconds that a drain takes, and some more: SIGKILL would leave claims to expire. */}}
{{- define "rollbackd.grace" -}}
{{- $begin := toDate "2006-01-02T15:04:05Z07:00" "1970-01-01T00:00:00Z" }}
{{- add 15 (mustDateModify (.Values.settings.ROLLBACKD_DRAIN_TIMEOUT | default "25s") $begin | unixEpoch) }}
{{- end }}

{{- /* A pod: root, component, args, env, secret, resources; probed unless it ends by itself. */}}
{{- define "rollbackd.pod" -}}
{{- $values := .root.Values }}
metadata:
  labels:
    {{- include "rollbackd.labels" . | nindent 4 }}
  {{- with $values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- if or $values.serviceAccountName (ne .component "migrate") }}{{/* the chart's is not there yet when the Job runs */}}
  serviceAccountName: {{ $values.serviceAccountName | default (include "rollbackd.name" .root) }}
  {{- end }}
  automountServiceAccountToken: false
  enableServiceLinks: false # Kubernetes' own ROLLBACKD_SERVICE_… variables are of no use here
  terminationGracePeriodSeconds: {{ include "rollbackd.grace" .root }}
  {{- if eq .component "migrate" }}
  restartPolicy: Never
  {{- else }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: {{ $values.spread }}
      labelSelector:
        matchLabels:
          {{- include "rollbackd.selector" . | nindent 10 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532 # may read the secret's files
    seccompProfile: {type: RuntimeDefault}
  {{- with $values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: rollbackd
      {{- with $values.image }}
      image: {{ required "image.repository: push the image of deploy/Dockerfile, and name it" .repository }}
        {{- if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.root.Chart.AppVersion }}{{ end }}
      imagePullPolicy: {{ .pullPolicy }}
      {{- end }}
      args: [{{ .command }}]
      env:
        - {name: ROLLBACKD_HTTP_ADDR, value: "0.0.0.0:8080"}
        {{- range $name, $value := merge (.env | default dict) $values.settings }}
        - {name: {{ $name }}, value: {{ $value | quote }}}
        {{- end }}
        {{- range $name, $key := .own.secret.keys }}
        - {name: {{ $name }}_FILE, value: {{ printf "/run/secrets/rollbackd/%s" $key | quote }}}
        {{- end }}
      {{- with $values.settingsFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if ne .component "migrate" }}
      ports:
        - {name: http, containerPort: 8080}
      # Alive: fails only when a lane is stuck with nothing paused. A server that is away must not restart the pods, so
      # it shows in the readiness alone.
      livenessProbe:
        httpGet: {path: /healthz, port: http}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 3
      readinessProbe:
        httpGet: {path: /readyz, port: http}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 2
      {{- end }}
      resources:
        {{- toYaml .own.resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: secrets, mountPath: /run/secrets/rollbackd, readOnly: true}
        {{- with $values.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: secrets
      secret: {secretName: {{ .own.secret.name }}, defaultMode: 0440}
    {{- with $values.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
