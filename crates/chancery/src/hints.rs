//! Suggests how to fix a store error, in terms of the command line and the configuration, neither of which the store knows.

use chancery_model_files::FolderError;
use chancery_store::{
    AccountError, FactorResetError, InvoiceError, LedgerError, OpenError, PersonError, TransferError,
};

/// Returns `None` if the error message is enough.
pub fn of(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| {
        let account = cause.downcast_ref().and_then(account_hint);
        let ledger = || cause.downcast_ref().and_then(ledger_hint);
        let person = || cause.downcast_ref().and_then(person_hint);
        let factor_reset = || cause.downcast_ref().and_then(factor_reset_hint);
        let transfer = || cause.downcast_ref().and_then(transfer_hint);
        let opening = || cause.downcast_ref().and_then(open_hint);
        let model_file = || cause.downcast_ref().and_then(model_file_hint);
        let fixed = account
            .or_else(ledger)
            .or_else(person)
            .or_else(factor_reset)
            .or_else(transfer)
            .or_else(opening)
            .or_else(model_file);
        fixed.map(str::to_owned).or_else(|| cause.downcast_ref().and_then(invoice_hint))
    })
}

const LIST_ACCOUNTS: &str = "run `chancery account list` to see all accounts";

fn account_hint(error: &AccountError) -> Option<&'static str> {
    Some(match error {
        AccountError::NoSuchAccount(_) | AccountError::NoSuchAccountId(_) => LIST_ACCOUNTS,
        AccountError::NoSuchKey => "run `chancery key list` to see all keys",
        AccountError::OverlapRunning { .. } => {
            "rotate it after that, or use `--end-overlap` to stop the old secret now"
        }
        AccountError::KeyRevoked(_) => "create a new key with `chancery key create`",
        _ => return None,
    })
}

fn ledger_hint(error: &LedgerError) -> Option<&'static str> {
    matches!(error, LedgerError::NoSuchAccountId(_)).then_some(LIST_ACCOUNTS)
}

fn person_hint(error: &PersonError) -> Option<&'static str> {
    Some(match error {
        PersonError::NoSuchPerson(_) => "run `chancery user list` to see all users",
        PersonError::LastPartner => "promote another partner first with `chancery user role EMAIL partner`",
        _ => return None,
    })
}

fn factor_reset_hint(error: &FactorResetError) -> Option<&'static str> {
    matches!(error, FactorResetError::NoProviderAccount)
        .then_some("run `chancery user list` to see issuers and subjects")
}

fn invoice_hint(error: &InvoiceError) -> Option<String> {
    Some(match error {
        InvoiceError::NoSuchAccountId(_) => LIST_ACCOUNTS.to_owned(),
        InvoiceError::NoSuchInvoice(_) => "run `chancery invoice list` to see all invoices".to_owned(),
        InvoiceError::ConcurrentCredit(number) => {
            format!("check the remaining amount with `chancery invoice show {number}`, then try again")
        }
        _ => return None,
    })
}

fn transfer_hint(error: &TransferError) -> Option<&'static str> {
    match error {
        TransferError::TargetNotEmpty { .. } => Some(
            "create an empty database with `createdb`; if an earlier transfer filled this one, check it with `chancery verify`",
        ),
        TransferError::Open(error) => open_hint(error),
        _ => None,
    }
}

fn open_hint(error: &OpenError) -> Option<&'static str> {
    Some(match error {
        OpenError::NoDatabase { .. } => "check `--data` and `database.url`",
        OpenError::NoFolder { .. } => "create it, or choose another with `--data` or `database.url`",
        OpenError::CannotOpen { .. } => {
            "give the user that runs chancery write access to the file and its directory, or set another with `--data` or `database.url`"
        }
        OpenError::NotADatabase { .. } => {
            "move the file away to start with an empty database, restore a backup, or set another file with `--data` or `database.url`"
        }
        OpenError::NotChanceryDatabase => "set an empty database with `--data` or `database.url`",
        OpenError::OldSchema => "use an empty data directory (`--data`) or database (`database.url`)",
        OpenError::DatabaseFileInUse { .. } => {
            "stop the other server, or use PostgreSQL (`database.url`) and Redis (`limits.store = \"redis://…\"`) to run several"
        }
        OpenError::OtherServerRunning => {
            "set `limits.store = \"redis://…\"` on all servers, or stop the other one"
        }
        OpenError::OtherServerUsesMemoryLimits => {
            "set `limits.store` on the other server to the same Redis and restart it, or stop it"
        }
        _ => return None,
    })
}

fn model_file_hint(error: &FolderError) -> Option<&'static str> {
    matches!(error, FolderError::NoSuchModel { .. })
        .then_some("run `chancery model list` to see all model files")
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{KeyPrefix, UnixMillis};
    use std::path::PathBuf;

    #[test]
    fn errors_name_the_command_or_setting_that_helps() {
        let cases: [(anyhow::Error, &str); 10] = [
            (OpenError::NoDatabase { location: "x".to_owned() }.into(), "`--data` and `database.url`"),
            (OpenError::OldSchema.into(), "empty data directory"),
            (OpenError::DatabaseFileInUse { file: PathBuf::new() }.into(), "limits.store"),
            (TransferError::TargetNotEmpty { table: "accounts" }.into(), "createdb"),
            (TransferError::Open(OpenError::NotChanceryDatabase).into(), "`database.url`"),
            (AccountError::NoSuchKey.into(), "`chancery key list`"),
            (
                AccountError::OverlapRunning {
                    key: KeyPrefix::from_stored("ck_7k2m9x4d".to_owned()),
                    ends_at: UnixMillis(0),
                }
                .into(),
                "`--end-overlap`",
            ),
            (
                FolderError::NoSuchModel { name: "x".to_owned(), folder: PathBuf::new() }.into(),
                "`chancery model list`",
            ),
            (PersonError::LastPartner.into(), "`chancery user role EMAIL partner`"),
            (InvoiceError::NoSuchInvoice("2026-0001".parse().unwrap()).into(), "`chancery invoice list`"),
        ];
        for (error, expected) in cases {
            let found = of(&error.context("--from")).unwrap();
            assert!(found.contains(expected), "{found}");
        }
    }
}
