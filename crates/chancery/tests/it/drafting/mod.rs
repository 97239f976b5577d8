//! Letters that the model drafts for the portal.

mod letters;
mod set_up;
