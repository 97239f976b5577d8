//! The journal's file format: one line per settlement, `v2 CHECKSUM JSON`. A line depends on no other line, so files can be
//! concatenated. The checksum is the SHA-256 of the JSON.

use super::JournalEntry;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chancery_domain::{
    AccountId, Fingerprint, IdempotencyKey, KeyId, Nanos, Prices, RequestId, StopReason, TokenPrice,
    UnixMillis, UsageRow,
};
use chancery_store::{Settlement, StoredReply};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Raised whenever a line of an earlier version can no longer be read.
const VERSION: &str = "v2";

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Record {
    request_id: String,
    account_id: i64,
    key_id: i64,
    model: String,
    input_tokens: u32,
    cached_input_tokens: u32,
    output_tokens: u32,
    input_price_nanos: i64,
    cached_price_nanos: i64,
    output_price_nanos: i64,
    cost_nanos: i64,
    at_ms: i64,
    stop_reason: String,
    is_reserved: bool,
    reply: Option<ReplyRecord>,
}

/// Only for requests with an idempotency key: no other text is written.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ReplyRecord {
    idempotency_key: String,
    fingerprint: [u8; 32],
    reasoning_text: String,
    output_text: String,
    /// Base64, as the store has it. Lines that are older than this field lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    logprobs: Option<String>,
    reasoning_tokens: u32,
    expires_at_ms: i64,
}

/// The entry's line, with its line break.
pub(super) fn encode(entry: &JournalEntry) -> serde_json::Result<String> {
    // No `..` here: a new field must not be lost in the journal.
    let JournalEntry { settlement, fingerprint } = entry;
    let Settlement { row, is_reserved, stored_reply } = settlement;
    let UsageRow {
        request_id,
        account,
        key,
        model,
        input_tokens,
        cached_input_tokens,
        output_tokens,
        prices: Prices { input, cached_input, output },
        cost,
        at,
        stop_reason,
    } = row;
    let reply = stored_reply.as_ref().zip(*fingerprint).map(|(reply, fingerprint)| {
        let StoredReply { key, reasoning_text, output_text, logprobs, reasoning_tokens, expires_at } = reply;
        ReplyRecord {
            idempotency_key: key.as_str().to_owned(),
            fingerprint: fingerprint.0,
            reasoning_text: reasoning_text.clone(),
            output_text: output_text.clone(),
            logprobs: logprobs.as_ref().map(|bytes| STANDARD.encode(bytes)),
            reasoning_tokens: *reasoning_tokens,
            expires_at_ms: expires_at.0,
        }
    });
    let json = serde_json::to_string(&Record {
        request_id: request_id.as_str().to_owned(),
        account_id: account.0,
        key_id: key.0,
        model: model.clone(),
        input_tokens: *input_tokens,
        cached_input_tokens: *cached_input_tokens,
        output_tokens: *output_tokens,
        input_price_nanos: input.nanos_per_token(),
        cached_price_nanos: cached_input.nanos_per_token(),
        output_price_nanos: output.nanos_per_token(),
        cost_nanos: cost.0,
        at_ms: at.0,
        stop_reason: stop_reason.as_str().to_owned(),
        is_reserved: *is_reserved,
        reply,
    })?;
    Ok(format!("{VERSION} {} {json}\n", checksum(json.as_bytes())))
}

/// `None` if the line, given without its line break, is damaged or of another version.
pub(super) fn decode(line: &[u8]) -> Option<JournalEntry> {
    let (version, rest) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    let (sum, json) = rest.split_once(' ')?;
    if version != VERSION || sum != checksum(json.as_bytes()) {
        return None;
    }
    let record: Record = serde_json::from_str(json).ok()?;
    let fingerprint = record.reply.as_ref().map(|reply| Fingerprint(reply.fingerprint));
    let stored_reply = match record.reply {
        None => None,
        Some(reply) => Some(StoredReply {
            key: IdempotencyKey::from_stored(reply.idempotency_key),
            reasoning_text: reply.reasoning_text,
            output_text: reply.output_text,
            logprobs: reply.logprobs.map(|text| STANDARD.decode(text)).transpose().ok()?,
            reasoning_tokens: reply.reasoning_tokens,
            expires_at: UnixMillis(reply.expires_at_ms),
        }),
    };
    let row = UsageRow {
        request_id: RequestId::from_stored(record.request_id),
        account: AccountId(record.account_id),
        key: KeyId(record.key_id),
        model: record.model,
        input_tokens: record.input_tokens,
        cached_input_tokens: record.cached_input_tokens,
        output_tokens: record.output_tokens,
        prices: Prices {
            input: TokenPrice::from_nanos_per_token(record.input_price_nanos),
            cached_input: TokenPrice::from_nanos_per_token(record.cached_price_nanos),
            output: TokenPrice::from_nanos_per_token(record.output_price_nanos),
        },
        cost: Nanos(record.cost_nanos),
        at: UnixMillis(record.at_ms),
        stop_reason: StopReason::from_stored(&record.stop_reason)?,
    };
    let settlement = Settlement { row, is_reserved: record.is_reserved, stored_reply };
    Some(JournalEntry { settlement, fingerprint })
}

/// The entries of a journal, and what could not be read.
#[derive(Default)]
pub(super) struct Parsed {
    pub(super) entries: Vec<JournalEntry>,
    /// Complete lines that are damaged, or of another version.
    pub(super) damaged: Vec<Vec<u8>>,
    /// Whether the last line is incomplete: the process died while it wrote it, before the append returned.
    pub(super) is_torn: bool,
}

pub(super) fn parse(content: &[u8]) -> Parsed {
    let mut parsed = Parsed::default();
    for line in content.split_inclusive(|byte| *byte == b'\n') {
        match line.strip_suffix(b"\n") {
            None => parsed.is_torn = true,
            Some(line) => match decode(line) {
                Some(entry) => parsed.entries.push(entry),
                None => parsed.damaged.push(line.to_vec()),
            },
        }
    }
    parsed
}

fn checksum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
