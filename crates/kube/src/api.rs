//! The gRPC APIs of kubelet, generated from `proto/` at build time.

/// Kubelet's device plugin API.
pub mod device_plugin {
    tonic::include_proto!("v1beta1");
}

/// Kubelet's DRA driver API.
pub mod dra {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
}

/// Kubelet's plugin registration API.
pub mod registration {
    tonic::include_proto!("pluginregistration");
}

/// Kubelet's pod-resources API.
pub mod pod_resources {
    tonic::include_proto!("v1");
}
