//! The columns that contain secrets. Each secret is encrypted for its column and its row.

/// A column whose values are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SecretColumn {
    /// Table and column. Part of what a ciphertext is bound to, so it never changes.
    pub(crate) name: &'static str,
    /// One of its values, for errors.
    pub(crate) secret: &'static str,
    pub(crate) statements: Statements,
}

/// The statements of a rotation. Rows are visited in the order of their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Statements {
    /// Rows after a key that do not begin with these bytes.
    pub(crate) outdated: &'static str,
    /// Only if the secret has not changed since it was read.
    pub(crate) replace: &'static str,
    /// How many secrets begin with which bytes.
    pub(crate) count: &'static str,
    pub(crate) has_text_key: bool,
}

/// `substr` counts bytes, and 9 is `HEADER_BYTES`.
macro_rules! secret_column {
    ($table:literal, $column:literal, $key:literal, $has_text_key:literal, $secret:literal) => {
        SecretColumn {
            name: concat!($table, ".", $column),
            secret: $secret,
            statements: Statements {
                outdated: concat!(
                    "SELECT ",
                    $key,
                    " AS row_key, ",
                    $column,
                    " AS sealed FROM ",
                    $table,
                    " WHERE ",
                    $key,
                    " > $1 AND ",
                    $column,
                    " IS NOT NULL AND substr(",
                    $column,
                    ", 1, 9) <> $2 ORDER BY ",
                    $key,
                    " LIMIT $3"
                ),
                replace: concat!(
                    "UPDATE ",
                    $table,
                    " SET ",
                    $column,
                    " = $3 WHERE ",
                    $key,
                    " = $1 AND ",
                    $column,
                    " = $2"
                ),
                count: concat!(
                    "SELECT substr(",
                    $column,
                    ", 1, 9) AS header, COUNT(*) AS secrets FROM ",
                    $table,
                    " WHERE ",
                    $column,
                    " IS NOT NULL GROUP BY substr(",
                    $column,
                    ", 1, 9)"
                ),
                has_text_key: $has_text_key,
            },
        }
    };
}

pub(crate) const SIGNING_KEY: SecretColumn =
    secret_column!("signing_keys", "private_key", "key_id", true, "a signing key");
pub(crate) const SHARED_SECRET: SecretColumn =
    secret_column!("shared_secrets", "secret", "name", true, "a shared secret");
pub(crate) const SESSION_ID_TOKEN: SecretColumn =
    secret_column!("sessions", "id_token", "token_hash", false, "the ID token of a session");
pub(crate) const PENDING_ID_TOKEN: SecretColumn =
    secret_column!("pending_email_codes", "id_token", "token_hash", false, "the ID token of a sign-in");
pub(crate) const TOTP_SECRET: SecretColumn =
    secret_column!("totp_secrets", "secret", "subject", true, "the secret of an authenticator app");
pub(crate) const CEREMONY_STATE: SecretColumn =
    secret_column!("factor_ceremonies", "state", "key_hash", false, "a challenge for a second factor");
pub(crate) const WEBHOOK_SECRET: SecretColumn =
    secret_column!("webhooks", "secret", "id", true, "the secret of a webhook");

pub(crate) const SECRET_COLUMNS: [SecretColumn; 7] = [
    SIGNING_KEY,
    SHARED_SECRET,
    SESSION_ID_TOKEN,
    PENDING_ID_TOKEN,
    TOTP_SECRET,
    CEREMONY_STATE,
    WEBHOOK_SECRET,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secrets::key_id::HEADER_BYTES;

    #[test]
    fn statements_compare_the_whole_header() {
        for SecretColumn { name, statements, .. } in SECRET_COLUMNS {
            let header = format!(", 1, {HEADER_BYTES})");
            assert!(statements.outdated.contains(&header), "{name}");
            assert_eq!(statements.count.matches(&header).count(), 2, "{name}");
        }
    }
}
