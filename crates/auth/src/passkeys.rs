//! Passkeys (WebAuthn). User verification is always required, so a passkey is two factors by itself. Credentials are
//! discoverable: the passkey says whose it is. Each challenge is stored on the server and answered once.
//!
//! The browser's script reads the options from the page and posts the answer as JSON.

use crate::limits::{CEREMONY_TTL, PASSKEY_TIMEOUT};
use crate::{Provider, store_error_page};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chancery_domain::TokenHash;
use chancery_store::{CeremonyKind, FactorCeremony, ProviderAccount, StoredPasskey};
use chancery_web::ErrorPage;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use webauthn_rs::prelude::{
    DiscoverableAuthentication, Passkey, PasskeyRegistration, PublicKeyCredential,
    RegisterPublicKeyCredential, Url, Uuid, Webauthn, WebauthnBuilder, WebauthnError,
};

/// The relying party: this provider, at exactly the issuer's origin.
pub(crate) struct Passkeys(Webauthn);

/// Why a passkey was rejected, for the log.
#[derive(Debug, thiserror::Error)]
enum PasskeyError {
    #[error("the answer or the state is no valid JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Webauthn(#[from] WebauthnError),
    #[error("the passkey belongs to another account")]
    OtherAccount,
}

/// What is stored of a ceremony: what the browser gets, and what its answer is checked against.
#[derive(Serialize, Deserialize)]
struct Challenge<S> {
    options: Value,
    state: S,
}

impl Passkeys {
    /// `None` if the issuer's host is not a host name.
    pub(crate) fn new(issuer: &str, firm_name: &str) -> Option<Self> {
        let origin = Url::parse(issuer).ok()?;
        let host = origin.domain()?;
        let builder = WebauthnBuilder::new(host, &origin).ok()?;
        builder.rp_name(firm_name).timeout(PASSKEY_TIMEOUT).build().ok().map(Self)
    }

    fn start_registration(
        &self,
        account: &ProviderAccount,
        existing: &[StoredPasskey],
    ) -> Result<Challenge<PasskeyRegistration>, PasskeyError> {
        let exclude = existing.iter().map(|passkey| passkey.credential_id.clone()).collect();
        let email = account.email.as_str();
        let (options, state) =
            self.0.start_passkey_registration(user_handle(&account.subject), email, email, Some(exclude))?;
        let mut options = serde_json::to_value(options)?;
        // The crate only discourages credentials that the passkey stores itself. Signing in without an address needs
        // them.
        let selection = &mut options["publicKey"]["authenticatorSelection"];
        selection["residentKey"] = json!("required");
        selection["requireResidentKey"] = json!(true);
        Ok(Challenge { options, state })
    }

    fn start_authentication(
        &self,
        allowed: &[StoredPasskey],
    ) -> Result<Challenge<DiscoverableAuthentication>, PasskeyError> {
        let (options, state) = self.0.start_discoverable_authentication()?;
        let allowed: Vec<Value> = allowed
            .iter()
            .map(
                |passkey| json!({"type": "public-key", "id": URL_SAFE_NO_PAD.encode(&passkey.credential_id)}),
            )
            .collect();
        let mut options = json!({"publicKey": serde_json::to_value(options.public_key)?});
        options["publicKey"]["allowCredentials"] = Value::Array(allowed);
        Ok(Challenge { options, state })
    }

    fn register(&self, state: &str, answer: &str) -> Result<Passkey, PasskeyError> {
        let challenge: Challenge<PasskeyRegistration> = serde_json::from_str(state)?;
        let answer: RegisterPublicKeyCredential = serde_json::from_str(answer)?;
        Ok(self.0.finish_passkey_registration(&answer, &challenge.state)?)
    }

    /// Returns the credential as it is to be stored: with the new sign counter and backup state.
    fn authenticate(
        &self,
        state: &str,
        answer: &PublicKeyCredential,
        stored: &StoredPasskey,
        expected: Option<&str>,
    ) -> Result<String, PasskeyError> {
        let handle = answer.get_user_unique_id();
        let is_owner = match expected {
            // The passkey must say whose it is.
            None => handle == Some(user_handle(&stored.subject).as_bytes().as_slice()),
            Some(subject) => {
                let matches = |handle: &[u8]| handle == user_handle(subject).as_bytes();
                stored.subject == subject && handle.is_none_or(matches)
            }
        };
        if !is_owner {
            return Err(PasskeyError::OtherAccount);
        }
        let challenge: Challenge<DiscoverableAuthentication> = serde_json::from_str(state)?;
        let mut passkey: Passkey = serde_json::from_str(&stored.credential)?;
        let result = self.0.finish_discoverable_authentication_v2(answer, challenge.state, &passkey)?;
        passkey.update_credential(&result);
        Ok(serde_json::to_string(&passkey)?)
    }
}

/// The account's name inside passkeys. It is derived from the subject and reveals nothing about it.
fn user_handle(subject: &str) -> Uuid {
    let hash: [u8; 32] = Sha256::new().chain_update("passkey user\0").chain_update(subject).finalize().into();
    let mut handle = [0; 16];
    handle.copy_from_slice(&hash[..16]);
    Uuid::from_bytes(handle)
}

/// Starts adding a passkey, in place of an earlier start. Returns the options for the script; `None` if there are no
/// passkeys here.
pub(crate) async fn begin_registration(
    provider: &Provider,
    key: TokenHash,
    account: &ProviderAccount,
    existing: &[StoredPasskey],
) -> Result<Option<String>, ErrorPage> {
    let Some(passkeys) = &provider.passkeys else { return Ok(None) };
    let challenge = passkeys.start_registration(account, existing).map_err(internal)?;
    let subject = Some(account.subject.clone());
    begin(provider, key, CeremonyKind::PasskeyRegistration, subject, &challenge).await.map(Some)
}

/// The new passkey's ID and serialized credential. `None` if it was rejected.
pub(crate) async fn finish_registration(
    provider: &Provider,
    key: TokenHash,
    account: &ProviderAccount,
    answer: &str,
) -> Result<Option<(Vec<u8>, String)>, ErrorPage> {
    let Some(passkeys) = &provider.passkeys else { return Ok(None) };
    let Some(ceremony) = consume(provider, key, CeremonyKind::PasskeyRegistration).await? else {
        return Ok(None);
    };
    if ceremony.subject.as_deref() != Some(account.subject.as_str()) {
        return Ok(None);
    }
    let registered = passkeys.register(&ceremony.state, answer).and_then(|passkey| {
        let credential = serde_json::to_string(&passkey)?;
        Ok((passkey.cred_id().to_vec(), credential))
    });
    Ok(registered.map_err(log_rejection).ok())
}

/// Starts a use of one of the `allowed` passkeys, in place of an earlier start; with none, of any passkey. Returns the
/// options for the script; `None` if there are no passkeys here.
pub(crate) async fn begin_authentication(
    provider: &Provider,
    key: TokenHash,
    subject: Option<&str>,
    allowed: &[StoredPasskey],
) -> Result<Option<String>, ErrorPage> {
    let Some(passkeys) = &provider.passkeys else { return Ok(None) };
    let challenge = passkeys.start_authentication(allowed).map_err(internal)?;
    let subject = subject.map(str::to_owned);
    begin(provider, key, CeremonyKind::PasskeyAuthentication, subject, &challenge).await.map(Some)
}

/// Verifies the browser's answer. Returns the subject of the account whose passkey it is; `None` if it was rejected.
pub(crate) async fn finish_authentication(
    provider: &Provider,
    key: TokenHash,
    answer: &str,
) -> Result<Option<String>, ErrorPage> {
    let Some(passkeys) = &provider.passkeys else { return Ok(None) };
    let Some(ceremony) = consume(provider, key, CeremonyKind::PasskeyAuthentication).await? else {
        return Ok(None);
    };
    let answer: PublicKeyCredential = match serde_json::from_str(answer) {
        Ok(answer) => answer,
        Err(error) => {
            log_rejection(error.into());
            return Ok(None);
        }
    };
    let factors = &provider.store.second_factors;
    let stored = factors.passkey(answer.get_credential_id()).await.map_err(store_error_page)?;
    let Some(stored) = stored else { return Ok(None) };
    let verified = passkeys.authenticate(&ceremony.state, &answer, &stored, ceremony.subject.as_deref());
    let Ok(credential) = verified.map_err(log_rejection) else { return Ok(None) };
    let recorded = factors.record_passkey_use(&stored, &credential, provider.clock.now()).await;
    // False if the passkey was removed, or used at the same time with the same sign counter.
    Ok(recorded.map_err(store_error_page)?.then_some(stored.subject))
}

async fn begin<S: Serialize>(
    provider: &Provider,
    key: TokenHash,
    kind: CeremonyKind,
    subject: Option<String>,
    challenge: &Challenge<S>,
) -> Result<String, ErrorPage> {
    let state = serde_json::to_string(challenge).map_err(|error| internal(error.into()))?;
    let expires_at = provider.clock.now().after(CEREMONY_TTL);
    let ceremony = FactorCeremony { kind, subject, state, expires_at };
    provider.store.ceremonies.begin_ceremony(key, &ceremony).await.map_err(store_error_page)?;
    Ok(challenge.options.to_string())
}

async fn consume(
    provider: &Provider,
    key: TokenHash,
    kind: CeremonyKind,
) -> Result<Option<FactorCeremony>, ErrorPage> {
    let consumed = provider.store.ceremonies.consume_ceremony(key, kind, provider.clock.now()).await;
    consumed.map_err(store_error_page)
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn log_rejection(error: PasskeyError) {
    tracing::info!(%error, "passkey rejected");
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn internal(error: PasskeyError) -> ErrorPage {
    ErrorPage::internal(format!("passkey challenge failed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passkeys_need_a_host_name() {
        for issuer in ["http://localhost:8082", "https://id.example.com"] {
            assert!(Passkeys::new(issuer, "Hale & Ward").is_some(), "{issuer}");
        }
        for issuer in ["http://127.0.0.1:8082", "https://[2001:db8::1]", "https://192.0.2.7:8443", ""] {
            assert!(Passkeys::new(issuer, "Hale & Ward").is_none(), "{issuer}");
        }
    }

    #[test]
    fn challenges_require_user_verification_and_a_stored_credential() {
        let passkeys = Passkeys::new("http://localhost:8082", "Hale & Ward").unwrap();
        let account = ProviderAccount {
            subject: "maya".to_owned(),
            email: "maya@example.com".parse().unwrap(),
            password_hash: chancery_store::PasswordHash(String::new()),
            password_version: 1,
            created_at: chancery_domain::UnixMillis(0),
        };
        let options = passkeys.start_registration(&account, &[]).unwrap().options;
        let selection = &options["publicKey"]["authenticatorSelection"];
        assert_eq!(selection["userVerification"], "required", "{options}");
        assert_eq!(selection["residentKey"], "required", "{options}");
        assert_eq!(options["publicKey"]["rp"]["id"], "localhost", "{options}");
        let options = passkeys.start_authentication(&[]).unwrap().options;
        assert_eq!(options["publicKey"]["userVerification"], "required", "{options}");
        assert_eq!(options["publicKey"]["rpId"], "localhost", "{options}");
        assert!(options.get("mediation").is_none(), "{options}");
    }
}
