//! Letters that the model drafts for the portal.

mod set_up;
