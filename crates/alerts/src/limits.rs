//! Intervals, time-outs and bounds of alerts and their delivery.

use std::time::Duration;

/// How often spending is compared with caps, by one node.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// A node that has checked leaves the next check to whoever comes first.
pub(crate) const CHECK_CLAIM: Duration = Duration::from_secs(9);

/// How long after the end of a month its last requests may still cause alerts.
pub(crate) const LATE_MONTH: Duration = Duration::from_secs(60 * 60);
/// Accounts and keys that are read at a time.
pub(crate) const CHECK_PAGE_ROWS: u32 = 500;

/// Percentages of a cap at which an alert is sent, lowest first.
pub(crate) const SPENDING_THRESHOLDS: [u8; 2] = [50, 80];
/// Days before a key's expiry at which an alert is sent, furthest first.
pub(crate) const EXPIRY_WARNINGS_DAYS: [u8; 2] = [7, 1];

/// How long an alert is sent again while its receiver fails.
pub(crate) const ALERT_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// The first wait between two attempts; each further one is three times as long.
pub(crate) const FIRST_RETRY: Duration = Duration::from_secs(5);
pub(crate) const RETRY_FACTOR: u32 = 3;
pub(crate) const MAX_RETRY: Duration = Duration::from_secs(4 * 60 * 60);

/// The time-out of one request to a webhook, name resolution included.
pub(crate) const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the command line waits for the addresses of a new webhook.
pub(crate) const LOOKUP_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a process may take to send a message. Longer than any attempt, by email or webhook.
pub(crate) const CLAIM_TIME: Duration = Duration::from_secs(60);
/// Emails that one process sends at the same time.
pub(crate) const MAX_CONCURRENT_EMAILS: usize = 32;
/// Events that one process sends to one webhook at the same time, so that a slow receiver delays only its own events.
pub(crate) const MAX_CONCURRENT_EVENTS: usize = 2;
/// How long the other events of a webhook wait after one timed out.
pub(crate) const TIMED_OUT_PAUSE: Duration = Duration::from_secs(60);
/// How often the worker looks for messages of other processes, such as the command line.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// The last attempt is at the expiry, and may be this much late.
pub(crate) const EXPIRY_GRACE: Duration = Duration::from_secs(30);
/// How long shutdown waits for messages that are being sent. The rest is sent again after the claim.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// How long finished messages stay, without their content, for troubleshooting. Addresses should not stay longer.
pub(crate) const MESSAGE_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// Longer than a month and the longest warning before an expiry.
pub(crate) const ALERT_RETENTION: Duration = Duration::from_secs(62 * 24 * 60 * 60);
pub(crate) const DELETE_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// Rows deleted in one statement, so that other writers do not wait long.
pub(crate) const DELETE_BATCH_ROWS: u32 = 500;
