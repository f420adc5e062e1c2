{{- define "basegate.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "basegate.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "basegate.labels" -}}
{{ include "basegate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end }}

{{- define "basegate.image" -}}
{{- with .Values.image.digest }}{{ $.Values.image.repository }}@{{ . }}
{{- else }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "basegate.secret" -}}
{{ .Values.secret.existing | default (include "basegate.fullname" .) }}
{{- end }}

{{- define "basegate.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "basegate.fullname" .) }}
{{- else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}

{{- define "basegate.claim" -}}
{{ .Values.persistence.existingClaim | default (include "basegate.fullname" .) }}
{{- end }}

{{- /* Refuses values that contradict each other. */ -}}
{{- define "basegate.validate" -}}
{{- $v := .Values }}
{{- if not $v.config.models }}{{ fail "config.models: want at least one model" }}{{ end }}
{{- $own := dict "server" (list "listen" "admin_listen" "drain_timeout") "gateway" (list "name") "database" (list "path" "url" "migrate") "files" (list "url" "shared") }}
{{- range $section, $keys := $own }}{{ range $keys }}
{{- if hasKey (get $v.config $section | default dict) . }}{{ fail (printf "config.%s.%s: the chart sets it; see values.yaml" $section .) }}{{ end }}
{{- end }}{{ end }}
{{- if eq $v.database.engine "sqlite" }}
{{- if gt (int $v.replicas) 1 }}{{ fail "replicas: a SQLite file serves one gateway: set replicas to 1, or database.engine to postgres" }}{{ end }}
{{- if $v.database.url }}{{ fail "database.url: is of PostgreSQL, and database.engine is sqlite" }}{{ end }}
{{- else }}
{{- if and (not $v.database.url) (not $v.secret.existing) }}{{ fail "database.url: want postgres://…, or secret.existing with BASEGATE_DATABASE_URL" }}{{ end }}
{{- if and $v.database.url $v.secret.existing }}{{ fail "database.url: secret.existing is set, and has BASEGATE_DATABASE_URL" }}{{ end }}
{{- if hasKey $v.secret.env "BASEGATE_DATABASE_URL" }}{{ fail "secret.env: set database.url in place of BASEGATE_DATABASE_URL" }}{{ end }}
{{- if and (hasPrefix "file:" $v.files.url) (not $v.files.shared) }}{{ fail "files.url: gateways read each other's files: want s3://…, or files.shared: true with a volume that all replicas mount" }}{{ end }}
{{- end }}
{{- if and $v.secret.existing $v.secret.env }}{{ fail "secret.env: secret.existing is set, so the chart creates no Secret" }}{{ end }}
{{- if and $v.metrics.serviceMonitor.enabled (not $v.metrics.enabled) }}{{ fail "metrics.serviceMonitor.enabled: needs metrics.enabled" }}{{ end }}
{{- end }}

{{- /* The gateway's configuration file. */ -}}
{{- define "basegate.config" -}}
{{- $v := .Values }}
{{- $server := dict "listen" "0.0.0.0:8080" "admin_listen" (ternary "0.0.0.0:9090" "127.0.0.1:9090" $v.metrics.enabled) "drain_timeout" (printf "%ds" (int $v.drainSeconds)) }}
{{- $config := dict "server" $server "database" (dict "path" "/var/lib/basegate/basegate.db") }}
{{- if eq $v.database.engine "postgres" }}
{{- $_ := set $config "database" (dict "url" "${BASEGATE_DATABASE_URL}" "migrate" $v.database.migrate) }}
{{- $_ := set $config "gateway" (dict "name" "${BASEGATE_GATEWAY_NAME}") }}
{{- end }}
{{- if $v.files.url }}{{ $_ := set $config "files" (dict "url" $v.files.url "shared" $v.files.shared) }}{{ end }}
{{- mergeOverwrite (deepCopy $v.config) $config | toYaml }}
{{- end }}
