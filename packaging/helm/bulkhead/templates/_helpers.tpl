{{/* Whether claims are on: "true" or nothing. */}}
{{- define "bulkhead.dra" -}}
{{- $wanted := toString .Values.dra.enabled -}}
{{- $there := and (.Capabilities.APIVersions.Has "resource.k8s.io/v1") (semverCompare ">=1.34.0-0" .Capabilities.KubeVersion.Version) -}}
{{- if and (eq $wanted "true") (not $there) -}}
{{- fail (printf "dra.enabled=true, but this cluster (Kubernetes %s) has no resource.k8s.io/v1: claims need Kubernetes 1.34. Leave dra.enabled at auto to use the device plugin alone." .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if or (eq $wanted "true") (and (eq $wanted "auto") $there (semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version)) -}}
true
{{- end -}}
{{- end -}}

{{/* Whether the DaemonSet bulkhead has anything to do: "true" or nothing. */}}
{{- define "bulkhead.node" -}}
{{- if or .Values.devicePlugin.enabled .Values.host.install -}}
true
{{- end -}}
{{- end -}}

{{/* Values that contradict each other. */}}
{{- define "bulkhead.check" -}}
{{- if not (and (hasKey .Values "nodes") (hasKey .Values "probes") (hasKey .Values "updateStrategy")) -}}
{{- fail "the values are those of an older chart: upgrade with --reset-then-reuse-values in place of --reuse-values" -}}
{{- end -}}
{{- if and (not .Values.host.remove) (not (include "bulkhead.node" .)) (not (include "bulkhead.dra" .)) -}}
{{- fail (printf "nothing is enabled: host.install and devicePlugin.enabled are false, and dra.enabled=%v is off on this cluster (Kubernetes %s)" .Values.dra.enabled .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and .Values.image.digest .Values.image.tag -}}
{{- fail "image.tag and image.digest are both set: use one" -}}
{{- end -}}
{{- if and .Values.host.install (not .Values.host.remove) -}}
{{- range $key, $ours := dict "stateDir" "/run/bulkhead" "libraryDir" "/opt/bulkhead/current/lib/bulkhead" -}}
{{- $set := index $.Values.host $key | clean -}}
{{- if ne $set $ours -}}
{{- fail (printf "host.%s=%s, but the host service that host.install=true installs has %s: leave it, or set host.install=false if a package installs the service" $key $set $ours) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "bulkhead.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Labels of every object. Selectors have only the name, which never changes. */}}
{{- define "bulkhead.labels" -}}
{{- include "bulkhead.check" . -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/* Where pods of the DaemonSets run. */}}
{{- define "bulkhead.affinity" -}}
{{- $affinity := deepCopy (.Values.affinity | default dict) -}}
{{- if and (eq .Values.nodes "gpu") (not .Values.nodeSelector) (not $affinity.nodeAffinity) -}}
{{- $terms := list -}}
{{- range list "nvidia.com/gpu.present" "feature.node.kubernetes.io/pci-10de.present" "feature.node.kubernetes.io/pci-0300_10de.present" "feature.node.kubernetes.io/pci-0302_10de.present" "bulkhead.dev/gpu" -}}
{{- $terms = append $terms (dict "matchExpressions" (list (dict "key" . "operator" "In" "values" (list "true")))) -}}
{{- end -}}
{{- $_ := set $affinity "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms)) -}}
{{- end -}}
{{- if $affinity -}}
{{- toYaml $affinity -}}
{{- end -}}
{{- end -}}

{{/* What the pods of all DaemonSets have in common. */}}
{{- define "bulkhead.pod" -}}
automountServiceAccountToken: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
nodeSelector:
  {{- merge (deepCopy (.Values.nodeSelector | default dict)) (dict "kubernetes.io/os" "linux" "kubernetes.io/arch" "amd64") | toYaml | nindent 2 }}
{{- with include "bulkhead.affinity" . }}
affinity:
  {{- . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
terminationGracePeriodSeconds: 10
{{- end -}}

{{/* Image and rights of a container that only talks to sockets. Root, because those of kubelet and the proxy are root's. */}}
{{- define "bulkhead.container" -}}
image: {{ include "bulkhead.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  runAsUser: 0
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  seccompProfile:
    type: RuntimeDefault
  capabilities:
    drop: [ALL]
{{- end -}}

{{/* The same for one that installs: it runs the host's systemctl in the host's root. */}}
{{- define "bulkhead.installer" -}}
{{ include "bulkhead.container" . }}
    add: [SYS_CHROOT, DAC_OVERRIDE]
{{- with .Values.host.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Probes: the program asks the one that runs in the same container. One that is null is left out. */}}
{{- define "bulkhead.probes" -}}
{{- $verb := .verb -}}
{{- with .probes.readiness -}}
readinessProbe:
  exec:
    command: [/usr/bin/bulkhead, {{ $verb }}, --probe=ready]
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .probes.liveness }}
livenessProbe:
  exec:
    command: [/usr/bin/bulkhead, {{ $verb }}, --probe=live]
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The port of the proxy's metrics. The proxy listens on the host; a PodMonitor finds the node by this name. */}}
{{- define "bulkhead.port" -}}
ports:
  - name: metrics
    containerPort: {{ .Values.metrics.port }}
{{- end -}}

{{/* What the pod of `helm test` asks for: a resource, or nothing. */}}
{{- define "bulkhead.testResource" -}}
{{- if not .Values.devicePlugin.enabled -}}
{{- else if .Values.test.resource -}}
{{ .Values.test.resource }}
{{- else -}}
{{- /* The first profile, up to the next table; it may name its resource itself. */ -}}
{{- $profile := regexFind "(?m)^[ \\t]*\\[profiles\\.[^\\n]*(\\n[ \\t]*([^\\[ \\t\\n][^\\n]*)?)*" .Values.config -}}
{{- $resource := regexFind "(?m)^[ \\t]*resource[ \\t]*=[ \\t]*[\"'][^\"'\\n]+" $profile -}}
{{- if $resource -}}
{{ regexReplaceAll "^[^\"']*[\"']" $resource "" }}
{{- else -}}
{{- with regexFind "^[ \\t]*\\[profiles\\.\"?[A-Za-z0-9._-]+" $profile -}}
bulkhead.dev/{{ regexReplaceAll "^[ \\t]*\\[profiles\\.\"?" . "" }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether it asks for a claim instead: "true" or nothing. */}}
{{- define "bulkhead.testClaim" -}}
{{- if and (not (include "bulkhead.testResource" .)) (include "bulkhead.dra" .) -}}
true
{{- end -}}
{{- end -}}
