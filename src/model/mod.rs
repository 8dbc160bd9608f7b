//! Plain data that the layers pass to each other; nothing here reads, judges or prints.

pub mod checkpoint_name;
pub mod column;
pub mod fault;
pub mod finding;
pub mod limits;
pub mod recording;
pub mod roles;
pub mod source;

pub use fault::{Fault, FaultKind, Place, PlaceUnit, Severity};
pub use finding::{Evidence, Finding, Knobs, Opening, Phase, Status, Suspicion, Verdict};
pub use limits::Limits;
pub use recording::{Attempt, Axis, Checkpoint, Event, Recording, Series, Signal};
pub use roles::Role;
pub use source::{Entry, EntryKind, Format, Part, Source};
