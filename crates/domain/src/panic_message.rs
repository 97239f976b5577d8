//! Extracts the message of a caught panic. Callers that know what must stop catch it: the engine's supervisor, and both HTTP
//! boundaries with `futures_util`'s `catch_unwind`. (tower-http's layer would box every body again, and creates a response where
//! the boundary needs its own error.)

use std::any::Any;

/// For the log, never for a caller.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("panic without a message")
}
