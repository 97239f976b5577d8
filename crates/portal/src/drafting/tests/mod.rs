//! The client against an API that misbehaves on purpose. The real one is held against it in the binary's own tests.

mod failures;
pub(crate) mod faulty_api;
