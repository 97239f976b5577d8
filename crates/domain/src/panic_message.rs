//! What a caught panic said. Catching it is left to whoever knows what must not go on: the engine's supervisor, and both HTTP
//! boundaries by `futures_util`'s `catch_unwind`. (tower-http's layer boxes every body once more, and makes a response where the
//! boundary wants an error of its own.)

use std::any::Any;

/// For the log, never for a caller.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("it left no message")
}
