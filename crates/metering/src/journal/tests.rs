use super::*;
use chancery_domain::{AccountId, IdempotencyKey, KeyId, Nanos, Prices, StopReason, TokenPrice, UsageRow};
use chancery_store::StoredReply;
use proptest::prelude::*;

fn row(number: u32) -> UsageRow {
    UsageRow {
        request_id: RequestId::from_stored(format!("req_{number:04}")),
        account: AccountId(7),
        key: KeyId(8),
        model: "words \"quoted\"".to_owned(),
        input_tokens: number,
        cached_input_tokens: number / 2,
        output_tokens: 2,
        prices: Prices {
            input: TokenPrice::from_nanos_per_token(1_000),
            cached_input: TokenPrice::from_nanos_per_token(250),
            output: TokenPrice::from_nanos_per_token(2_000),
        },
        cost: Nanos(i64::from(number - number / 2) * 1_000 + i64::from(number / 2) * 250 + 4_000),
        at: UnixMillis(1_800_000_000_000),
        stop_reason: StopReason::Complete,
    }
}

fn entry(number: u32) -> JournalEntry {
    JournalEntry { settlement: row(number).into(), fingerprint: None }
}

/// With a reply that has line breaks, quotes and letters of several bytes.
fn keyed_entry(number: u32) -> JournalEntry {
    let stored_reply = StoredReply {
        key: IdempotencyKey::from_stored("order-17".to_owned()),
        reasoning_text: "Whom?".to_owned(),
        reasoning_tokens: 2,
        logprobs: Some(vec![1, 0]),
        output_text: "Dear Ruth,\n\"süß\" \u{0} \u{1f600}\r\n".to_owned(),
        expires_at: UnixMillis(1_800_000_086_400),
    };
    let settlement = Settlement { row: row(number), is_reserved: true, stored_reply: Some(stored_reply) };
    JournalEntry { settlement, fingerprint: Some(Fingerprint([number as u8; 32])) }
}

fn numbered(number: u32) -> JournalEntry {
    if number.is_multiple_of(2) { entry(number) } else { keyed_entry(number) }
}

fn ids(numbers: &[u32]) -> Vec<RequestId> {
    numbers.iter().map(|number| row(*number).request_id).collect()
}

fn add_bytes(path: &Path, bytes: &[u8]) {
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    file.write_all(bytes).unwrap();
}

#[test]
fn journaled_entry_is_read_back_unchanged_after_reopening() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    for number in 0..4 {
        journal.append_blocking(numbered(number)).unwrap();
    }
    let expected: Vec<_> = (0..4).map(numbered).collect();
    assert_eq!(journal.entries(), expected);
    drop(journal);
    assert_eq!(Journal::open(folder.path()).unwrap().entries(), expected);
    assert_eq!(Journal::status(folder.path()).unwrap(), JournalStatus { waiting: 4, rejected: 0 });
}

/// The text of a reply is in the file.
#[cfg(unix)]
#[test]
fn journal_files_are_readable_by_the_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    journal.append_blocking(keyed_entry(1)).unwrap();
    journal.append_blocking(keyed_entry(2)).unwrap();
    journal.add_rejected(b"x\n").unwrap();
    for name in [JOURNAL_FILE, REJECTED_FILE] {
        let mode = fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn entry_torn_by_a_crash_is_skipped_and_the_next_append_is_whole() {
    let line = record::encode(&keyed_entry(3)).unwrap();
    for cut in [1, line.len() / 2, line.len() - 1] {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(folder.path()).unwrap();
        journal.append_blocking(entry(1)).unwrap();
        drop(journal);
        add_bytes(&folder.path().join(JOURNAL_FILE), &line.as_bytes()[..cut]);
        let journal = Journal::open(folder.path()).unwrap();
        assert_eq!(journal.entries(), [entry(1)], "cut at {cut}");
        journal.append_blocking(entry(2)).unwrap();
        drop(journal);
        assert_eq!(Journal::open(folder.path()).unwrap().entries(), [entry(1), entry(2)], "cut at {cut}");
    }
}

#[test]
fn damaged_entry_is_moved_aside_and_the_others_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(JOURNAL_FILE);
    let line = record::encode(&entry(2)).unwrap();
    // One digit of the cost is another one: only the checksum tells.
    let damaged = line.replace("\"cost_nanos\":5250", "\"cost_nanos\":1250");
    assert_ne!(damaged, line);
    let newer = line.replacen("v2", "v3", 1);
    for number in [1, 3] {
        add_bytes(&path, record::encode(&entry(number)).unwrap().as_bytes());
        add_bytes(&path, if number == 1 { damaged.as_bytes() } else { newer.as_bytes() });
    }
    assert_eq!(Journal::status(folder.path()).unwrap(), JournalStatus { waiting: 2, rejected: 2 });
    let journal = Journal::open(folder.path()).unwrap();
    assert_eq!(journal.entries(), [entry(1), entry(3)]);
    let rejected = fs::read_to_string(folder.path().join(REJECTED_FILE)).unwrap();
    assert_eq!(rejected, format!("{damaged}{newer}"));
    drop(journal);
    Journal::open(folder.path()).unwrap();
    assert_eq!(Journal::status(folder.path()).unwrap(), JournalStatus { waiting: 2, rejected: 2 });
}

#[test]
fn removed_entries_are_gone_and_an_empty_journal_has_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    for number in 1..=3 {
        journal.append_blocking(entry(number)).unwrap();
    }
    journal.remove_blocking(&ids(&[1, 3])).unwrap();
    journal.append_blocking(entry(4)).unwrap();
    assert_eq!(Journal::open(folder.path()).unwrap().entries(), [entry(2), entry(4)]);
    journal.remove_blocking(&ids(&[2, 4])).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn rejected_entry_can_be_put_back_by_appending_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Arc::new(Journal::open(folder.path()).unwrap());
    journal.append(keyed_entry(1)).await.unwrap();
    journal.append(entry(2)).await.unwrap();
    journal.reject(keyed_entry(1)).await.unwrap();
    assert_eq!(journal.entries(), [entry(2)]);
    assert_eq!(Journal::status(folder.path()).unwrap(), JournalStatus { waiting: 1, rejected: 1 });
    drop(journal);
    let rejected = folder.path().join(REJECTED_FILE);
    add_bytes(&folder.path().join(JOURNAL_FILE), &fs::read(&rejected).unwrap());
    fs::remove_file(&rejected).unwrap();
    assert_eq!(Journal::open(folder.path()).unwrap().entries(), [keyed_entry(1), entry(2)]);
}

#[test]
fn line_without_log_probabilities_is_read() {
    let mut entry = keyed_entry(1);
    entry.settlement.stored_reply.as_mut().unwrap().logprobs = None;
    let line = record::encode(&entry).unwrap();
    assert!(!line.contains("logprobs"), "{line}");
    assert_eq!(record::parse(line.as_bytes()).entries, [entry]);
}

#[test]
fn same_request_is_journaled_once() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    journal.append_blocking(entry(1)).unwrap();
    journal.append_blocking(entry(1)).unwrap();
    assert_eq!(fs::read_to_string(folder.path().join(JOURNAL_FILE)).unwrap().lines().count(), 1);
}

#[test]
fn full_journal_rejects_entries_and_keeps_those_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    journal.append_blocking(entry(1)).unwrap();
    journal.state().bytes = MAX_JOURNAL_BYTES;
    assert!(matches!(journal.append_blocking(entry(2)), Err(JournalError::Full)));
    assert_eq!(Journal::open(folder.path()).unwrap().entries(), [entry(1)]);
}

#[test]
fn log_probabilities_never_take_the_room_of_usage() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    journal.append_blocking(keyed_entry(1)).unwrap();
    journal.state().bytes = MAX_JOURNAL_BYTES_WITH_LOGPROBS;
    journal.append_blocking(keyed_entry(3)).unwrap();
    journal.append_blocking(entry(4)).unwrap();
    let mut without_logprobs = keyed_entry(3);
    without_logprobs.settlement.stored_reply.as_mut().unwrap().logprobs = None;
    assert_eq!(journal.entries(), [keyed_entry(1), without_logprobs, entry(4)]);
    assert_eq!(Journal::open(folder.path()).unwrap().entries(), journal.entries());
}

#[test]
fn entries_survive_a_failed_append() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    journal.append_blocking(entry(1)).unwrap();
    // Half of a line is written, and the file handle fails from then on: it is open for reading only.
    let path = folder.path().join(JOURNAL_FILE);
    add_bytes(&path, &record::encode(&entry(2)).unwrap().as_bytes()[..20]);
    journal.state().file = Some(File::open(&path).unwrap());
    assert!(matches!(journal.append_blocking(entry(2)), Err(JournalError::Io { .. })));
    assert_eq!(Journal::open(folder.path()).unwrap().entries(), [entry(1)]);
    journal.append_blocking(entry(3)).unwrap();
    assert_eq!(Journal::open(folder.path()).unwrap().entries(), [entry(1), entry(3)]);
}

#[derive(Clone, Debug)]
enum Step {
    Append(u32),
    Remove(Vec<u32>),
    /// The process ends between two writes.
    Restart,
    /// The process dies while it appends: the first bytes of the line are on disk.
    CrashInAppend(u32, prop::sample::Index),
    /// The process dies while it writes a new file.
    CrashInRewrite(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    let number = 0..12_u32;
    prop_oneof![
        4 => number.clone().prop_map(Step::Append),
        2 => prop::collection::vec(number.clone(), 1..4).prop_map(Step::Remove),
        1 => Just(Step::Restart),
        2 => (number, any::<prop::sample::Index>()).prop_map(|(number, cut)| Step::CrashInAppend(number, cut)),
        1 => any::<prop::sample::Index>().prop_map(Step::CrashInRewrite),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_acknowledged_entry_survives_crashes_exactly_once(steps in prop::collection::vec(step(), 1..24)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(JOURNAL_FILE);
        let mut journal = Journal::open(folder.path()).unwrap();
        let mut expected = BTreeMap::new();
        for step in steps {
            match step {
                Step::Append(number) => {
                    journal.append_blocking(numbered(number)).unwrap();
                    expected.insert(number, numbered(number));
                }
                Step::Remove(numbers) => {
                    journal.remove_blocking(&ids(&numbers)).unwrap();
                    numbers.iter().for_each(|number| drop(expected.remove(number)));
                }
                Step::Restart => journal = Journal::open(folder.path()).unwrap(),
                Step::CrashInAppend(number, cut) => {
                    let line = record::encode(&numbered(number)).unwrap();
                    add_bytes(&path, &line.as_bytes()[..cut.index(line.len())]);
                    journal = Journal::open(folder.path()).unwrap();
                }
                Step::CrashInRewrite(cut) => {
                    let content = read_if_exists(&path).unwrap();
                    fs::write(folder.path().join(NEW_FILE), &content[..cut.index(content.len() + 1)]).unwrap();
                    journal = Journal::open(folder.path()).unwrap();
                }
            }
            let expected: Vec<_> = expected.values().cloned().collect();
            prop_assert_eq!(journal.entries(), expected.clone());
            prop_assert_eq!(record::parse(&read_if_exists(&path).unwrap()).entries.len(), expected.len());
            prop_assert_eq!(Journal::status(folder.path()).unwrap().rejected, 0);
        }
    }
}
