//! A GpuShareGrant, reduced to what the driver keeps of it: annotations, managed fields and the like are skipped as they are
//! read.

use serde::Deserialize;
use serde_json::Value;

/// The API server's own limits on names.
const MAX_NAME: usize = 253;
const MAX_NAMESPACE: usize = 63;
const MAX_UID: usize = 36;

/// `spec` of a GpuShareGrant.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Spec {
    #[serde(default)]
    pub from: Who,
    pub to: To,
    #[serde(default)]
    pub access: Mode,
    /// The object's, by which its events are found.
    #[serde(skip)]
    pub uid: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Who {
    pub claim: Option<String>,
    pub pod: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct To {
    pub namespace: String,
    pub claim: Option<String>,
    pub pod: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum Mode {
    #[default]
    ReadOnly,
    ReadWrite,
}

impl Spec {
    /// What is too long to be a name matches nothing and would only take memory.
    fn is_bounded(&self) -> bool {
        let names = [&self.from.claim, &self.from.pod, &self.to.claim, &self.to.pod];
        self.to.namespace.len() <= MAX_NAMESPACE && names.into_iter().flatten().all(|name| name.len() <= MAX_NAME)
    }
}

/// Namespace and name of an object.
pub(super) type Key = (String, String);

/// An object of a list or of a watch.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Object {
    #[serde(default)]
    pub metadata: Metadata,
    #[serde(default)]
    spec: Value,
    /// Of a Status, in place of an object.
    #[serde(default)]
    pub code: Option<u16>,
    #[serde(default)]
    pub message: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metadata {
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    pub resource_version: String,
}

impl Object {
    pub(super) fn into_parts(self) -> (Key, Result<Spec, String>) {
        let spec = serde_json::from_value::<Spec>(self.spec).map_err(|error| error.to_string());
        let spec = spec.and_then(|spec| match spec.is_bounded() {
            true => Ok(Spec { uid: self.metadata.uid.chars().take(MAX_UID).collect(), ..spec }),
            false => Err("a name is too long".to_owned()),
        });
        ((self.metadata.namespace, self.metadata.name), spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(value: Value) -> Result<Spec, String> {
        let object = serde_json::json!({ "metadata": { "name": "g", "namespace": "n" }, "spec": value });
        serde_json::from_value::<Object>(object).unwrap().into_parts().1
    }

    #[test]
    fn a_misspelt_grant_grants_nothing() {
        let misspelt = spec(serde_json::json!({ "form": { "claim": "c" }, "to": { "namespace": "y" } }));
        assert!(misspelt.unwrap_err().contains("unknown field `form`"));
        assert!(spec(serde_json::json!({})).is_err());
        assert!(spec(Value::Null).is_err());
        assert!(spec(serde_json::json!({ "to": { "namespace": "y" }, "access": "Write" })).is_err());
    }

    #[test]
    fn a_name_that_no_object_can_have_is_not_kept() {
        let long = "x".repeat(MAX_NAME + 1);
        assert!(spec(serde_json::json!({ "to": { "namespace": "y", "pod": long } })).is_err());
        assert!(spec(serde_json::json!({ "to": { "namespace": long } })).is_err());
        assert!(spec(serde_json::json!({ "to": { "namespace": "y", "pod": "p" } })).is_ok());
    }
}
