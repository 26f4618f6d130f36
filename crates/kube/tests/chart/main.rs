//! What the Helm chart makes: in every combination of its switches, on every Kubernetes that it is for, and with which rights.
//! What an API server and kubelet make of that is tried in the cluster laboratory.

mod helm;
mod matrix;
mod plain;
mod rights;
mod values;
