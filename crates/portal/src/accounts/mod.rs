//! The accounts that are billed, and their keys, for partners.
