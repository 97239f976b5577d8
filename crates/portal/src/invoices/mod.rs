//! Invoices and credit notes, for partners.
