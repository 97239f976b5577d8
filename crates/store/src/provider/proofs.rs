//! The queries about mailboxes that are being proved to the identity provider.

use crate::db::both::{for_both_stores, stored_row};
use crate::db::error_codes::{answer, explain};
use crate::db::retry::{COMMAND_PATIENCE, patiently};
use crate::{MailboxProof, MailboxProofs, MailedCode, PasswordHash, ProofPurpose, StoreError};
use chancery_domain::{EmailAddress, LocalPath, TokenHash, UnixMillis};

stored_row! {
    struct StoredProof {
        email: String,
        password_hash: Option<String>,
        return_to: String,
        code_hash: Vec<u8>,
        code_expires_at_ms: i64,
        codes_sent: i64,
        last_sent_at_ms: i64,
    }
}

impl StoredProof {
    fn into_proof(self) -> Result<MailboxProof, StoreError> {
        let corrupt = |what, why: String| StoreError::Corrupt { what, why };
        let code_hash = self.code_hash.try_into().map_err(|bytes: Vec<u8>| {
            corrupt("a code's hash", format!("it has {} bytes instead of 32", bytes.len()))
        })?;
        let return_to = LocalPath::parse(&self.return_to)
            .ok_or_else(|| corrupt("a proof's return path", format!("{:?} is none", self.return_to)))?;
        // The table's own rule: a password is there when, and only when, somebody signs up.
        let purpose = match self.password_hash {
            Some(hash) => ProofPurpose::SignUp(PasswordHash(hash)),
            None => ProofPurpose::NewPassword,
        };
        Ok(MailboxProof {
            purpose,
            email: self.email.parse().map_err(|error| corrupt("an address", format!("{error}")))?,
            return_to,
            code: MailedCode {
                hash: TokenHash(code_hash),
                expires_at: UnixMillis(self.code_expires_at_ms),
                sent: u32::try_from(self.codes_sent).unwrap_or(u32::MAX),
                sent_at: UnixMillis(self.last_sent_at_ms),
            },
        })
    }
}

const BEGIN: &str = "INSERT INTO mailbox_proofs (token_hash, purpose, email, password_hash, return_to, code_hash, \
    code_expires_at_ms, codes_sent, last_sent_at_ms) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
const FIND: &str = "SELECT email, password_hash, return_to, code_hash, code_expires_at_ms, codes_sent, last_sent_at_ms \
    FROM mailbox_proofs WHERE token_hash = $1 AND code_expires_at_ms > $2";
const NEW_CODE: &str = "UPDATE mailbox_proofs SET code_hash = $2, code_expires_at_ms = $3, codes_sent = codes_sent + 1, \
    last_sent_at_ms = $4 WHERE token_hash = $1 AND codes_sent = $5";
pub(crate) const TAKE: &str = "DELETE FROM mailbox_proofs WHERE token_hash = $1 AND code_hash = $2";
pub(crate) const DESTROY: &str = "DELETE FROM mailbox_proofs WHERE email = $1";
const FORGET: &str = "DELETE FROM mailbox_proofs WHERE token_hash IN \
    (SELECT token_hash FROM mailbox_proofs WHERE code_expires_at_ms <= $1 LIMIT $2)";

for_both_stores! {
    impl MailboxProofs {
        async fn begin_proof(&self, token: TokenHash, proof: MailboxProof) -> Result<(), StoreError> {
            let (purpose, password_hash) = match &proof.purpose {
                ProofPurpose::SignUp(hash) => ("sign_up", Some(hash.0.as_str())),
                ProofPurpose::NewPassword => ("new_password", None),
            };
            let begun = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query(BEGIN)
                    .bind(token.0.as_slice())
                    .bind(purpose)
                    .bind(proof.email.as_str())
                    .bind(password_hash)
                    .bind(proof.return_to.as_str())
                    .bind(proof.code.hash.0.as_slice())
                    .bind(proof.code.expires_at.0)
                    .bind(i64::from(proof.code.sent))
                    .bind(proof.code.sent_at.0)
                    .execute(&mut *connection)
            });
            begun.map(|_| ()).map_err(|error| explain(&error))
        }

        async fn proof(&self, token: TokenHash, now: UnixMillis) -> Result<Option<MailboxProof>, StoreError> {
            let found = sqlx::query_as(FIND).bind(token.0.as_slice()).bind(now.0).fetch_optional(&self.reader);
            answer(found).await?.map(StoredProof::into_proof).transpose()
        }

        async fn replace_proof_code(&self, token: TokenHash, new: MailedCode) -> Result<bool, StoreError> {
            let replaced = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query(NEW_CODE)
                    .bind(token.0.as_slice())
                    .bind(new.hash.0.as_slice())
                    .bind(new.expires_at.0)
                    .bind(new.sent_at.0)
                    .bind(i64::from(new.sent) - 1)
                    .execute(&mut *connection)
            });
            replaced.map(|done| done.rows_affected() > 0).map_err(|error| explain(&error))
        }

        async fn take_proof(&self, token: TokenHash, code: TokenHash) -> Result<bool, StoreError> {
            let taken = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query(TAKE).bind(token.0.as_slice()).bind(code.0.as_slice()).execute(&mut *connection)
            });
            taken.map(|done| done.rows_affected() > 0).map_err(|error| explain(&error))
        }

        async fn destroy_proofs(&self, email: &EmailAddress) -> Result<u64, StoreError> {
            let destroyed = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query(DESTROY).bind(email.as_str()).execute(&mut *connection)
            });
            destroyed.map(|done| done.rows_affected()).map_err(|error| explain(&error))
        }

        async fn forget_old_proofs(&self, now: UnixMillis, limit: u32) -> Result<u64, StoreError> {
            let forgotten = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query(FORGET).bind(now.0).bind(i64::from(limit)).execute(&mut *connection)
            });
            forgotten.map(|done| done.rows_affected()).map_err(|error| explain(&error))
        }
    }
}
