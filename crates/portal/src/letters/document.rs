//! A letter on the firm's letterhead, as its page and its PDF show it.

use crate::error::PageError;
use crate::state::Portal;
use crate::time_format::{LocalTime, long_local_day};
use crate::unprintable::{UNPRINTABLE_ADVICE, unprintable_sentence};
use chancery_domain::{Client, ClientId, Entry, EntryId, LetterHeading, Seller};
use chancery_invoicing::{LetterDocument, UnprintableText, letter_pdf, unprintable_letter_text};
use chancery_web::ErrorPage;
use tokio::sync::Semaphore;

/// Each PDF that is written takes some megabytes and a core. Global, because the memory belongs to the process.
static PDF_SLOTS: Semaphore = Semaphore::const_new(4);

pub(super) struct LetterSheet {
    pub(super) firm_name: String,
    pub(super) letterhead: Vec<String>,
    /// The client's name, contact and address.
    pub(super) recipient: Vec<String>,
    pub(super) date_iso: String,
    pub(super) date: String,
    pub(super) title: String,
    /// The lines of each paragraph.
    pub(super) paragraphs: Vec<Vec<String>>,
}

impl LetterSheet {
    pub(super) fn new(portal: &Portal, client: &Client, letter: &Entry, local: &LocalTime) -> Self {
        let LetterHeading { firm_name, letterhead, recipient, date } = heading(portal, client, letter, local);
        Self {
            firm_name,
            letterhead: lines(&letterhead),
            recipient: lines(&recipient),
            date_iso: letter.at.to_iso(),
            date,
            title: letter.title.to_string(),
            paragraphs: paragraphs(letter.text.as_str()),
        }
    }
}

fn lines(text: &str) -> Vec<String> {
    text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()
}

/// Of a sent letter, what was sent. Of a draft, the details as they are now.
pub(super) fn heading(portal: &Portal, client: &Client, letter: &Entry, local: &LocalTime) -> LetterHeading {
    if let Some(sent) = &letter.sent {
        return sent.heading.clone();
    }
    let Seller { name, letterhead, .. } = &portal.settings.invoice_terms.seller;
    LetterHeading {
        firm_name: name.clone(),
        letterhead: letterhead.clone(),
        recipient: recipient(client),
        date: long_local_day(letter.at, local),
    }
}

fn recipient(client: &Client) -> String {
    let details = &client.details;
    let mut recipient = vec![client.name.to_string()];
    recipient.extend(lines(details.contact.as_str()));
    recipient.extend(lines(details.address.as_str()));
    recipient.join("\n")
}

fn paragraphs(text: &str) -> Vec<Vec<String>> {
    let lines: Vec<&str> = text.lines().collect();
    let paragraphs = lines.split(|line| line.trim().is_empty()).filter(|paragraph| !paragraph.is_empty());
    paragraphs.map(|paragraph| paragraph.iter().map(|line| (*line).to_owned()).collect()).collect()
}

/// Plain ASCII, for headers.
pub(super) fn file_name(client: ClientId, letter: EntryId) -> String {
    format!("letter-{client}-{letter}.pdf")
}

/// Writes the PDF on another thread, a few at a time, because it takes some milliseconds of computing. Fails if the fonts lack a character of it.
pub(super) async fn render_pdf(
    portal: &Portal,
    client: &Client,
    letter: &Entry,
    local: &LocalTime,
) -> Result<Vec<u8>, PageError> {
    let fonts = portal.settings.pdf_fonts.clone();
    // Where both the letter and the client's details can be edited.
    let record = format!("/clients/{}#entry-{}", client.id, letter.id);
    let heading = heading(portal, client, letter, local);
    let letter = letter.clone();
    // The slots are never closed, so this is no error.
    let permit = PDF_SLOTS.acquire().await;
    let rendered = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let document = LetterDocument {
            id: &letter.id.to_string(),
            firm_name: &heading.firm_name,
            letterhead: &heading.letterhead,
            recipient: &heading.recipient,
            date: &heading.date,
            title: letter.title.as_str(),
            text: letter.text.as_str(),
            at: letter.at,
        };
        match unprintable_letter_text(&document, &fonts)?.as_slice() {
            [] => letter_pdf(&document, &fonts).map(Ok),
            texts => Ok(Err(texts.to_vec())),
        }
    });
    let rendered: Result<Result<Vec<u8>, Vec<UnprintableText>>, String> = rendered.await?;
    match rendered.map_err(ErrorPage::internal)? {
        Ok(pdf) => Ok(pdf),
        Err(texts) => {
            let page = ErrorPage::conflict(
                "unprintable_text",
                "Text cannot be printed",
                unprintable_sentence(&texts),
            );
            Err(page.advice(UNPRINTABLE_ADVICE).next_link(record, "Go to client").into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_lines_separate_paragraphs() {
        assert_eq!(
            paragraphs("Dear Priya,\n\n\nOne.\nTwo.\n \nMaya"),
            [
                vec!["Dear Priya,".to_owned()],
                vec!["One.".to_owned(), "Two.".to_owned()],
                vec!["Maya".to_owned()],
            ]
        );
        assert!(paragraphs("\n \n").is_empty());
    }
}
