//! What to do about an error of the store, in terms of this command line and its configuration. The store does not know either.

use chancery_store::{AccountError, InvoiceError, LedgerError, OpenError, PersonError, TransferError};

/// None where the error says enough.
pub fn of(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| {
        let account = cause.downcast_ref().and_then(about_account);
        let ledger = || cause.downcast_ref().and_then(about_ledger);
        let person = || cause.downcast_ref().and_then(about_person);
        let transfer = || cause.downcast_ref().and_then(about_transfer);
        let opening = || cause.downcast_ref().and_then(about_opening);
        let fixed = account.or_else(ledger).or_else(person).or_else(transfer).or_else(opening);
        fixed.map(str::to_owned).or_else(|| cause.downcast_ref().and_then(about_invoice))
    })
}

const LIST_ACCOUNTS: &str = "`chancery account list` shows those there are";

fn about_account(error: &AccountError) -> Option<&'static str> {
    Some(match error {
        AccountError::NoSuchAccount(_) | AccountError::NoSuchAccountId(_) => LIST_ACCOUNTS,
        AccountError::NoSuchKey => "`chancery key list` shows those there are",
        AccountError::KeyRevoked(_) => "make a new one with `chancery key create`",
        _ => return None,
    })
}

fn about_ledger(error: &LedgerError) -> Option<&'static str> {
    matches!(error, LedgerError::NoSuchAccountId(_)).then_some(LIST_ACCOUNTS)
}

fn about_person(error: &PersonError) -> Option<&'static str> {
    Some(match error {
        PersonError::NoSuchPerson(_) => "`chancery user list` shows those there are",
        PersonError::LastPartner => "make another one first with `chancery user role EMAIL partner`",
        _ => return None,
    })
}

fn about_invoice(error: &InvoiceError) -> Option<String> {
    Some(match error {
        InvoiceError::NoSuchAccountId(_) => LIST_ACCOUNTS.to_owned(),
        InvoiceError::NoSuchInvoice(_) => "`chancery invoice list` shows those there are".to_owned(),
        InvoiceError::CreditedMeanwhile(number) => {
            format!("look at what is left of it with `chancery invoice show {number}`, and try again")
        }
        _ => return None,
    })
}

fn about_transfer(error: &TransferError) -> Option<&'static str> {
    match error {
        TransferError::TargetHoldsRows { .. } => Some(
            "make an empty one with `createdb`; or, if an earlier move filled this one, check it with `chancery verify`",
        ),
        TransferError::Open(error) => about_opening(error),
        _ => None,
    }
}

fn about_opening(error: &OpenError) -> Option<&'static str> {
    Some(match error {
        OpenError::NoDatabase { .. } => "is `--data` (or `database.url`) right?",
        OpenError::NoFolder { .. } => "create it, or choose another with `--data` or `database.url`",
        OpenError::CannotOpen { .. } => {
            "let the user that chancery runs as write to it and to its folder, or choose another with `--data` or `database.url`"
        }
        OpenError::NotADatabase { .. } => {
            "move it away to start an empty one, restore a backup, or choose another file with `--data` or `database.url`"
        }
        OpenError::ForeignDatabase => "choose an empty one with `--data` or `database.url`",
        OpenError::OldSchema => "start with an empty data folder (`--data`) or database (`database.url`)",
        OpenError::FileIsServed { .. } => {
            "stop the other, or use PostgreSQL (`database.url`) and Redis (`limits.store = \"redis://…\"`) for several"
        }
        OpenError::ServedByAnother => "set `limits.store = \"redis://…\"` for all servers, or stop the other",
        OpenError::ServedWithLimitsInMemory => {
            "set its `limits.store` to the Redis of this one and restart it, or stop it"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn errors_that_a_command_or_a_setting_helps_with_name_it() {
        let cases: [(anyhow::Error, &str); 8] = [
            (OpenError::NoDatabase { place: "x".to_owned() }.into(), "`--data` (or `database.url`)"),
            (OpenError::OldSchema.into(), "empty data folder"),
            (OpenError::FileIsServed { file: PathBuf::new() }.into(), "limits.store"),
            (TransferError::TargetHoldsRows { table: "accounts" }.into(), "createdb"),
            (TransferError::Open(OpenError::ForeignDatabase).into(), "`database.url`"),
            (AccountError::NoSuchKey.into(), "`chancery key list`"),
            (PersonError::LastPartner.into(), "`chancery user role EMAIL partner`"),
            (InvoiceError::NoSuchInvoice("2026-0001".parse().unwrap()).into(), "`chancery invoice list`"),
        ];
        for (error, advice) in cases {
            let found = of(&error.context("--from")).unwrap();
            assert!(found.contains(advice), "{found}");
        }
    }
}
