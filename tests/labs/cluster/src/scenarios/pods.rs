//! Manifests of pods for scenarios, all of them within the restricted standard.

/// A pod with a part of a GPU that runs `words`.
pub(super) fn with_part(name: &str, words: &[&str]) -> String {
    with_resource(name, "bulkhead.dev/gpu-10gb", words)
}

/// A pod with one of this resource.
pub(super) fn with_resource(name: &str, resource: &str, words: &[&str]) -> String {
    pod(name, words, &format!("limits: {{ {resource}: 1 }}"), "")
}

/// A pod that has a claim of this name and runs `words`.
pub(super) fn with_claim(name: &str, claim: &str, words: &[&str]) -> String {
    let claims = format!("resourceClaims: [{{ name: gpu, resourceClaimName: {claim} }}]");
    pod(name, words, "claims: [{ name: gpu }]", &claims)
}

/// A pod that has both.
pub(super) fn with_both(name: &str, claim: &str, words: &[&str]) -> String {
    let claims = format!("resourceClaims: [{{ name: gpu, resourceClaimName: {claim} }}]");
    pod(name, words, "limits: { bulkhead.dev/gpu-10gb: 1 }, claims: [{ name: gpu }]", &claims)
}

/// The same pods, for a node of this name alone.
pub(super) fn on_node(manifests: &str, node: &str) -> String {
    let selected = format!("restartPolicy: Never\n  nodeSelector: {{ kubernetes.io/hostname: {node} }}\n");
    manifests.replace("restartPolicy: Never\n", &selected)
}

fn pod(name: &str, words: &[&str], resources: &str, more: &str) -> String {
    let words = words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{ name: {name} }}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 5
  securityContext: {{ runAsNonRoot: true, runAsUser: 1000, fsGroup: 1000, seccompProfile: {{ type: RuntimeDefault }} }}
  {more}
  containers:
  - name: program
    image: @examples@
    command: [{words}]
    resources: {{ {resources} }}
    securityContext: {{ allowPrivilegeEscalation: false, capabilities: {{ drop: [ALL] }} }}
---
"#
    )
}
