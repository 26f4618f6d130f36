//! Bulkhead in Kubernetes: what kubelet asks of a node, answered with zones of the broker.
//!
//! [`device_plugin`] serves kubelet's device plugin API, [`dra`] its API for dynamic resource allocation. Both make zones
//! through [`keeper`], which writes each down ([`books`]), has the broker make it ([`broker`]) and tells the container
//! runtime how to put it into a container ([`cdi`]). Neither has any right over the GPU or over a tenant's memory.

#![forbid(unsafe_code)]

pub mod api;
pub mod books;
pub mod broker;
pub mod cdi;
pub mod device_plugin;
pub mod dra;
pub mod inject;
pub mod install;
pub mod keeper;
pub mod node;
pub mod offer;
pub mod pod_resources;
pub mod policy;
pub mod quantity;
pub mod sockets;
pub mod source;
pub mod time_slicing;
