//! docs/authorization.md, written from the cases.

use super::cases::{Asker, Case, Guard};
use std::path::Path;

const HEAD: &str = "\
# Who may do what

Made from the cases that the tests send to every route of the portal (`crates/portal/src/tests/routes/cases.rs`); `make authorization`
renews it. A route without its cases, and a case that the portal answers otherwise, fails the tests.

How to read it:

- **Asks**: what the policy (`policies/portal.cedar`) is asked about this person and, where there is a `{id}`, about this client. `–`:
  nothing, because the page is open, or about nobody but the asker.
- **not theirs** is a consultant who does not own the client and is no partner: wrong owner, and for partners' pages wrong role.
- **303** for the signed-out is the way to sign-in; **401** is told to programs, which ask for no HTML. A forged and an ended session are
  no session.
- **403** is refused and on record, and nothing was changed; the tests compare the whole database. *Not theirs* and *no such client* are the
  same bytes and headers. **404** is told to partners alone, who may read every client.
- An empty cell: the question does not arise.

";

pub(super) fn written(cases: &[Case]) -> String {
    let mut text = HEAD.to_owned();
    let askers: Vec<_> = Asker::ALL.iter().map(ToString::to_string).collect();
    text += &format!("| Route | Asks | {} |\n", askers.join(" | "));
    text += &format!("|---|---|{}\n", "---|".repeat(askers.len()));
    for case in cases {
        let asks = case.asks.map_or("–".to_owned(), |action| format!("`{action}`"));
        let cell = |asker: &Asker| case.expected(*asker).map_or(String::new(), |status| status.to_string());
        let cells: Vec<_> = Asker::ALL.iter().map(cell).collect();
        // Which changes with what is served.
        let path = case.path.replace(env!("CHANCERY_SCRIPTS_VERSION"), "…");
        text += &format!("| `{} {path}` | {asks} | {} |\n", case.method, cells.join(" | "));
    }
    let open = cases.iter().filter(|case| matches!(case.guard, Guard::Open { .. })).count();
    text += &format!(
        "\n{} routes, of which {open} are open to the signed-out; {} cases. What is served to everybody besides: the stylesheet and \
         the favicon under `/assets/`.\n",
        cases.len(),
        cases.iter().flat_map(|case| Asker::ALL.map(|asker| case.expected(asker))).flatten().count(),
    );
    text
}

/// Compares the file with what it should be, or renews it where `CHANCERY_RENEW_DOCS` is set.
pub(super) fn keep(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    if std::env::var_os("CHANCERY_RENEW_DOCS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == text, "{file} differs; run `make authorization`");
}
