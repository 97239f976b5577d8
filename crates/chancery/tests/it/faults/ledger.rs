//! The ledger as it stands in the database, and what must be true of it after every fault: whatever a client received is
//! in it once, with the same tokens and the cost of those; and nothing else is, but what clients could not be told of.

use super::asks::Answer;
use super::clients::Seen;
use crate::server::Firm;
use chancery_domain::UsageRow;
use chancery_store::Store;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The default model's prices, 0.10 and 0.40 for a million tokens, in nano-units for one.
const INPUT_PRICE_NANOS: i64 = 100;
const OUTPUT_PRICE_NANOS: i64 = 400;

/// Replies that arrived whole, by request.
pub type Delivered = BTreeMap<String, Answer>;

pub fn deliver(delivered: &mut Delivered, replies: &[Seen]) {
    for Seen { id, answer, .. } in replies {
        assert_eq!(delivered.insert(id.clone(), answer.clone()), None, "two replies with the id {id}");
    }
}

/// Every row, by request.
pub async fn rows(database_url: &str) -> BTreeMap<String, UsageRow> {
    let store = Arc::new(Store::open(&database_url.parse().unwrap()).await.unwrap());
    let rows = store.ledger_chains.ledger_rows(None, 1_000_000).await.unwrap();
    store.close().await;
    let count = rows.len();
    let by_request: BTreeMap<_, _> = rows.into_iter().map(|row| (row.request_id.to_string(), row)).collect();
    assert_eq!(by_request.len(), count, "a request is billed twice");
    by_request
}

/// `chancery verify` agrees.
pub fn assert_verified(firm: &Firm, arguments: &[&str]) {
    let output = firm.output(&[&["verify"], arguments].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("all agree"), "{text}");
}

/// Compares every reply with its row; gives the rows that belong to no reply.
pub fn undelivered(rows: &BTreeMap<String, UsageRow>, delivered: &Delivered) -> Vec<UsageRow> {
    for (id, answer) in delivered {
        let row = rows.get(id).unwrap_or_else(|| panic!("{id} was delivered and is not in the ledger"));
        assert_eq!(
            (row.input_tokens, row.output_tokens),
            (answer.input_tokens, answer.output_tokens),
            "{id}"
        );
        assert_eq!(row.ended.as_str(), answer.stop_reason, "{id}");
    }
    for (id, row) in rows {
        let cost = i64::from(row.input_tokens) * INPUT_PRICE_NANOS
            + i64::from(row.output_tokens) * OUTPUT_PRICE_NANOS;
        assert_eq!(row.cost.0, cost, "{id}");
    }
    rows.iter().filter(|(id, _)| !delivered.contains_key(*id)).map(|(_, row)| row.clone()).collect()
}

/// Rows without a reply are allowed for requests whose client could not be told how they ended, one for each at most, and
/// only with the tokens that the request does generate.
pub fn assert_explained(undelivered: &[UsageRow], unanswered: &[Answer]) {
    let mut unanswered: Vec<&Answer> = unanswered.iter().collect();
    for row in undelivered {
        let matches = |answer: &&Answer| {
            (answer.input_tokens, answer.output_tokens) == (row.input_tokens, row.output_tokens)
                && answer.stop_reason == row.ended.as_str()
        };
        let place = unanswered.iter().position(matches);
        let place = place.unwrap_or_else(|| panic!("nobody asked for this, or it was refused: {row:?}"));
        unanswered.remove(place);
    }
}
