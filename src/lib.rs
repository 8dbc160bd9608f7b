//! gradscan reads archives of ML training recordings and says for each run whether its gradients were damaged.
//!
//! Bytes become points ([`read`]), points become findings ([`detect`]), findings and checkpoints become outcomes
//! ([`scan`]). The layers and what each may name are in `docs/architecture.md`; `tests/layers.rs` keeps them.

pub mod audit;
pub mod audit_files;
pub mod detect;
pub mod discover;
pub mod kernel;
pub mod model;
pub mod open;
pub mod read;
pub mod restore;
pub mod scan;
pub mod verify;
pub mod wire;

#[cfg(feature = "python")]
mod python;
