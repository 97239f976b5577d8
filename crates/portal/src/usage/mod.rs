//! What was used and what it cost, for partners.
