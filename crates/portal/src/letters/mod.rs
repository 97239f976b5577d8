//! Letters that leave the firm: the page of a letter with its letterhead, as PDF, by email; and the templates that new
//! letters start from. A letter is an entry of a record, so the record's rules decide who may open or send it.

pub(crate) mod copy;
mod document;
pub(crate) mod new_letter;
pub(crate) mod page;
pub(crate) mod pdf;
pub(crate) mod send;
mod send_form;
pub(crate) mod template_edit;
mod template_form;
pub(crate) mod templates;
