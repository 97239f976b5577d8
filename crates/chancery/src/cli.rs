//! The command line as its users see it. Every command has an example in its help.
//! Long because every option of every command is declared here, together with its help.

mod model;
mod reply_options;

pub use model::Model;
pub use reply_options::ReplyOptions;

use chancery_client_files::Format;
use chancery_domain::{
    AccountName, AllowedModels, AllowedModelsError, AmountError, CREDIT_REASON_BOUNDS, ClientId,
    ContactEmail, Day, EmailAddress, InvoiceNumber, InvoiceState, Month, Nanos, PostalAddress, Role,
    TextError, UnixMillis, parse_expiry,
};
use chancery_store::{CapChange, KeyLimitsChange, LimitChange, UsageBy, key_label};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::num::IntErrorKind;
use std::path::PathBuf;
use std::time::Duration;

/// The build profile. `release` is what is shipped and measured; `fast`, which `make run` builds, is quicker to build and slower.
pub const PROFILE: &str = env!("CHANCERY_PROFILE");
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("CHANCERY_PROFILE"), ")");

/// Text-generation API and client portal for one firm, in one binary.
#[derive(Debug, Parser)]
#[command(version = VERSION, propagate_version = true, arg_required_else_help = true)]
#[command(after_help = "Example:\n  chancery serve --demo")]
pub struct Cli {
    #[command(flatten)]
    pub global_args: GlobalArgs,
    #[command(subcommand)]
    pub command: Command,
}

/// Where the configuration and the data are; the same for every command.
#[derive(Clone, Debug, Args)]
pub struct GlobalArgs {
    /// Configuration file [default: ./chancery.toml, if it exists]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Data directory [default: data]
    #[arg(long, global = true, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start the server
    #[command(after_help = "Example:\n  chancery serve --demo --data /tmp/firm")]
    Serve(Serve),
    /// Manage billing accounts, rate limits and spending caps
    #[command(subcommand, arg_required_else_help = true)]
    #[command(after_help = "Example:\n  chancery account create \"Hale & Ward\" --rpm 120 --tpm 200000")]
    Account(Account),
    /// Manage API keys
    #[command(subcommand, arg_required_else_help = true)]
    #[command(after_help = "Example:\n  chancery key create --account \"Hale & Ward\" --label backend")]
    Key(Key),
    /// Import, assign, list and export clients
    #[command(subcommand, arg_required_else_help = true)]
    #[command(after_help = "Example:\n  chancery client import clients.csv --dry-run")]
    Client(Client),
    /// Manage portal users, roles and sessions
    #[command(subcommand, arg_required_else_help = true)]
    #[command(after_help = "Example:\n  chancery user role ruth@example.com partner")]
    User(User),
    /// Show token usage and cost from the ledger
    #[command(
        after_help = "Example:\n  chancery usage --account \"Hale & Ward\" --from 2026-11-01 --to 2026-11-30"
    )]
    Usage(Usage),
    /// Manage invoices, credit notes and payments
    #[command(subcommand, arg_required_else_help = true)]
    #[command(after_help = "Example:\n  chancery invoice issue --account \"Hale & Ward\" --month 2026-10")]
    Invoice(Invoice),
    /// Manage webhooks, which receive alerts as signed events
    #[command(subcommand, arg_required_else_help = true)]
    #[command(after_help = "Example:\n  chancery webhook add https://example.com/hooks/chancery")]
    Webhook(Webhook),
    /// Manage the key that encrypts the secrets in the database
    #[command(subcommand, arg_required_else_help = true)]
    #[command(after_help = "Example:\n  chancery secrets rotate")]
    Secrets(Secrets),
    /// Download, import, list and remove model files
    #[command(subcommand, arg_required_else_help = true)]
    #[command(after_help = "Example:\n  chancery model pull smollm2-135m")]
    Model(Model),
    /// Send a generation request to a running server (uses CHANCERY_URL and CHANCERY_API_KEY)
    #[command(
        after_help = "Example:\n  echo 'Met Mr. Ito on 3 March.' | chancery generate --model smollm2-135m \\\n    --instructions 'Rewrite the notes as a polite letter.' --max-output-tokens 200 -"
    )]
    Generate(Generate),
    /// Prove offline what a request was billed
    #[command(subcommand, arg_required_else_help = true)]
    #[command(
        after_help = "Example:\n  chancery receipt verify receipt.json --checkpoint 2026-11-15.txt --key checkpoint.pub"
    )]
    Receipt(Receipt),
    /// Recompute the ledger, invoices and audit log, compare them with signed checkpoints, and report differences; exits 1 if
    /// there are any
    #[command(
        after_help = "Example:\n  chancery verify --checkpoints /mnt/copy/checkpoints --key /mnt/copy/checkpoint.pub\n\n\
            Without --checkpoints, those in the data directory are used. See docs/tamper-evidence.md."
    )]
    Verify(Verify),
    /// Transfer all data from a SQLite file to an empty PostgreSQL database, in one transaction
    #[command(
        after_help = "Example:\n  createdb firm\n  chancery migrate --from sqlite:data/chancery.db --to postgres://chancery@db.example/firm?sslmode=verify-full\n\n\
            Stop the server first. Put the password in PGPASSWORD or ~/.pgpass, not in the URL.\n\
            See docs/operating.md for the full procedure."
    )]
    Migrate(Migrate),
    /// Check or show the configuration
    #[command(subcommand, arg_required_else_help = true)]
    #[command(after_help = "Example:\n  chancery config check --config chancery.toml")]
    Config(Config),
}

#[derive(Debug, Args)]
pub struct Serve {
    /// Create a demo firm in an empty data directory and print its URLs and credentials
    #[arg(long)]
    pub demo: bool,
    /// With --demo: only people, clients and a key; no names, past usage, invoices or page with the email
    #[arg(long, requires = "demo", hide = true)]
    pub minimal: bool,
    /// With --demo: do not download and load the larger model that drafts letters
    #[arg(long, requires = "demo")]
    pub no_fetch: bool,
    /// Run only these services, comma-separated [default: all; possible values: api, portal, auth]
    #[arg(long, value_name = "SERVICES", value_delimiter = ',')]
    pub only: Vec<Service>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Service {
    /// The text-generation API
    Api,
    /// The client portal
    Portal,
    /// The built-in identity provider
    Auth,
}

#[derive(Debug, Subcommand)]
pub enum Account {
    /// Create an account
    #[command(after_help = "Example:\n  chancery account create \"Hale & Ward\" --rpm 120 --tpm 200000")]
    Create {
        name: AccountName,
        #[command(flatten)]
        limits: RateLimitArgs,
    },
    /// List accounts
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
        limits: RateLimitArgs,
        /// Spending cap per calendar month (UTC), such as 250 or 12.50; `none` removes it
        #[arg(long, value_name = "AMOUNT", value_parser = cap_change)]
        spend_per_month: Option<CapChange>,
    },
    /// Set an account's billing address and email
    #[command(
        after_help = "Example:\n  chancery account billing \"Hale & Ward\" --address \"12 Harbour Lane\nBoston\" --email bills@hale.example"
    )]
    Billing {
        name: AccountName,
        /// Postal address, with line breaks; an empty value removes it
        #[arg(long, value_name = "TEXT", required_unless_present = "email")]
        address: Option<PostalAddress>,
        /// Email address; an empty value removes it
        #[arg(long, value_name = "ADDRESS")]
        email: Option<ContactEmail>,
    },
    /// Close an account: its keys stop working; its ledger is retained
    #[command(after_help = "Example:\n  chancery account close \"Hale & Ward\"")]
    Close { name: AccountName },
}

#[derive(Clone, Copy, Debug, Args)]
pub struct RateLimitArgs {
    /// Requests per minute, across all keys of the account
    #[arg(long, value_name = "N", value_parser = at_least_one::<u32>)]
    pub rpm: Option<u32>,
    /// Tokens per minute, input and output combined
    #[arg(long, value_name = "N", value_parser = at_least_one::<u32>)]
    pub tpm: Option<u32>,
}

#[derive(Debug, Subcommand)]
pub enum Key {
    /// Create a key and print it once; only its hash is stored
    #[command(after_help = "Example:\n  chancery key create --account \"Hale & Ward\" --label backend\n  \
            chancery key create --account \"Hale & Ward\" --rpm 60 --spend-per-month 50 --models smollm2-135m --expires 2027-06-30")]
    Create {
        /// Account to bill; a key without one cannot generate until you attach it
        #[arg(long, value_name = "NAME")]
        account: Option<AccountName>,
        /// Label that says what the key is for, such as `backend`
        #[arg(long, value_name = "TEXT", default_value = "", value_parser = key_label)]
        label: String,
        #[command(flatten)]
        limits: KeyLimitArgs,
    },
    /// Attach a key to an account
    #[command(after_help = "Example:\n  chancery key attach ck_7k2m9x4d --account \"Hale & Ward\"")]
    Attach {
        /// Key prefix, from `chancery key list`
        prefix: String,
        #[arg(long, value_name = "NAME")]
        account: AccountName,
    },
    /// Change a key's own limits; its account's limits hold as well
    #[command(
        group = clap::ArgGroup::new("change").required(true).multiple(true)
            .args(["rpm", "tpm", "spend_per_month", "models", "expires"]),
        after_help = "Example:\n  chancery key limits ck_7k2m9x4d --rpm 60 --expires none"
    )]
    Limits {
        /// Key prefix, from `chancery key list`
        prefix: String,
        #[command(flatten)]
        limits: KeyLimitArgs,
    },
    /// Give a key a new secret and print the new key once; the old one works until the overlap ends
    #[command(after_help = "Example:\n  chancery key rotate ck_7k2m9x4d --overlap 24h")]
    Rotate {
        /// Key prefix, from `chancery key list`
        prefix: String,
        /// How long the old secret still works, such as 30m, 24h or 7d; 0 ends it at once
        #[arg(long, value_name = "TIME", default_value = "24h", value_parser = overlap)]
        overlap: Duration,
        /// End the overlap of an earlier rotation: the secret before it stops working now
        #[arg(long)]
        end_overlap: bool,
    },
    /// List keys
    #[command(after_help = "Example:\n  chancery key list --json")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Revoke a key; takes effect within one second on every server
    #[command(after_help = "Example:\n  chancery key revoke ck_7k2m9x4d")]
    Revoke {
        /// Key prefix, from `chancery key list`
        prefix: String,
    },
}

/// A key's own limits. `none` removes one.
#[derive(Clone, Debug, Args)]
pub struct KeyLimitArgs {
    /// Requests per minute of this key, or `none`
    #[arg(long, value_name = "N", value_parser = rate_limit_change)]
    pub rpm: Option<LimitChange<u32>>,
    /// Tokens per minute of this key, input and output combined, or `none`
    #[arg(long, value_name = "N", value_parser = rate_limit_change)]
    pub tpm: Option<LimitChange<u32>>,
    /// Spending cap of this key per calendar month (UTC), such as 250 or 12.50, or `none`
    #[arg(long, value_name = "AMOUNT", value_parser = cap_change)]
    pub spend_per_month: Option<CapChange>,
    /// Models that this key may use, separated by commas, or `none` to allow every model
    #[arg(long, value_name = "A,B", value_parser = models_change)]
    pub models: Option<LimitChange<AllowedModels>>,
    /// Last day (UTC) on which this key works, such as 2027-06-30, or the exact time; or `none`
    #[arg(long, value_name = "DATE", value_parser = expiry_change)]
    pub expires: Option<LimitChange<UnixMillis>>,
}

impl KeyLimitArgs {
    pub fn change(self) -> KeyLimitsChange {
        KeyLimitsChange {
            requests_per_min: self.rpm.unwrap_or_default(),
            tokens_per_min: self.tpm.unwrap_or_default(),
            spend_per_month: self.spend_per_month.unwrap_or_default(),
            models: self.models.unwrap_or_default(),
            expires_at: self.expires.unwrap_or_default(),
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum Client {
    /// Import clients from a file; imports nothing if any row is invalid
    #[command(
        after_help = "Example:\n  chancery client import clients.csv --dry-run\n  chancery client import clients.csv\n  \
            echo '{\"name\":\"Harbour Lane Bakery\",\"owner\":\"maya@example.com\"}' | chancery client import - --format jsonl\n\n\
            See docs/clients.md for the fields."
    )]
    Import(ImportClients),
    /// Assign a client to another owner; takes effect on the next request
    #[command(after_help = "Example:\n  chancery client assign 1042 omar@example.com")]
    Assign {
        /// Client number
        #[arg(value_name = "ID", value_parser = client_id)]
        id: ClientId,
        #[command(flatten)]
        selector: UserSelector,
    },
    /// List clients, sorted by number
    #[command(after_help = "Example:\n  chancery client list --owner maya@example.com --json")]
    List(ListClients),
    /// Export all clients and entries, including archived ones, to a file that `import` reads
    #[command(after_help = "Example:\n  chancery client export clients.jsonl")]
    Export(ExportClients),
}

#[derive(Debug, Args)]
pub struct ImportClients {
    /// A .jsonl or .csv file, or `-` for standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// File format, if the file extension is not .jsonl or .csv
    #[arg(long, value_name = "jsonl|csv")]
    pub format: Option<Format>,
    /// Validate the file without importing it
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ListClients {
    /// Only clients owned by this user
    #[arg(long, value_name = "EMAIL")]
    pub owner: Option<EmailAddress>,
    /// Show archived clients instead of active ones
    #[arg(long)]
    pub archived: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ExportClients {
    /// A .jsonl or .csv file, or `-` for standard output
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// File format, if the file extension is not .jsonl or .csv
    #[arg(long, value_name = "jsonl|csv")]
    pub format: Option<Format>,
    /// Overwrite an existing file
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Subcommand)]
pub enum User {
    /// List users; removed ones come last
    #[command(after_help = "Example:\n  chancery user list --json")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Invite a person by email; their first sign-in with that address gets the role
    #[command(after_help = "Example:\n  chancery user invite ann@example.com --role consultant")]
    Invite {
        /// An address at portal.company_domain
        email: EmailAddress,
        #[arg(long, value_name = "consultant|partner", default_value = "consultant")]
        role: Role,
    },
    /// Set a user's role; takes effect on their next request. The last partner and addresses in
    /// portal.partners keep the partner role
    #[command(after_help = "Example:\n  chancery user role ruth@example.com partner")]
    Role {
        #[command(flatten)]
        selector: UserSelector,
        #[arg(value_name = "consultant|partner")]
        role: Role,
    },
    /// End all of a user's sessions; takes effect on their next request
    #[command(after_help = "Example:\n  chancery user sign-out ann@example.com")]
    SignOut {
        #[command(flatten)]
        selector: UserSelector,
    },
    /// Delete a user's passkeys, authenticator app and recovery codes at the built-in identity provider,
    /// and end their sessions; the user gets an email
    #[command(after_help = "Example:\n  chancery user reset-factors ann@example.com")]
    ResetFactors {
        #[command(flatten)]
        selector: UserSelector,
    },
    /// Remove a user, and all other users with the same mailbox (name+anything@): ends their sessions and
    /// blocks sign-in; the last partner cannot be removed
    #[command(after_help = "Example:\n  chancery user remove ann@example.com")]
    Remove {
        #[command(flatten)]
        selector: UserSelector,
    },
    /// Restore a removed user with their previous role
    #[command(after_help = "Example:\n  chancery user restore ann@example.com")]
    Restore {
        #[command(flatten)]
        selector: UserSelector,
    },
}

/// Selects a user. Several identities can share an address; subject and issuer tell them apart.
#[derive(Clone, Debug, Args)]
pub struct UserSelector {
    /// Email address, from `chancery user list`
    pub email: EmailAddress,
    /// Subject at the identity provider, if several users share the address
    #[arg(long, value_name = "SUBJECT")]
    pub subject: Option<String>,
    /// Issuer URL, if several users share the address and subject
    #[arg(long, value_name = "URL")]
    pub issuer: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum Webhook {
    /// Add a webhook and print its id and its secret, once
    #[command(after_help = "Example:\n  chancery webhook add https://example.com/hooks/chancery\n\n\
            See docs/alerts.md for the events and how to verify their signatures.")]
    Add {
        /// Where events are posted; https://, or any address in webhooks.allow_private
        url: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List webhooks
    #[command(after_help = "Example:\n  chancery webhook list --json")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a webhook, and the events that wait for it
    #[command(after_help = "Example:\n  chancery webhook remove wh_h2Kd81LsQ0zYv7Wc")]
    Remove {
        /// Webhook id, from `chancery webhook list`
        id: String,
    },
    /// Send a test event now and print the result
    #[command(after_help = "Example:\n  chancery webhook test wh_h2Kd81LsQ0zYv7Wc")]
    Test {
        /// Webhook id, from `chancery webhook list`
        id: String,
    },
}

/// Parses an integer without an upper bound of its own. Clap's ranges would print the maximum of the type.
fn at_least_one<N: TryFrom<u64>>(text: &str) -> Result<N, &'static str> {
    const TOO_LARGE: &str = "too large; use a smaller number";
    match text.parse::<u64>() {
        Ok(number @ 1..) => N::try_from(number).map_err(|_| TOO_LARGE),
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => Err(TOO_LARGE),
        _ => Err("must be an integer, 1 or more"),
    }
}

fn client_id(text: &str) -> Result<ClientId, String> {
    text.parse().map(ClientId).map_err(|_| "invalid client number; use an integer, such as 1042".to_owned())
}

fn cap_change(text: &str) -> Result<CapChange, AmountError> {
    if text == "none" { Ok(CapChange::Remove) } else { text.parse().map(CapChange::Set) }
}

fn rate_limit_change(text: &str) -> Result<LimitChange<u32>, String> {
    if text == "none" {
        return Ok(LimitChange::Remove);
    }
    at_least_one(text).map(LimitChange::Set).map_err(|error| format!("{error}; or `none`"))
}

fn models_change(text: &str) -> Result<LimitChange<AllowedModels>, AllowedModelsError> {
    if text == "none" { Ok(LimitChange::Remove) } else { text.parse().map(LimitChange::Set) }
}

fn expiry_change(text: &str) -> Result<LimitChange<UnixMillis>, String> {
    if text == "none" {
        return Ok(LimitChange::Remove);
    }
    parse_expiry(text).map(LimitChange::Set).map_err(|error| format!("{error}, or `none`"))
}

/// Longest time for which a key has two secrets.
const MAX_OVERLAP: Duration = Duration::from_secs(90 * 24 * 3600);

fn overlap(text: &str) -> Result<Duration, &'static str> {
    const FORMAT: &str = "use a number with a unit, such as 30m, 24h or 7d (at most 90d), or 0";
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (unit_start, unit) = text.char_indices().next_back().ok_or(FORMAT)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 24 * 3600,
        _ => return Err(FORMAT),
    };
    let number: u64 = text[..unit_start].parse().map_err(|_| FORMAT)?;
    let overlap = Duration::from_secs(number.checked_mul(seconds).ok_or(FORMAT)?);
    if overlap <= MAX_OVERLAP { Ok(overlap) } else { Err(FORMAT) }
}

#[derive(Debug, Args)]
pub struct Usage {
    /// Only this account
    #[arg(long, value_name = "NAME")]
    pub account: Option<AccountName>,
    /// First day (UTC)
    #[arg(long, value_name = "DAY")]
    pub from: Option<Day>,
    /// Last day (UTC)
    #[arg(long, value_name = "DAY")]
    pub to: Option<Day>,
    /// Group by day, model, key or account
    #[arg(long, default_value = "day")]
    pub by: UsageBy,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum Invoice {
    /// Issue the invoice for a past month; prints the existing number if there is one
    #[command(after_help = "Example:\n  chancery invoice issue --account \"Hale & Ward\" --month 2026-10")]
    Issue(IssueInvoice),
    /// List invoices and credit notes, newest first, and months not yet invoiced
    #[command(after_help = "Example:\n  chancery invoice list --state issued --year 2026 --json")]
    List(ListInvoices),
    /// Show an invoice, or save it as PDF or CSV
    #[command(
        after_help = "Example:\n  chancery invoice show 2026-0031\n  chancery invoice show 2026-0031 --pdf 2026-0031.pdf\n  \
            chancery invoice show 2026-0031 --csv - | column -ts,"
    )]
    Show(ShowInvoice),
    /// Mark an invoice as paid
    #[command(after_help = "Example:\n  chancery invoice paid 2026-0031")]
    Paid {
        /// Invoice number, such as 2026-0031
        #[arg(value_name = "NUMBER")]
        number: InvoiceNumber,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Credit an invoice, in full or in part, with a credit note
    #[command(
        after_help = "Example:\n  chancery invoice credit 2026-0031 --amount 25.00 --reason \"The outage of 14 October\"\n  \
            chancery invoice credit 2026-0031 --whole --reason \"Wrong address\""
    )]
    Credit(CreditInvoice),
}

#[derive(Debug, Args)]
pub struct IssueInvoice {
    /// Account to invoice
    #[arg(long, value_name = "NAME")]
    pub account: AccountName,
    /// Calendar month (UTC)
    #[arg(long, value_name = "YYYY-MM")]
    pub month: Month,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ListInvoices {
    /// Only this account
    #[arg(long, value_name = "NAME")]
    pub account: Option<AccountName>,
    /// Only this state: draft, issued, paid or void
    #[arg(long, value_name = "STATE")]
    pub state: Option<InvoiceState>,
    /// Only documents issued in this year
    #[arg(long, value_name = "YEAR", value_parser = clap::value_parser!(i16).range(1970..=9998))]
    pub year: Option<i16>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ShowInvoice {
    /// Invoice number, such as 2026-0031
    #[arg(value_name = "NUMBER")]
    pub number: InvoiceNumber,
    /// Save the PDF as issued; `-` for standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["csv", "json"])]
    pub pdf: Option<PathBuf>,
    /// Save the lines as CSV; `-` for standard output
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub csv: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long)]
    pub force: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("how_much").required(true).args(["whole", "amount"]))]
pub struct CreditInvoice {
    /// Invoice number, such as 2026-0031
    #[arg(value_name = "NUMBER")]
    pub number: InvoiceNumber,
    /// Credit the full remaining amount: voids the invoice, so the month can be invoiced again
    #[arg(long)]
    pub whole: bool,
    /// Amount of the subtotal to credit, such as 25.00; tax is added
    #[arg(long, value_name = "AMOUNT")]
    pub amount: Option<Nanos>,
    /// Reason, printed on the credit note
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub reason: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn reason(text: &str) -> Result<String, TextError> {
    CREDIT_REASON_BOUNDS.take(text)
}

#[derive(Debug, Subcommand)]
pub enum Secrets {
    /// Replace the key: add a new one to the key file, and encrypt all secrets with it, while servers run
    #[command(after_help = "Example:\n  chancery secrets rotate\n\n\
            Without secrets.key_file and with SQLite, one run does it all. Otherwise the first run adds the key, you copy the\n\
            file to every node, and the second run encrypts. An interrupted run is finished by the next one.\n\
            See docs/operating.md for the full procedure.")]
    Rotate,
}

#[derive(Debug, Args)]
pub struct Generate {
    /// API URL; default: the API of the configuration
    #[arg(long, env = "CHANCERY_URL")]
    pub url: Option<String>,
    #[arg(long, value_name = "NAME")]
    pub model: String,
    /// System instructions
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub instructions: String,
    /// Maximum length of the reply, in tokens
    #[arg(long, value_name = "N", value_parser = at_least_one::<u64>)]
    pub max_output_tokens: u64,
    #[command(flatten)]
    pub reply_options: ReplyOptions,
    /// Print the full response as JSON
    #[arg(long)]
    pub json: bool,
    /// Input text; `-` reads it from standard input
    pub input: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum Receipt {
    /// Verify a receipt of GET /v1/receipts/REQUEST_ID with a copy of its checkpoint; needs no server and no database
    #[command(
        after_help = "Example:\n  chancery receipt verify receipt.json --checkpoint 2026-11-15.txt --key checkpoint.pub"
    )]
    Verify(ReceiptVerify),
}

#[derive(Debug, Args)]
pub struct ReceiptVerify {
    /// The receipt, as the API sent it
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// File or directory with checkpoints, copied from the server's checkpoints directory
    #[arg(long, value_name = "FILE")]
    pub checkpoint: PathBuf,
    /// File with the public keys of checkpoints [default: checkpoint.pub in the data directory]
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Verify {
    /// File or directory with checkpoints, copied earlier [default: checkpoints in the data directory]
    #[arg(long, value_name = "FILE")]
    pub checkpoints: Option<PathBuf>,
    /// File with the public keys of checkpoints [default: checkpoint.pub in the data directory]
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Migrate {
    /// Source SQLite file, such as sqlite:data/chancery.db; it is not modified
    #[arg(long, value_name = "URL")]
    pub from: UrlArg,
    /// Target PostgreSQL database: postgres://USER:PASSWORD@HOST:PORT/DATABASE
    #[arg(long, value_name = "URL")]
    pub to: UrlArg,
    /// Send everything to another machine without TLS
    #[arg(long)]
    pub allow_cleartext: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Database URL, parsed by the command: clap would print an invalid value, and this one may contain a password.
#[derive(Clone)]
pub struct UrlArg(pub String);

impl From<&str> for UrlArg {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl std::fmt::Debug for UrlArg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UrlArg(…)")
    }
}

#[derive(Debug, Subcommand)]
pub enum Config {
    /// Validate the configuration
    #[command(after_help = "Example:\n  chancery config check --config chancery.toml")]
    Check,
    /// Show every effective setting and its origin
    #[command(after_help = "Example:\n  CHANCERY_API__LISTEN=127.0.0.1:9000 chancery config show")]
    Show {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}
