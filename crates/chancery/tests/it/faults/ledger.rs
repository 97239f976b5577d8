//! Ledger checks after every fault. Each reply that a client received has one row with the same tokens and their cost.
//! Any other row belongs to a request whose client could not learn the outcome.

use super::client_requests::ReplyContent;
use super::clients::ReceivedReply;
use crate::server::Firm;
use chancery_domain::UsageRow;
use chancery_store::Store;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The default model's prices, 0.10 and 0.40 per million tokens, in nano-units per token.
const INPUT_PRICE_NANOS: i64 = 100;
const OUTPUT_PRICE_NANOS: i64 = 400;

pub fn cost_nanos(input_tokens: u32, output_tokens: u32) -> i64 {
    i64::from(input_tokens) * INPUT_PRICE_NANOS + i64::from(output_tokens) * OUTPUT_PRICE_NANOS
}

/// Complete replies, by request id.
pub type Delivered = BTreeMap<String, ReplyContent>;

pub fn deliver(delivered: &mut Delivered, replies: &[ReceivedReply]) {
    for ReceivedReply { id, content, .. } in replies {
        assert_eq!(delivered.insert(id.clone(), content.clone()), None, "two replies with the id {id}");
    }
}

/// Returns all rows, by request id.
pub async fn rows(database_url: &str) -> BTreeMap<String, UsageRow> {
    let store = Arc::new(Store::open(&database_url.parse().unwrap()).await.unwrap());
    let rows = store.ledger_chains.ledger_rows(None, 1_000_000).await.unwrap();
    store.close().await;
    let count = rows.len();
    let by_request: BTreeMap<_, _> = rows.into_iter().map(|row| (row.request_id.to_string(), row)).collect();
    assert_eq!(by_request.len(), count, "a request is billed twice");
    by_request
}

/// Asserts that `chancery verify` finds no differences.
pub fn assert_verified(firm: &Firm, arguments: &[&str]) {
    let output = firm.output(&[&["verify"], arguments].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains(": OK"), "{text}");
}

/// Compares every reply with its row; returns the rows that belong to no reply.
pub fn undelivered(rows: &BTreeMap<String, UsageRow>, delivered: &Delivered) -> Vec<UsageRow> {
    for (id, content) in delivered {
        let row = rows.get(id).unwrap_or_else(|| panic!("{id} was delivered and is not in the ledger"));
        assert_eq!(
            (row.input_tokens, row.output_tokens),
            (content.input_tokens, content.output_tokens),
            "{id}"
        );
        assert_eq!(row.stop_reason.as_str(), content.stop_reason, "{id}");
    }
    for (id, row) in rows {
        assert_eq!(row.cost.0, cost_nanos(row.input_tokens, row.output_tokens), "{id}");
    }
    rows.iter().filter(|(id, _)| !delivered.contains_key(*id)).map(|(_, row)| row.clone()).collect()
}

/// Each row without a reply must match a request whose client could not learn the outcome, with that request's tokens.
pub fn assert_explained(undelivered: &[UsageRow], unanswered: &[ReplyContent]) {
    let mut unanswered: Vec<&ReplyContent> = unanswered.iter().collect();
    for row in undelivered {
        let matches = |content: &&ReplyContent| {
            (content.input_tokens, content.output_tokens) == (row.input_tokens, row.output_tokens)
                && content.stop_reason == row.stop_reason.as_str()
        };
        let index = unanswered.iter().position(matches);
        let index = index
            .unwrap_or_else(|| panic!("no request matches this row, or its request was rejected: {row:?}"));
        unanswered.remove(index);
    }
}
