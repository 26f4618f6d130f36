//! What the fuzz targets share: a worker's dispatch in this process, and a driver that looks at what reaches it.
pub mod dispatch;
pub mod witness;
