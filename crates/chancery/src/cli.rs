//! The command line as its users see it. Every command has an example in its help.
//! Long because every option of every command is declared here, with its help: one place to read what can be typed.

use chancery_client_files::Format;
use chancery_domain::{
    AccountName, AmountError, CREDIT_REASON, ClientId, ContactEmail, Day, EmailAddress, InvoiceNumber,
    InvoiceState, Month, Nanos, PostalAddress, Role, TextError,
};
use chancery_store::{CapChange, UsageBy, key_label};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Text-generation API and client portal of one firm, in one binary.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, arg_required_else_help = true)]
#[command(after_help = "Example:\n  chancery serve --demo")]
pub struct Cli {
    #[command(flatten)]
    pub place: Place,
    #[command(subcommand)]
    pub command: Command,
}

/// Where the configuration and the data are; the same for every command.
#[derive(Clone, Debug, Args)]
pub struct Place {
    /// Configuration file [default: chancery.toml in the current folder, if there is one]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Data folder [default: data]
    #[arg(long, global = true, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start the server
    #[command(after_help = "Example:\n  chancery serve --demo --data /tmp/firm")]
    Serve(Serve),
    /// Billing accounts: who pays, how much they may use per minute, and how much they may spend
    #[command(subcommand, arg_required_else_help = true)]
    #[command(after_help = "Example:\n  chancery account create \"Hale & Ward\" --rpm 120 --tpm 200000")]
    Account(Account),
    /// API keys
    #[command(subcommand, arg_required_else_help = true)]
    #[command(after_help = "Example:\n  chancery key create --account \"Hale & Ward\" --label backend")]
    Key(Key),
    /// The clients of the firm: bring them in, give them to somebody, list them, take them along
    #[command(subcommand, arg_required_else_help = true)]
    #[command(after_help = "Example:\n  chancery client import clients.csv --dry-run")]
    Client(Client),
    /// The people of the portal: who they are, what they may do, and where they are signed in
    #[command(subcommand, arg_required_else_help = true)]
    #[command(after_help = "Example:\n  chancery user role ruth@example.com partner")]
    User(User),
    /// Tokens and cost, summed from the ledger
    #[command(
        after_help = "Example:\n  chancery usage --account \"Hale & Ward\" --from 2026-11-01 --to 2026-11-30"
    )]
    Usage(Usage),
    /// Invoices and credit notes: issue them, list them, get their files, note payments
    #[command(subcommand, arg_required_else_help = true)]
    #[command(after_help = "Example:\n  chancery invoice issue --account \"Hale & Ward\" --month 2026-10")]
    Invoice(Invoice),
    /// Model files
    #[command(subcommand, arg_required_else_help = true)]
    #[command(after_help = "Example:\n  chancery model pull smollm2-135m")]
    Model(Model),
    /// Ask a running server for text (address in CHANCERY_URL, key in CHANCERY_API_KEY)
    #[command(
        after_help = "Example:\n  echo 'Met Mr. Ito on 3 March.' | chancery generate --model smollm2-135m \\\n    --instructions 'Rewrite the notes as a polite letter.' --max-output-tokens 200 -"
    )]
    Generate(Generate),
    /// Recompute the ledger, the invoices and the audit, and name what differs; exit code 1 if anything does
    #[command(after_help = "Example:\n  chancery verify")]
    Verify(Verify),
    /// Move everything from a SQLite file to an empty PostgreSQL database: all of it, or nothing
    #[command(
        after_help = "Example:\n  createdb firm\n  chancery migrate --from sqlite:data/chancery.db --to postgres://chancery@db.example/firm\n\n\
            Stop the server first. A password is best left out of the address and given in PGPASSWORD or ~/.pgpass.\n\
            docs/operating.md has what comes before and after."
    )]
    Migrate(Migrate),
    /// Check or show the configuration
    #[command(subcommand, arg_required_else_help = true)]
    #[command(after_help = "Example:\n  chancery config check --config chancery.toml")]
    Config(Config),
}

#[derive(Debug, Args)]
pub struct Serve {
    /// Make a demonstration firm in an empty data folder and print how to reach it
    #[arg(long)]
    pub demo: bool,
    /// Run only these parts, with commas between them [default: all; possible values: api, portal, auth]
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    pub only: Vec<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// The text-generation API
    Api,
    /// The client portal
    Portal,
    /// The built-in identity provider
    Auth,
}

#[derive(Debug, Subcommand)]
pub enum Account {
    /// Make an account
    #[command(after_help = "Example:\n  chancery account create \"Hale & Ward\" --rpm 120 --tpm 200000")]
    Create {
        name: AccountName,
        #[command(flatten)]
        limits: PerMinute,
    },
    /// Show all accounts
    #[command(after_help = "Example:\n  chancery account list --json")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Change an account's limits
    #[command(
        after_help = "Example:\n  chancery account limits \"Hale & Ward\" --tpm 500000 --spend-per-month 250"
    )]
    Limits {
        name: AccountName,
        #[command(flatten)]
        limits: PerMinute,
        /// The most that may be spent in a calendar month (UTC), for example 250 or 12.50; `none` removes the cap
        #[arg(long, value_name = "AMOUNT", value_parser = cap_change)]
        spend_per_month: Option<CapChange>,
    },
    /// Say where an account's invoices go
    #[command(
        after_help = "Example:\n  chancery account billing \"Hale & Ward\" --address \"12 Harbour Lane\nBoston\" --email bills@hale.example"
    )]
    Billing {
        name: AccountName,
        /// The postal address, with its lines; an empty text takes it away
        #[arg(long, value_name = "TEXT", required_unless_present = "email")]
        address: Option<PostalAddress>,
        /// An e-mail address; an empty text takes it away
        #[arg(long, value_name = "ADDRESS")]
        email: Option<ContactEmail>,
    },
    /// Close an account: its keys stop generating, its ledger stays
    #[command(after_help = "Example:\n  chancery account close \"Hale & Ward\"")]
    Close { name: AccountName },
}

#[derive(Clone, Copy, Debug, Args)]
pub struct PerMinute {
    /// Requests per minute, over all keys of the account
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rpm: Option<u32>,
    /// Tokens per minute, both directions together
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub tpm: Option<u32>,
}

#[derive(Debug, Subcommand)]
pub enum Key {
    /// Make a key and print it, once; only a hash of it is kept
    #[command(after_help = "Example:\n  chancery key create --account \"Hale & Ward\" --label backend")]
    Create {
        /// The account that it bills; without one it cannot generate until it is attached
        #[arg(long, value_name = "NAME")]
        account: Option<AccountName>,
        /// What it is for
        #[arg(long, value_name = "TEXT", default_value = "", value_parser = key_label)]
        label: String,
    },
    /// Let a key bill an account
    #[command(after_help = "Example:\n  chancery key attach ck_7k2m9x4d --account \"Hale & Ward\"")]
    Attach {
        /// The key's prefix, as `chancery key list` shows it
        prefix: String,
        #[arg(long, value_name = "NAME")]
        account: AccountName,
    },
    /// Show all keys
    #[command(after_help = "Example:\n  chancery key list --json")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Stop a key, within one second, on every server
    #[command(after_help = "Example:\n  chancery key revoke ck_7k2m9x4d")]
    Revoke {
        /// The key's prefix, as `chancery key list` shows it
        prefix: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum Client {
    /// Bring clients in from a file: all of them, or none where anything in it is wrong
    #[command(
        after_help = "Example:\n  chancery client import clients.csv --dry-run\n  chancery client import clients.csv\n  \
            echo '{\"name\":\"Harbour Lane Bakery\",\"owner\":\"maya@example.com\"}' | chancery client import - --format jsonl\n\n\
            docs/clients.md has the fields."
    )]
    Import(ImportClients),
    /// Give a client to somebody else, from the next request on
    #[command(after_help = "Example:\n  chancery client assign 1042 omar@example.com")]
    Assign {
        /// The client's number
        #[arg(value_name = "ID", value_parser = client_id)]
        id: ClientId,
        #[command(flatten)]
        who: Who,
    },
    /// Show the clients, by number
    #[command(after_help = "Example:\n  chancery client list --owner maya@example.com --json")]
    List(ListClients),
    /// Write all clients with their entries to a file that `import` reads, archived ones too
    #[command(after_help = "Example:\n  chancery client export clients.jsonl")]
    Export(ExportClients),
}

#[derive(Debug, Args)]
pub struct ImportClients {
    /// A file that ends in .jsonl or .csv, or `-` for standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// How it is written, where its name does not say it
    #[arg(long, value_name = "jsonl|csv")]
    pub format: Option<Format>,
    /// Say what would happen, and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ListClients {
    /// Only the clients of this person
    #[arg(long, value_name = "EMAIL")]
    pub owner: Option<EmailAddress>,
    /// Those that were archived, instead of the others
    #[arg(long)]
    pub archived: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ExportClients {
    /// A file that ends in .jsonl or .csv, or `-` for standard output
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// How to write it, where its name does not say it
    #[arg(long, value_name = "jsonl|csv")]
    pub format: Option<Format>,
    /// Replace a file that is there already
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Subcommand)]
pub enum User {
    /// Show everybody who has signed in; those who were removed come last
    #[command(after_help = "Example:\n  chancery user list --json")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Make somebody a consultant or a partner, from their next request on; the last partner stays one, and whoever
    /// portal.partners lists
    #[command(after_help = "Example:\n  chancery user role ruth@example.com partner")]
    Role {
        #[command(flatten)]
        who: Who,
        #[arg(value_name = "consultant|partner")]
        role: Role,
    },
    /// End all sessions of somebody, from their next request on
    #[command(after_help = "Example:\n  chancery user sign-out ann@example.com")]
    SignOut {
        #[command(flatten)]
        who: Who,
    },
    /// Take somebody out of the portal: their sessions end, and they cannot sign in again; the last partner stays
    #[command(after_help = "Example:\n  chancery user remove ann@example.com")]
    Remove {
        #[command(flatten)]
        who: Who,
    },
    /// Let somebody who was removed sign in again, in the role they had
    #[command(after_help = "Example:\n  chancery user restore ann@example.com")]
    Restore {
        #[command(flatten)]
        who: Who,
    },
}

/// Which person. An address may be that of several identities, which are then told apart by subject and issuer.
#[derive(Clone, Debug, Args)]
pub struct Who {
    /// The address, as `chancery user list` shows it
    pub email: EmailAddress,
    /// Which of several people with this address: the identity provider's own name for them
    #[arg(long, value_name = "SUBJECT")]
    pub subject: Option<String>,
    /// Which of several people with this address and subject: the identity provider
    #[arg(long, value_name = "URL")]
    pub issuer: Option<String>,
}

fn client_id(text: &str) -> Result<ClientId, String> {
    text.parse().map(ClientId).map_err(|_| "a client's number is an integer, such as 1042".to_owned())
}

fn cap_change(text: &str) -> Result<CapChange, AmountError> {
    if text == "none" { Ok(CapChange::Remove) } else { text.parse().map(CapChange::Set) }
}

#[derive(Debug, Args)]
pub struct Usage {
    /// Only this account
    #[arg(long, value_name = "NAME")]
    pub account: Option<AccountName>,
    /// First day, in UTC
    #[arg(long, value_name = "DAY")]
    pub from: Option<Day>,
    /// Last day, in UTC
    #[arg(long, value_name = "DAY")]
    pub to: Option<Day>,
    /// What to sum by: day, model, key or account
    #[arg(long, default_value = "day")]
    pub by: UsageBy,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum Invoice {
    /// Issue the invoice of a month that has ended; one that is there already is left as it is, and named
    #[command(after_help = "Example:\n  chancery invoice issue --account \"Hale & Ward\" --month 2026-10")]
    Issue(IssueInvoice),
    /// Show invoices and credit notes, the latest first, and the months that are not invoiced yet
    #[command(after_help = "Example:\n  chancery invoice list --state issued --year 2026 --json")]
    List(ListInvoices),
    /// Show one, or write its file
    #[command(
        after_help = "Example:\n  chancery invoice show 2026-0031\n  chancery invoice show 2026-0031 --pdf 2026-0031.pdf\n  \
            chancery invoice show 2026-0031 --csv - | column -ts,"
    )]
    Show(ShowInvoice),
    /// Note that an invoice is paid
    #[command(after_help = "Example:\n  chancery invoice paid 2026-0031")]
    Paid {
        /// Such as 2026-0031
        #[arg(value_name = "NUMBER")]
        number: InvoiceNumber,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Take an invoice back, or a part of it, with a credit note; an issued invoice is never changed
    #[command(
        after_help = "Example:\n  chancery invoice credit 2026-0031 --amount 25.00 --reason \"The outage of 14 October\"\n  \
            chancery invoice credit 2026-0031 --whole --reason \"Wrong address\""
    )]
    Credit(CreditInvoice),
}

#[derive(Debug, Args)]
pub struct IssueInvoice {
    /// The account that is billed
    #[arg(long, value_name = "NAME")]
    pub account: AccountName,
    /// The calendar month, in UTC
    #[arg(long, value_name = "YYYY-MM")]
    pub month: Month,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ListInvoices {
    /// Only those of this account
    #[arg(long, value_name = "NAME")]
    pub account: Option<AccountName>,
    /// Only those in this state: draft, issued, paid or void
    #[arg(long, value_name = "STATE")]
    pub state: Option<InvoiceState>,
    /// Only those that were issued in this year
    #[arg(long, value_name = "YEAR", value_parser = clap::value_parser!(i16).range(1970..=9998))]
    pub year: Option<i16>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ShowInvoice {
    /// Such as 2026-0031
    #[arg(value_name = "NUMBER")]
    pub number: InvoiceNumber,
    /// Write the PDF, byte for byte as it was issued; `-` is standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["csv", "json"])]
    pub pdf: Option<PathBuf>,
    /// Write its lines as CSV; `-` is standard output
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub csv: Option<PathBuf>,
    /// Replace a file that is there already
    #[arg(long)]
    pub force: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("how_much").required(true).args(["whole", "amount"]))]
pub struct CreditInvoice {
    /// Such as 2026-0031
    #[arg(value_name = "NUMBER")]
    pub number: InvoiceNumber,
    /// All that is left of it: it is void then, and its month can be invoiced again
    #[arg(long)]
    pub whole: bool,
    /// So much of its subtotal, for example 25.00; the tax on it is added
    #[arg(long, value_name = "AMOUNT")]
    pub amount: Option<Nanos>,
    /// Why, as it stands on the credit note
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub reason: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn reason(text: &str) -> Result<String, TextError> {
    CREDIT_REASON.take(text)
}

#[derive(Debug, Subcommand)]
pub enum Model {
    /// Fetch a model that Chancery knows, and check it
    #[command(after_help = "Example:\n  chancery model pull smollm2-135m")]
    Pull { name: String },
    /// Show the configured models and those that can be pulled
    #[command(after_help = "Example:\n  chancery model list --json")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub struct Generate {
    /// Address of the API
    #[arg(long, env = "CHANCERY_URL", default_value = "http://localhost:8080")]
    pub url: String,
    #[arg(long, value_name = "NAME")]
    pub model: String,
    /// The job, in your words
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub instructions: String,
    /// Cap on the reply, in tokens
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_output_tokens: u64,
    /// Print the whole reply as JSON
    #[arg(long)]
    pub json: bool,
    /// The material; `-` reads it from standard input
    pub input: Option<String>,
}

#[derive(Debug, Args)]
pub struct Verify {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Migrate {
    /// The SQLite file that holds the firm, such as sqlite:data/chancery.db; it is left as it is
    #[arg(long, value_name = "URL")]
    pub from: UrlText,
    /// The PostgreSQL database that takes it: postgres://USER:PASSWORD@HOST:PORT/DATABASE
    #[arg(long, value_name = "URL")]
    pub to: UrlText,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A database's address as it was typed. It is read by the command itself and not here, for what is wrong with an argument
/// is shown with the argument, and this one may hold a password.
#[derive(Clone)]
pub struct UrlText(pub String);

impl From<&str> for UrlText {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl std::fmt::Debug for UrlText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UrlText(…)")
    }
}

#[derive(Debug, Subcommand)]
pub enum Config {
    /// Say whether the configuration can be used
    #[command(after_help = "Example:\n  chancery config check --config chancery.toml")]
    Check,
    /// Show every setting in effect and where it comes from
    #[command(after_help = "Example:\n  CHANCERY_API__LISTEN=127.0.0.1:9000 chancery config show")]
    Show {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}
