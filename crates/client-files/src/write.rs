//! Writes clients with all their entries, in parts, so that a long record need not be in memory. `read_clients` reads them back
//! without loss, except for their numbers, which the firm assigns itself.

use crate::Format;
use crate::csv_line::write_csv_line;
use crate::rows::{CLIENT_FIELDS, ENTRY_COLUMNS};
use chancery_domain::{Client, Currency, Entry};
use std::io::{self, Write};

impl Format {
    /// Writes the CSV header. JSON Lines has none.
    pub fn write_header(self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Jsonl => Ok(()),
            Self::Csv => write_csv_line(out, CLIENT_FIELDS.into_iter().chain(ENTRY_COLUMNS)),
        }
    }

    /// Begins a client. Its entries follow, and then `ClientWriter::finish`. Amounts are in this currency.
    pub fn begin_client(
        self,
        out: &mut impl Write,
        client: Client,
        currency: Currency,
    ) -> io::Result<ClientWriter> {
        if self == Self::Jsonl {
            let mut line = serde_json::to_vec(&ClientLine::new(&client))?;
            // The entries come before the closing brace.
            line.pop();
            out.write_all(&line)?;
            out.write_all(b",\"entries\":[")?;
        }
        Ok(ClientWriter { format: self, client, currency, has_entries: false })
    }
}

/// A client that is being written.
#[derive(Debug)]
pub struct ClientWriter {
    format: Format,
    client: Client,
    currency: Currency,
    has_entries: bool,
}

impl ClientWriter {
    /// Adds entries, oldest first, so that an import restores their order.
    pub fn write_entries(&mut self, out: &mut impl Write, entries: &[Entry]) -> io::Result<()> {
        for entry in entries {
            match self.format {
                Format::Jsonl => {
                    if self.has_entries {
                        out.write_all(b",")?;
                    }
                    serde_json::to_writer(&mut *out, &EntryLine::new(entry, self.currency))?;
                }
                Format::Csv => self.write_csv_row(out, Some(entry))?,
            }
            self.has_entries = true;
        }
        Ok(())
    }

    pub fn finish(self, out: &mut impl Write) -> io::Result<()> {
        match self.format {
            Format::Jsonl => out.write_all(b"]}\n"),
            Format::Csv if self.has_entries => Ok(()),
            Format::Csv => self.write_csv_row(out, None),
        }
    }

    /// Writes the row of an entry, or the only row of a client without entries. Only the first row has the client's details; the
    /// others repeat its number, name and owner.
    fn write_csv_row(&self, out: &mut impl Write, entry: Option<&Entry>) -> io::Result<()> {
        let line = ClientLine::new(&self.client);
        let id = line.id.to_string();
        let since = line.since.as_deref().unwrap_or_default();
        let archived = line.archived.to_string();
        let identity = [id.as_str(), line.name, line.owner];
        let details = match self.has_entries {
            false => [line.contact, line.email, line.telephone, line.address, since, &archived],
            true => [""; 6],
        };
        let Some(entry) = entry else {
            return write_csv_line(out, identity.into_iter().chain(details).chain([""; 9]));
        };
        let entry = EntryLine::new(entry, self.currency);
        let (open, archived) = (entry.open.to_string(), entry.archived.to_string());
        let [amount, due] = [&entry.amount, &entry.due].map(|cell| cell.as_deref().unwrap_or_default());
        let cells =
            [entry.kind, entry.title, entry.text, &entry.at, entry.author, &open, &archived, amount, due];
        write_csv_line(out, identity.into_iter().chain(details).chain(cells))
    }
}

/// A client without its entries.
#[derive(serde::Serialize)]
struct ClientLine<'a> {
    id: i64,
    name: &'a str,
    owner: &'a str,
    contact: &'a str,
    email: &'a str,
    telephone: &'a str,
    address: &'a str,
    since: Option<String>,
    archived: bool,
}

#[derive(serde::Serialize)]
struct EntryLine<'a> {
    kind: &'static str,
    title: &'a str,
    text: &'a str,
    at: String,
    author: &'a str,
    open: bool,
    archived: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    amount: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due: Option<String>,
}

impl<'a> ClientLine<'a> {
    fn new(client: &'a Client) -> Self {
        Self {
            id: client.id.0,
            name: client.name.as_str(),
            owner: client.owner.email.as_str(),
            contact: client.details.contact.as_str(),
            email: client.details.email.as_str(),
            telephone: client.details.telephone.as_str(),
            address: client.details.address.as_str(),
            since: client.details.since.map(|day| day.to_string()),
            archived: client.archived_at.is_some(),
        }
    }
}

impl<'a> EntryLine<'a> {
    fn new(entry: &'a Entry, currency: Currency) -> Self {
        Self {
            kind: entry.kind.as_str(),
            title: entry.title.as_str(),
            text: entry.text.as_str(),
            at: entry.at.to_iso(),
            author: entry.author.email.as_str(),
            open: entry.is_open,
            archived: entry.archived_at.is_some(),
            amount: entry.dispute.amount.map(|amount| currency.to_decimal_string(amount)),
            due: entry.dispute.due.map(|day| day.to_string()),
        }
    }
}
