//! Bulkhead in Kubernetes: what kubelet asks of a node, answered with zones of the broker.
//!
//! [`device_plugin`] serves kubelet's device plugin API, [`dra`] its API for dynamic resource allocation. Both create zones
//! through [`zone_store`], which writes a checkpoint for each ([`checkpoints`]), asks the broker to create it ([`broker`])
//! and tells the container runtime how to inject it ([`cdi`]). Neither has access to the GPU or to a tenant's memory.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod api;
pub mod broker;
pub mod cdi;
pub mod checkpoints;
pub mod device_plugin;
pub mod dra;
pub mod health;
pub mod inject;
pub mod install;
pub mod node;
pub mod offer;
pub mod pod_resources;
pub mod policy;
pub mod quantity;
pub mod sockets;
pub mod source;
pub mod time_slicing;
pub mod zone_store;
