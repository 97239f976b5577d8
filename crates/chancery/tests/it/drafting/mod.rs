//! Letters that the model drafts for the portal.

mod letters;
mod portal_account;
